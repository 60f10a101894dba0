// Flags that run and chat share: how an answer is sampled, and what the model is told.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "text/conversation.h"
#include "tidemill/engine.h"

namespace tidemill::cli {

struct AnswerFlags {
  std::optional<float> temperature;  // these three: the checkpoint's generation_config.json
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  float min_p = 0;
  float repetition_penalty = 1;
  std::optional<uint64_t> seed;  // drawn anew for every run
  int64_t max_tokens = 1024;
  std::string drafts = "off";
  std::string system;
  std::optional<bool> thinking;
  int effort = 75;

  void add_to(CLI::App& command);

  // For one conversation with at most `sequences` answers at a time.
  Options options(int64_t sequences) const;
  // The flags, with the checkpoint's defaults in place of what is not given.
  Request request(const ModelInfo& model) const;
  // An empty conversation with the system message. Models think before they answer unless told not
  // to; the bundled one learned to in sums only and answers at once unless told to.
  Conversation conversation(const std::filesystem::path& model_directory) const;
};

}  // namespace tidemill::cli
