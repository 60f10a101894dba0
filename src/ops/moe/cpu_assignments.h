// Which expert multiplies which tokens in one call of the cpu backend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/linear/cpu_matmul.h"
#include "ops/moe/moe.h"

namespace tidemill {

// One slot per (token, chosen expert), those of an expert together, experts ascending, the shared
// expert last with every token and weight 1. A part is at most `at_once` slots of an expert. Memory
// is kept from call to call.
class Assignments {
 public:
  struct Part {
    const ExpertWeights* expert;
    int64_t slot;
    int64_t count;
  };

  void assign(const ExpertsArgs& a, int64_t at_once) {
    at_once_ = at_once;
    const int64_t chosen = a.x.count * a.topk;
    next_.assign(a.experts.size() + 1, 0);
    for (int64_t i = 0; i < chosen; ++i) ++next_[static_cast<size_t>(a.ids[i]) + 1];
    parts_.clear();
    part_begin_.clear();
    for (size_t e = 0; e < a.experts.size(); ++e) {
      next_[e + 1] += next_[e];
      add_parts(a.experts[e], next_[e], next_[e + 1]);
    }
    token_.resize(static_cast<size_t>(chosen + a.x.count));
    weight_.assign(token_.size(), 1.0f);
    for (int64_t i = 0; i < chosen; ++i) {
      const auto slot = static_cast<size_t>(next_[static_cast<size_t>(a.ids[i])]++);
      token_[slot] = static_cast<int32_t>(i / a.topk);
      weight_[slot] = a.weights[i];
    }
    for (int64_t t = 0; t < a.x.count; ++t) {
      token_[static_cast<size_t>(chosen + t)] = static_cast<int32_t>(t);
    }
    add_parts(*a.shared, chosen, chosen + a.x.count);
    part_begin_.push_back(slots());
  }

  int64_t slots() const { return std::ssize(token_); }
  const std::vector<Part>& parts() const { return parts_; }
  // The slot that each part begins with, and slots().
  const std::vector<int64_t>& part_begin() const { return part_begin_; }
  const int32_t* tokens() const { return token_.data(); }  // [slots]
  const float* weights() const { return weight_.data(); }  // [slots]

 private:
  void add_parts(const ExpertWeights& expert, int64_t begin, int64_t end) {
    // Of about the same size, and of whole pairs of tiles but for the last.
    const int64_t parts = std::max<int64_t>(1, (end - begin + at_once_ - 1) / at_once_);
    const int64_t grain = 2 * kTokenTile;
    const int64_t size = ((end - begin + parts - 1) / parts + grain - 1) / grain * grain;
    for (int64_t slot = begin; slot < end; slot += size) {
      parts_.push_back({&expert, slot, std::min(size, end - slot)});
      part_begin_.push_back(slot);
    }
  }

  int64_t at_once_ = 0;
  std::vector<Part> parts_;
  std::vector<int64_t> part_begin_;
  std::vector<int32_t> token_;
  std::vector<float> weight_;
  std::vector<int64_t> next_;  // free slot of each expert
};

}  // namespace tidemill
