// The reference backend with the tie order of the program that made the golden vectors.
//
// Its selections come from torch.topk, which leaves the order of equal scores to the algorithm:
// nth_element over (score, index) pairs compared by score alone, or partial_sort when k is far
// below n. Exact ties are common (scores of 0 behind a ReLU), and one differing entry changes every
// later row. Tidemill's rule is "lower index wins"; only these tests imitate the other one.
#pragma once

#include <memory>
#include <utility>

#include "ops/reference_backend.h"
#include "ops/test_host_calls.h"

namespace tidemill {

class TorchOrderBackend : public ReferenceBackend {
 public:
  using ReferenceBackend::ReferenceBackend;
  // Whole prompts of one sequence in one step only: the number of candidates is the prompt's.
  void index_select(const IndexSelectArgs& a) override;

  int64_t rows() const { return rows_; }
  int64_t tied_rows() const { return tied_rows_; }  // where the tie order decided

 private:
  void select(std::vector<float> score, int64_t visible, int64_t k, int32_t* out);

  int64_t rows_ = 0;
  int64_t tied_rows_ = 0;
};

// Every other op by a device.
class TorchOrderOnDevice : public HostCalls {
 public:
  TorchOrderOnDevice(std::unique_ptr<Backend> device, ThreadTeam& team)
      : HostCalls(std::move(device)), order_(team, Rounding{}) {}
  void index_select(const IndexSelectArgs& a) override { order_.index_select(a); }

 private:
  TorchOrderBackend order_;
};

}  // namespace tidemill
