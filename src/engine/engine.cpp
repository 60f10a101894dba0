// The public engine: the step loop behind a lock, a thread that turns it, and a mailbox of events.
#include "tidemill/engine.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/constraints.h"
#include "engine/setup.h"
#include "engine/step_loop.h"

namespace tidemill {

// Locks, in this order: turn_ (one turn at a time), host_ (the loop's state; never held while
// waiting for the device), mail_.
class Engine::Impl {
 public:
  Impl(const Options& options, std::unique_ptr<ModelRunner> runner)
      : own_thread_(options.own_thread),
        runner_(std::move(runner)),
        constraints_(runner_->model(), options, end_tokens(*runner_), [this] { wake(); }) {}

  ~Impl() {
    {
      const std::lock_guard lock(host_);
      stopping_ = true;
      work_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  static Result<std::unique_ptr<Impl>> open(const Options& options,
                                            std::function<void(double)> progress) {
    TRY(auto runner, load_runner(options, std::move(progress)));
    TRY(LoopOptions loop, loop_options(options, *runner));
    auto impl = std::make_unique<Impl>(options, std::move(runner));
    TRY(impl->loop_, StepLoop::create(*impl->runner_, impl->constraints_, std::move(loop)));
    impl->info_ = model_info(*impl->runner_, *impl->loop_);
    log_info("engine: {} slots, {} blocks; {}", impl->runner_->pool().slot_count(),
             impl->runner_->pool().block_pool().count(), impl->info_.cache_rule);
    if (options.own_thread) impl->thread_ = std::thread([raw = impl.get()] { raw->run(); });
    return impl;
  }

  Result<RequestId> submit(Request request) {
    // What takes time with the size of a request is done before the loop is held up.
    CHECK_OK(loop_->check(request));
    std::optional<GrammarSpec> constraint;
    if (request.constraint) {
      TRY(constraint, constraints_.read(*request.constraint));
    }
    const std::lock_guard lock(host_);
    auto id = loop_->submit(std::move(request), std::move(constraint));
    if (id) notify_work();
    return id;
  }

  bool cancel(RequestId id) {
    const std::lock_guard lock(host_);
    const bool known = loop_->cancel(id);
    deliver();
    if (known) notify_work();
    return known;
  }

  std::vector<Event> poll(Milliseconds wait) {
    std::unique_lock lock(mail_);
    if (own_thread_ && mail_box_.empty()) {
      arrived_.wait_until(lock, after(wait).time(), [&] { return !mail_box_.empty(); });
    }
    return std::exchange(mail_box_, {});
  }

  Result<bool> step(Milliseconds wait) {
    if (own_thread_) {
      return fail(ErrorCode::kConflictingOptions,
                  "this engine has a thread of its own (own_thread); step() would be a second one");
    }
    return turn(after(wait), true);
  }

  // Everything that was launched before the call has come back.
  Status flush(Milliseconds wait) {
    const Deadline deadline = after(wait);
    std::unique_lock lock(host_);
    const int64_t launched = loop_->launched();
    const bool done =
        wait_until(lock, deadline, false, [&] { return loop_->committed() >= launched; });
    if (done) return {};
    return fail(ErrorCode::kDeadline, "{} steps were still in flight after {} ms",
                launched - loop_->committed(), wait.count());
  }

  Status drain(Milliseconds wait) {
    const Deadline deadline = after(wait);
    std::unique_lock lock(host_);
    loop_->drain();
    notify_work();
    if (wait_until(lock, deadline, true, [&] { return loop_->requests() == 0; })) return {};
    const std::vector<RequestId> left = loop_->ids();
    for (const RequestId id : left) loop_->cancel(id);
    deliver();
    return fail(ErrorCode::kDeadline, "{} requests had not ended after {} ms and were cancelled",
                left.size(), wait.count());
  }

  const ModelInfo& info() const { return info_; }
  Stats stats() {
    const std::lock_guard lock(host_);
    return loop_->stats();
  }
  void clear_cache() {
    const std::lock_guard lock(host_);
    loop_->clear_cache();
  }
  const Tokenizer& tokenizer() const { return runner_->model().tokenizer(); }

 private:
  static std::vector<int32_t> end_tokens(const ModelRunner& runner) {
    std::vector<int32_t> ends = runner.model().generation().eos_token_ids;
    ends.push_back(runner.model().config().eos_token_id);
    return ends;
  }

  // No wait is longer than a year, whatever a caller asks for.
  static Deadline after(Milliseconds wait) {
    return Deadline::after(
        std::clamp<Milliseconds>(wait, Milliseconds(0), std::chrono::hours(8760)));
  }

  // With host_ held.
  void notify_work() {
    work_ = true;
    changed_.notify_all();
  }
  // From a thread of the grammar pool.
  void wake() {
    const std::lock_guard lock(host_);
    notify_work();
  }
  // With host_ held: events become visible in the order of their making.
  void deliver() {
    std::vector<Event> events = loop_->take_events();
    if (events.empty()) return;
    const std::lock_guard lock(mail_);
    if (mail_box_.empty()) {
      mail_box_ = std::move(events);
    } else {
      for (Event& event : events) mail_box_.push_back(std::move(event));
    }
    arrived_.notify_one();
  }

  // One turn of the loop. False: nothing is in flight and nothing could be launched.
  Result<bool> turn(Deadline deadline, bool launches) {
    const std::lock_guard turning(turn_);
    std::unique_lock lock(host_);
    const bool waits = loop_->must_wait() || (!launches && loop_->in_flight() > 0);
    lock.unlock();
    if (waits && !loop_->device().wait(deadline)) return true;
    lock.lock();
    Status status = loop_->commit();
    bool launched = false;
    if (status && launches) {
      auto result = loop_->launch();
      if (result) launched = *result;
      if (!result) {
        loop_->fail_all(result.error());
        status = tl::unexpected(std::move(result).error());
      }
    }
    deliver();
    const bool busy = launched || loop_->in_flight() > 0;
    turned_.notify_all();
    if (!status) return tl::unexpected(std::move(status).error());
    return busy;
  }

  // Waits, or turns the loop where the caller is its thread. Holds the lock but for that.
  template <typename Done>
  bool wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline, bool launches, Done done) {
    while (!done()) {
      if (deadline.expired()) return false;
      if (own_thread_) {
        if (deadline.is_never()) {
          turned_.wait(lock);
        } else {
          turned_.wait_until(lock, deadline.time());
        }
        continue;
      }
      lock.unlock();
      const auto busy = turn(deadline, launches);
      if (!busy || !*busy) std::this_thread::sleep_for(kRetry);
      lock.lock();
    }
    return true;
  }

  // The engine's thread.
  void run() {
    for (;;) {
      {
        const std::lock_guard lock(host_);
        if (stopping_) return;
        work_ = false;
      }
      const auto busy = turn(Deadline::after(kTurn), true);
      if (!busy) log_error("engine: {}; every request has ended", busy.error().message);
      if (busy && *busy) continue;
      // Requests that wait for blocks, a grammar or their deadline are looked at again soon.
      std::unique_lock lock(host_);
      const auto pause = loop_->requests() > 0 ? kRetry : kTurn;
      changed_.wait_for(lock, pause, [&] { return work_ || stopping_; });
    }
  }

  static constexpr Milliseconds kTurn{1000};
  static constexpr Milliseconds kRetry{5};

  const bool own_thread_;

  std::mutex turn_;
  std::mutex host_;
  std::condition_variable changed_;  // work_, stopping_
  std::condition_variable turned_;
  bool work_ = false;
  bool stopping_ = false;

  std::mutex mail_;
  std::condition_variable arrived_;
  std::vector<Event> mail_box_;

  // Each uses those before it; the grammar pool's threads also the locks above.
  std::unique_ptr<ModelRunner> runner_;
  Constraints constraints_;
  std::unique_ptr<StepLoop> loop_;
  ModelInfo info_;
  std::thread thread_;
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::open(const Options& options,
                                             std::function<void(double)> progress) {
  TRY(auto impl, Impl::open(options, std::move(progress)));
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Result<RequestId> Engine::submit(Request request) { return impl_->submit(std::move(request)); }
bool Engine::cancel(RequestId id) { return impl_->cancel(id); }
std::vector<Event> Engine::poll(Milliseconds wait) { return impl_->poll(wait); }
Result<bool> Engine::step(Milliseconds wait) { return impl_->step(wait); }
Status Engine::flush(Milliseconds wait) { return impl_->flush(wait); }
Status Engine::drain(Milliseconds wait) { return impl_->drain(wait); }
const ModelInfo& Engine::info() const { return impl_->info(); }
Stats Engine::stats() const { return impl_->stats(); }
void Engine::clear_cache() { impl_->clear_cache(); }

std::vector<int32_t> Engine::encode(std::string_view text) const {
  return impl_->tokenizer().encode(text);
}
std::string Engine::decode(std::span<const int32_t> tokens) const {
  return impl_->tokenizer().decode(tokens);
}

}  // namespace tidemill
