// What golden tests share: models loaded once, a forward pass on a chosen backend, statistics.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forward/forward.h"
#include "model/model.h"
#include "npz.h"
#include "ops/backend.h"
#include "ops/placed_weights.h"
#include "state/state_pool.h"

namespace tidemill {

const Model& micro_model();  // tests/vectors/micro
const Model& mini_model();   // models/mini
std::filesystem::path vectors(const std::string& name);
// A number of tests/vectors/mini/quality.json; NaN, which fails every comparison, if it is not
// there.
double quality_bound(const std::string& name);

// One forward pass with room for a few sequences.
class Machine {
 public:
  Machine(const Model& model, std::unique_ptr<Backend> backend,
          ReplayForm form = ReplayForm::kCompact);
  // The best of this machine that adds in the order of the recorded vectors; cuda if the tests are
  // to run on that one (ops/test_backend.h).
  static std::unique_ptr<Backend> best();
  // Released roundings.
  static std::unique_ptr<Backend> reference(ProductOrder order = ProductOrder::kPairLanes);
  static ThreadTeam& team();

  Forward& forward() { return *forward_; }
  StatePool& pool() { return *pool_; }
  Sequence sequence() { return *pool_->acquire(); }
  // Appends the tokens in one step. Logits of every token, or of the last one.
  std::vector<float> run(Sequence& sequence, std::span<const int32_t> tokens,
                         Logits logits = Logits::kAll);
  // A draft after `anchor`, each position fed the token that `choose` made of the logits before.
  struct Draft {
    std::vector<int32_t> ids;
    std::vector<float> confidence;
    std::vector<float> logits;
  };
  Draft draft(const Sequence& sequence, int32_t anchor);

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<PlacedWeights> weights_;  // null: where the model has them
  std::unique_ptr<StatePool> pool_;
  std::unique_ptr<Forward> forward_;
};

// The weights where ops of this backend can read them; null: where the model has them.
std::unique_ptr<PlacedWeights> placed(const Model& model, Backend& backend);

int32_t argmax(std::span<const float> row);
// Difference of rows of logits: `got` holds every position, `want` the listed ones.
struct Difference {
  double mean = 0;
  double max = 0;
  double kl = 0;                    // mean over rows of KL(want || got)
  double argmax = 0;                // share of rows with the same argmax
  bool argmax_by_gap = true;        // equal wherever want's best leads by more than 4
  std::vector<int64_t> rows_above;  // positions with a difference above the threshold
};
Difference compare(const std::vector<float>& got, const std::vector<float>& want,
                   const std::vector<int64_t>& positions, int64_t vocabulary,
                   double threshold = 1e-4);

}  // namespace tidemill
