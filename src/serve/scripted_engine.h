// An engine that computes nothing: its answers are what the prompts ask for. For tests of the
// server and for measuring what the server itself costs.
//
// The last user message directs it, by its first word:
//   say: TEXT     answers TEXT, in which special tokens are recognised (so it can call tools)
//   count         answers "0 1 2 .." up to max_tokens (also what any other message gets)
//   hang          never gives a token
//   fail: TEXT    gives TEXT and then breaks off with an error
//   refuse: TEXT  is refused with TEXT as the reason, before any token
// A prompt that leaves the answer in its reasoning gets "Let me see.</think>" first.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "serve/served_engine.h"
#include "text/tokenizer.h"

namespace tidemill {

struct ScriptedOptions {
  double token_ms = 0;           // between two tokens of an answer; 0: one with every poll()
  double first_token_ms = 0;     // until the first one
  int64_t most_requests = 4096;  // in the engine; more are refused with kNoCapacity
  int64_t context = 131072;
};

// Stop strings, stop tokens, max_tokens, n, deadlines and cancels are honoured; prompts that were
// seen before count as cached, up to the last whole block of 128. Sampling is not: drafts are made
// up (three a step, two of them accepted).
class ScriptedEngine : public ServedEngine {
 public:
  // The tokenizer must outlive it.
  ScriptedEngine(const Tokenizer& tokenizer, ScriptedOptions options);
  ~ScriptedEngine() override;

  Result<RequestId> submit(Request request) override;
  bool cancel(RequestId id) override;
  std::vector<Event> poll(Engine::Milliseconds wait) override;
  Stats stats() const override;
  const ModelInfo& info() const override { return info_; }

 private:
  struct Answer;
  struct Script;

  Script script_of(const Request& request) const;
  void step(Answer& answer, Clock::time_point now, std::vector<Event>& events);
  void end(Answer& answer, FinishReason reason, Event& event);

  const Tokenizer& tokenizer_;
  const ScriptedOptions options_;
  ModelInfo info_;

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  uint64_t next_ = 1;
  std::map<uint64_t, std::unique_ptr<Answer>> answers_;  // all choices, in the order of submit
  std::map<RequestId, int64_t> open_;                    // choices that have not ended
  std::unordered_set<uint64_t> seen_;                    // hashes of prompts' blocks
  std::vector<Event> cancelled_;
  Stats stats_;
};

}  // namespace tidemill
