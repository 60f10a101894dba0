// Prompt encoding of DeepSeek-V4.1: a Conversation to text with marked special tokens, and to ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

namespace tidemill {

// A prompt is a list of stretches. Only a stretch that the encoder itself inserted is special, one
// token each; text of the caller never is, whatever it spells.
struct PromptPiece {
  std::string text;
  bool special = false;
};

struct Prompt {
  std::vector<PromptPiece> pieces;  // never empty text; neighbouring plain pieces are merged
  // The answer starts inside: reasoning, content, or the tool-call block (required / named).
  enum class Start { kReasoning, kContent, kToolCalls } start = Start::kContent;
  bool continues_prefix = false;  // the last message had prefix: true
  bool declares_tools = false;    // the answer may hold tool calls
  std::string text() const;
};

// Reads an OpenAI-style chat request (messages, tools, tool_choice, thinking, reasoning_effort,
// response_format). Unknown fields are ignored. Error kRequest names the field.
Result<Conversation> parse_chat_request(const Json& request);

// A forced tool choice while thinking leaves the prompt open in the reasoning: holding the model to
// the call after it is the sampler's part.
// Errors: those of check_conversation.
Result<Prompt> render_prompt(const Conversation& conversation);

// Error kTokenizer when the checkpoint's tokenizer lacks a special token that the prompt uses.
Result<std::vector<int32_t>> encode_prompt(const Prompt& prompt, const Tokenizer& tokenizer);

}  // namespace tidemill
