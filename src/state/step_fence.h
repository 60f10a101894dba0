// Which steps a device may still be working on. What a step can read is given back only after it.
#pragma once

#include <cassert>
#include <cstdint>

namespace tidemill {

// Steps are numbered from 1 and finish in order. Not thread safe.
class StepFence {
 public:
  // A step is about to be launched; returns its number.
  int64_t begin_step() { return ++begun_; }
  // Step `step` and all before it have finished: nothing reads for them any more.
  void finish_step(int64_t step) {
    assert(step > finished_ && step <= begun_);
    finished_ = step;
  }

  bool idle() const { return finished_ == begun_; }
  int64_t last_begun() const { return begun_; }
  int64_t last_finished() const { return finished_; }

 private:
  int64_t begun_ = 0;
  int64_t finished_ = 0;
};

}  // namespace tidemill
