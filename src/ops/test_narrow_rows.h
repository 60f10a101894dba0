// A device whose linear, rope and attend get rows of bf16 where tests made them float32: so tests
// of these ops hold for either form.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/formats.h"
#include "ops/test_host_calls.h"

namespace tidemill {

class NarrowRows : public HostCalls {
 public:
  using HostCalls::HostCalls;
  // How many arguments were rows of bf16.
  int64_t narrowed() const { return narrowed_; }

  void linear(const LinearArgs& args) override {
    LinearArgs a = args;
    const Copy x(a.x, narrowed_);
    const bool wide = a.f32_output || a.accumulate;
    const Copy y(a.y, narrowed_, !wide);
    HostCalls::linear(a);
    y.give_back();
  }
  void rope(const RopeArgs& args) override {
    RopeArgs a = args;
    const Copy x(a.x, narrowed_);
    HostCalls::rope(a);
    x.give_back();
  }
  void attend(const AttendArgs& args) override {
    AttendArgs a = args;
    const Copy q(a.q, narrowed_);
    const Copy out(a.out, narrowed_);
    HostCalls::attend(a);
    out.give_back();
  }

 private:
  // The upper halves of rows, gaps included. Rows stay as they are if not `wanted`, or where a
  // value has a lower half.
  class Copy {
   public:
    Copy(Rows& rows, int64_t& narrowed, bool wanted = true) : wide_(rows) {
      if (!wanted || rows.count == 0) return;
      const int64_t n = (rows.count - 1) * rows.stride + rows.width;
      for (int64_t i = 0; i < n; ++i) {
        const float value = wide_.f32(0)[i];
        const uint16_t half = bf16_from_float(value);
        if (value == value && bf16_to_float(half) != value) {
          halves_.clear();
          return;
        }
        halves_.push_back(half);
      }
      rows.data = halves_.data();
      rows.element = Element::kBf16;
      ++narrowed;
    }
    void give_back() const {
      for (size_t i = 0; i < halves_.size(); ++i) wide_.f32(0)[i] = bf16_to_float(halves_[i]);
    }

   private:
    Rows wide_;
    std::vector<uint16_t> halves_;
  };

  int64_t narrowed_ = 0;
};

}  // namespace tidemill
