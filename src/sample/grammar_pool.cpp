#include "sample/grammar_pool.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace tidemill {

GrammarPool::GrammarPool(GrammarCompiler& compiler, int threads, int64_t max_waiting)
    : compiler_(compiler), max_waiting_(max_waiting) {
  const int wanted = std::clamp(threads, 1, kMaxThreads);
  idle_ = wanted;  // before the first of them looks
  try {
    while (static_cast<int>(workers_.size()) < wanted) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    log_warning("output constraints are compiled on {} threads, not on {}: {}", workers_.size(),
                wanted, error.what());
    const std::lock_guard lock(mutex_);
    idle_ -= wanted - static_cast<int>(workers_.size());
  }
}

GrammarPool::~GrammarPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& [ticket, stop] : running_) stop.request_stop();
    running_.clear();  // nobody is called any more
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

Result<GrammarPool::Ticket> GrammarPool::submit(GrammarSpec spec, Deadline deadline) {
  std::shared_ptr<const CompiledGrammar> cached;
  if (!deadline.expired()) cached = compiler_.find(spec);
  Ticket ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    if (cached) {
      done_.push_back({next_, std::move(cached)});
      return next_++;
    }
    if (workers_.empty()) {
      return fail(ErrorCode::kNoCapacity,
                  "output constraints cannot be compiled: the system refuses threads");
    }
    if (static_cast<int64_t>(waiting_.size()) >= max_waiting_ + idle_) {
      return fail(ErrorCode::kNoCapacity,
                  "{} output constraints are being compiled or wait for it, which is the limit: "
                  "try again later",
                  waiting_.size() + workers_.size() - static_cast<size_t>(idle_));
    }
    ticket = next_++;
    waiting_.emplace(ticket, Job{std::move(spec), deadline});
  }
  changed_.notify_one();
  return ticket;
}

void GrammarPool::cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  if (waiting_.erase(ticket) > 0) return;
  if (const auto running = running_.find(ticket); running != running_.end()) {
    running->second.request_stop();
    running_.erase(running);
    return;
  }
  std::erase_if(done_, [&](const Done& done) { return done.ticket == ticket; });
}

std::vector<GrammarPool::Done> GrammarPool::take_done() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

int64_t GrammarPool::pending() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(waiting_.size() + running_.size() + done_.size());
}

void GrammarPool::work() {
  for (std::unique_lock lock(mutex_);;) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    auto node = waiting_.extract(waiting_.begin());
    const Ticket ticket = node.key();
    std::stop_token stop = running_[ticket].get_token();
    --idle_;
    lock.unlock();
    auto grammar = compile(node.mapped(), std::move(stop));
    lock.lock();
    ++idle_;
    if (running_.erase(ticket) == 0) continue;  // cancelled
    done_.push_back({ticket, std::move(grammar)});
    lock.unlock();
    if (wake_) wake_();
    lock.lock();
  }
}

Result<std::shared_ptr<const CompiledGrammar>> GrammarPool::compile(const Job& job,
                                                                    std::stop_token stop) {
  const auto out_of_time = [] {
    return fail(ErrorCode::kDeadline,
                "the time of the request was up before its output constraint was compiled");
  };
  if (job.deadline.expired()) return out_of_time();
  try {
    auto grammar = compiler_.compile(job.spec, job.deadline, std::move(stop));
    if (!grammar && grammar.error().code == ErrorCode::kDeadline && job.deadline.expired()) {
      return out_of_time();
    }
    return grammar;
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfMemory, "out of memory in an output constraint");
  }
}

}  // namespace tidemill
