#include "cli/interrupt.h"

namespace tidemill::cli {
namespace {

// A signal handler reaches nothing but globals.
std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free);
struct sigaction previous;

}  // namespace

InterruptFlag::InterruptFlag() {
  interrupted = false;
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  ::sigaction(SIGINT, &action, &previous);
}

InterruptFlag::~InterruptFlag() { ::sigaction(SIGINT, &previous, nullptr); }

const std::atomic<bool>& InterruptFlag::flag() const { return interrupted; }

void InterruptFlag::clear() { interrupted = false; }

InterruptElsewhere::InterruptElsewhere() {
  sigset_t interrupt;
  ::sigemptyset(&interrupt);
  ::sigaddset(&interrupt, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &interrupt, &before_);
}

InterruptElsewhere::~InterruptElsewhere() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace tidemill::cli
