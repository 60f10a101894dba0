// What tests of this room share: the micro checkpoint on a backend, token lists, comparing bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "forward/forward.h"
#include "ops/placed_weights.h"
#include "ops/test_backend.h"
#include "ops/test_host_calls.h"

namespace tidemill {

// The micro checkpoint (window 32, ratios 0/2/1, pool and top-k that bite, Engram, drafter) on one
// backend with its own state.
class Bench {
 public:
  explicit Bench(int threads = 1, ReplayForm form = ReplayForm::kCompact, int64_t max_tokens = 600,
                 int64_t sequences = 6)
      : Bench(threads, form, max_tokens, sequences, make_backend) {}
  // On a backend that `make` gives for a thread team.
  template <typename Make>
  Bench(int threads, ReplayForm form, int64_t max_tokens, int64_t sequences, Make&& make)
      : team_(threads), backend_(make(team_)) {
    auto layout = StateLayout::build(model().config(), model().topology(), *backend_);
    pool_ = std::make_unique<StatePool>(
        *StatePool::create(*backend_, std::move(*layout), sequences, 16 * sequences));
    if (!backend_->host_memory()) {
      weights_ =
          std::make_unique<PlacedWeights>(*PlacedWeights::create(model().weights(), *backend_));
    }
    // Whoever reads what nobody wrote sees NaN.
    pool_->poison_free_memory();
    make_forward({.max_tokens = max_tokens, .replay_form = form});
  }
  void make_forward(ForwardOptions options) {
    if (weights_ != nullptr) options.weights = &weights_->weights();
    forward_ = std::make_unique<Forward>(*Forward::create(model(), *backend_, *pool_, options));
  }

  static const Model& model() {
    static const std::unique_ptr<Model> model =
        std::move(*Model::load(TIDEMILL_SOURCE_DIR "/tests/vectors/micro"));
    return *model;
  }
  static std::unique_ptr<Backend> make_backend(ThreadTeam& team) {
    if (testing_cuda_only()) return cuda_backend_for_tests();
    return make_host_backend(team);
  }
  // The same over memory of the host, for backends of tests that call it.
  static std::unique_ptr<Backend> make_host_backend(ThreadTeam& team) {
    if (testing_cuda_only()) return std::make_unique<HostCalls>(cuda_backend_for_tests());
    auto cpu = make_cpu_backend(team);  // any x86-64 machine with AVX2; otherwise the reference
    return cpu ? std::move(*cpu) : make_reference_backend(team);
  }

  Forward& forward() { return *forward_; }
  StatePool& pool() { return *pool_; }
  Sequence sequence() { return *pool_->acquire(); }

  // Logits of all tokens that get any, run in the given chunk sizes (the last one repeats).
  std::vector<float> run(Sequence& sequence, std::span<const int32_t> tokens,
                         std::vector<int64_t> chunks) {
    std::vector<float> all;
    size_t begin = 0;
    for (size_t i = 0; begin < tokens.size(); ++i) {
      const auto chunk = static_cast<size_t>(chunks[std::min(i, chunks.size() - 1)]);
      const size_t count = std::min(chunk, tokens.size() - begin);
      const StepItem item{&sequence, tokens.subspan(begin, count), Logits::kAll};
      const auto output = forward_->run({&item, 1});
      EXPECT_TRUE(output) << (output ? "" : output.error().message);
      if (!output) return all;
      const Rows& rows = output->logits;
      all.insert(all.end(), rows.f32(0), rows.f32(0) + rows.count * rows.width);
      begin += count;
    }
    return all;
  }

  // Confidence and logits of every draft position, fed ids that do not depend on them; those of
  // the first item.
  std::vector<float> draft(std::span<const Forward::DraftItem> items) {
    std::vector<float> out;
    EXPECT_TRUE(forward_->draft(items));
    std::vector<int32_t> previous;
    for (const auto& item : items) previous.push_back(item.anchor);
    for (int64_t k = 0; k < model().config().dspark_block_size; ++k) {
      const auto row = forward_->draft_logits(k, previous);
      EXPECT_TRUE(row);
      out.push_back(row->confidence[0]);
      out.insert(out.end(), row->logits.f32(0), row->logits.f32(0) + row->logits.width);
      for (int32_t& id : previous) id = static_cast<int32_t>(10 + k);
    }
    return out;
  }
  std::vector<float> draft(const Sequence& sequence, int32_t anchor) {
    const Forward::DraftItem item{&sequence, anchor};
    return draft({&item, 1});
  }

 private:
  ThreadTeam team_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<PlacedWeights> weights_;  // null: where the model has them
  std::unique_ptr<StatePool> pool_;
  std::unique_ptr<Forward> forward_;
};

inline std::vector<int32_t> random_tokens(int64_t count, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& id : tokens) id = static_cast<int32_t>(random() % 318);
  return tokens;
}

// Byte for byte, so that NaN and the sign of zero count.
inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline bool finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

}  // namespace tidemill
