// Compiles grammars on threads of its own, so that whoever needs one does not wait for it. First
// come, first served; what the compiler has in its cache waits for nobody.
//
// All members may be called from any thread; none of them waits for a compile but the destructor.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "sample/grammar.h"

namespace tidemill {

class GrammarPool {
 public:
  using Ticket = uint64_t;  // never 0, never the same twice
  struct Done {
    Ticket ticket;
    Result<std::shared_ptr<const CompiledGrammar>> grammar;
  };
  static constexpr int kMaxThreads = 64;

  // `compiler` must outlive the pool. `threads` is clamped to 1..kMaxThreads; when the system
  // refuses one there are fewer, and a warning is logged. `max_waiting` >= 0: besides those that
  // are being compiled.
  GrammarPool(GrammarCompiler& compiler, int threads, int64_t max_waiting);
  // Drops what waits and stops what is being compiled (GrammarCompiler::compile); joins the
  // threads.
  ~GrammarPool();
  GrammarPool(const GrammarPool&) = delete;
  GrammarPool& operator=(const GrammarPool&) = delete;

  // A grammar in the compiler's cache is done at once: take_done() has it when this returns, and
  // on_done is not called for it (the caller may hold what on_done takes). So look after
  // submitting.
  //
  // kNoCapacity: max_waiting wait already. All other errors are those of GrammarCompiler::compile
  // and come with the result; kDeadline also when the deadline passes while the job waits.
  Result<Ticket> submit(GrammarSpec spec, Deadline deadline = Deadline::never());
  // Forgets the ticket, wherever it is: nothing about it comes any more, and its compile is
  // stopped. Unknown ones are ignored.
  void cancel(Ticket ticket);
  // What has been done since the last call, in the order of completion.
  std::vector<Done> take_done();
  // Called by a worker after each compile, without locks held: may call the pool, must not
  // block. Set once, before the first submit.
  void on_done(std::function<void()> wake) { wake_ = std::move(wake); }
  // Tickets that are neither taken nor cancelled.
  int64_t pending() const;

 private:
  struct Job {
    GrammarSpec spec;
    Deadline deadline;
  };
  void work();
  Result<std::shared_ptr<const CompiledGrammar>> compile(const Job& job, std::stop_token stop);

  GrammarCompiler& compiler_;
  const int64_t max_waiting_;
  std::function<void()> wake_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  Ticket next_ = 1;
  std::map<Ticket, Job> waiting_;               // tickets grow: the first is the oldest
  std::map<Ticket, std::stop_source> running_;  // without the cancelled ones
  std::vector<Done> done_;
  int64_t idle_ = 0;  // workers without a job
  std::vector<std::thread> workers_;
};

}  // namespace tidemill
