#include "cli/interrupt.h"

#include <signal.h>

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

}  // namespace tidemill::cli
