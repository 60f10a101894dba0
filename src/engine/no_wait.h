// A guard against the bubble: between the end of one step and the launch of the next the loop must
// not wait for anything. Whatever waits says so; saying it inside a NoWait scope is a bug, which
// ends a debug build.
#pragma once

#include <cassert>

namespace tidemill {

class NoWait {
 public:
  NoWait() { ++depth(); }
  ~NoWait() { --depth(); }
  NoWait(const NoWait&) = delete;
  NoWait& operator=(const NoWait&) = delete;

  // To be called before every wait of the loop's thread.
  static void about_to_wait() {
    assert(depth() == 0 && "a wait between a result and the next launch");
  }

 private:
  static int& depth() {
    thread_local int value = 0;
    return value;
  }
};

}  // namespace tidemill
