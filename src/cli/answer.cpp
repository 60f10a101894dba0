#include "cli/answer.h"

#include <algorithm>
#include <utility>

namespace tidemill::cli {
namespace {

constexpr Engine::Milliseconds kLook{50};  // how often `cancel` is looked at

}  // namespace

Result<std::vector<Answer>> ask(Engine& engine, Request request, const std::atomic<bool>& cancel,
                                const std::function<void(const Event&)>& take) {
  std::vector<Answer> answers(static_cast<size_t>(std::max<int64_t>(0, request.n)));
  TRY(const RequestId id, engine.submit(std::move(request)));
  bool cancelled = false;
  for (bool last = false; !last;) {
    if (!cancelled && cancel.load(std::memory_order_relaxed)) {
      cancelled = true;
      engine.cancel(id);
    }
    for (Event& event : engine.poll(kLook)) {
      take(event);
      Answer& answer = answers[static_cast<size_t>(event.choice)];
      answer.ids.insert(answer.ids.end(), event.tokens.begin(), event.tokens.end());
      last = last || event.last;
      if (event.finish == FinishReason::kNone) continue;
      answer.finish = event.finish;
      answer.usage = std::move(event.usage);
      answer.error = std::move(event.error);
    }
  }
  return answers;
}

void fit_into_context(Request& request, const ModelInfo& model) {
  const int64_t left = model.context - static_cast<int64_t>(request.prompt.size());
  if (left > 0) request.max_tokens = std::min(request.max_tokens, left);
}

Status status_of(const Answer& answer) {
  if (answer.finish != FinishReason::kRefused && answer.finish != FinishReason::kError) return {};
  return tl::unexpected(answer.error);
}

}  // namespace tidemill::cli
