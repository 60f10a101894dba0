#include "cli/answer_flags.h"

#include <random>

#include "cli/model_directory.h"
#include "model/config.h"

namespace tidemill::cli {
namespace {

// A count to the mode that the engine has for it. Returns what is wrong, as CLI11 wants it.
std::string read_drafts(std::string& text) {
  if (text.size() == 1 && text[0] >= '0' && text[0] <= '5') {
    text = text == "0" ? "off" : "fixed:" + text;
  }
  if (text == "off" || text.starts_with("fixed:") || text.starts_with("dynamic")) return {};
  return text + " is not a number from 0 to 5, dynamic or off";
}

}  // namespace

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
  command
      .add_option(
          "--draft", drafts,
          "Tokens drafted per step: 0 to 5, dynamic, dynamic-lagged, dynamic-early-stop; the "
          "answer stays the same")
      ->transform(CLI::Validator(read_drafts, ""))
      ->type_name("N|dynamic|off")
      ->capture_default_str();
  command.add_option("--system", system, "System message");
  command.add_flag("--thinking,!--no-thinking", thinking, "Reason before the answer, or not");
  command.add_option("--effort", effort, "Reasoning effort")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
}

Options AnswerFlags::options(int64_t sequences) const {
  Options options;
  options.sequences = sequences;
  options.drafts = drafts;
  return options;
}

Request AnswerFlags::request(const ModelInfo& model) const {
  Request request;
  SamplingParams& sampling = request.sampling;
  sampling = model.defaults;
  sampling.temperature = temperature.value_or(sampling.temperature);
  sampling.top_p = top_p.value_or(sampling.top_p);
  sampling.top_k = top_k.value_or(sampling.top_k);
  sampling.min_p = min_p;
  sampling.repetition_penalty = repetition_penalty;
  std::random_device random;
  sampling.seed = seed.value_or(random());  // 32 bits: easy to copy from a report
  request.max_tokens = max_tokens;
  return request;
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
