#include "cli/answer_flags.h"

#include <random>

#include "cli/model_directory.h"

namespace tidemill::cli {

void AnswerFlags::add_to(CLI::App& command) {
  command.add_option("--temperature", temperature, "0 is greedy (default: the checkpoint's)");
  command.add_option("--top-p", top_p, "Nucleus size (default: the checkpoint's)");
  command.add_option("--top-k", top_k, "Keep the k likeliest tokens (default: the checkpoint's)");
  command.add_option("--min-p", min_p, "Drop tokens less likely than this times the likeliest");
  command.add_option("--repetition-penalty", repetition_penalty, "1 is off")->capture_default_str();
  command.add_option("--seed", seed, "The same seed gives the same answer (default: random)")
      ->check([](const std::string& text) {  // the conversion would wrap a negative number around
        return text.starts_with('-') ? text + " is not a number >= 0" : std::string();
      });
  command.add_option("--max-tokens", max_tokens, "Tokens of the answer")
      ->check(CLI::Range(int64_t{1}, kMaxContext))
      ->capture_default_str();
  command.add_option("--draft", drafts, "Tokens drafted per step; the answer stays the same")
      ->check(CLI::Range(int64_t{0}, int64_t{5}))
      ->capture_default_str();
  command.add_option("--system", system, "System message");
  command.add_flag("--thinking,!--no-thinking", thinking, "Reason before the answer, or not");
  command.add_option("--effort", effort, "Reasoning effort")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
}

Result<GenerateOptions> AnswerFlags::generate_options(const Model& model) const {
  const int64_t most = max_drafts(model.config());
  if (drafts > most) {
    return fail(ErrorCode::kInvalidArgument, "--draft {}: this model drafts at most {} tokens",
                drafts, most);
  }
  const GenerationConfig& defaults = model.generation();
  GenerateOptions options;
  SamplingParams& sampling = options.sampling;
  sampling.temperature = temperature.value_or(defaults.do_sample ? defaults.temperature : 0.0f);
  sampling.top_p = top_p.value_or(defaults.top_p);
  sampling.top_k = top_k.value_or(static_cast<int32_t>(defaults.top_k));
  sampling.min_p = min_p;
  sampling.repetition_penalty = repetition_penalty;
  std::random_device random;
  sampling.seed = seed.value_or(random());  // 32 bits: easy to copy from a report
  CHECK_OK(sampling.validate(model.config().vocab_size));
  options.max_tokens = max_tokens;
  options.drafts = drafts;
  return options;
}

Conversation AnswerFlags::conversation(const std::filesystem::path& model_directory) const {
  Conversation conversation;
  conversation.thinking = thinking.value_or(!is_bundled_model(model_directory));
  conversation.reasoning_effort = effort;
  if (!system.empty()) {
    conversation.messages.push_back({.role = Role::kSystem, .content = {{.text = system}}});
  }
  return conversation;
}

}  // namespace tidemill::cli
