#include "ops.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "attention_ops.h"
#include "device.h"
#include "random.h"

namespace tidemill::gpu {
namespace {

constexpr int64_t kBeyondL2 = int64_t{256} << 20;  // bytes of weights that take turns
constexpr int64_t kHidden = 5120;
constexpr int64_t kStreams = 4;

// Matrices of one shape, enough of them that none is still in the L2 cache when its turn comes.
class Turns {
 public:
  Turns(WeightFormat format, int64_t rows, int64_t cols) {
    for (int64_t bytes = 0; bytes < kBeyondL2; bytes += bytes_of(matrices_.back().view)) {
      matrices_.push_back(weights(format, rows, cols));
    }
  }
  const Matrix& next() { return matrices_[turn_++ % matrices_.size()].view; }
  double bytes() const { return static_cast<double>(bytes_of(matrices_[0].view)); }

 private:
  std::vector<DeviceMatrix> matrices_;
  size_t turn_ = 0;
};

struct LinearShape {
  const char* name;
  WeightFormat format;
  int64_t rows, cols, groups;
  bool quantise, f32;
  int64_t most_tokens;
  Element x = Element::kF32;
  Element y = Element::kF32;
};

class Linear {
 public:
  explicit Linear(const LinearShape& s) : s_(s), turns_(s.format, s.rows, s.cols) {}

  Prepared operator()(int64_t tokens) {
    const DeviceRows x = activations(tokens, s_.cols * s_.groups, 1.0f, s_.x);
    const DeviceRows y = empty_rows(tokens, s_.rows, s_.y);
    return {[this, x, y](cuda::Launch& launch) {
              cuda::linear(launch, {.w = &turns_.next(),
                                    .x = x.view,
                                    .y = y.view,
                                    .groups = s_.groups,
                                    .quantise_input = s_.quantise,
                                    .f32_output = s_.f32});
            },
            {.bytes = turns_.bytes() + size_of(x.view) + size_of(y.view),
             .tensor_flops = 2.0 * static_cast<double>(tokens * s_.rows * s_.cols)}};
  }

 private:
  LinearShape s_;
  Turns turns_;
};

// ---- experts

constexpr int64_t kExperts = 384;
constexpr int64_t kTopk = 6;
constexpr int64_t kInter = 2304;

// For each of `rows` tokens kTopk different experts.
std::vector<int32_t> random_experts(int64_t rows) {
  Random random(7);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < rows; ++t) {
    while (std::ssize(ids) < (t + 1) * kTopk) {
      const int32_t e = random.below(kExperts);
      if (std::find(ids.begin() + t * kTopk, ids.end(), e) == ids.end()) ids.push_back(e);
    }
  }
  return ids;
}

// How many different experts `tokens` consecutive tokens choose, on average.
double touched_experts(const std::vector<int32_t>& ids, int64_t tokens) {
  double touched = 0;
  double groups = 0;
  for (auto first = ids.begin(); first != ids.end(); first += tokens * kTopk) {
    std::vector<bool> seen(kExperts);
    std::for_each(first, first + tokens * kTopk,
                  [&](int32_t e) { seen[static_cast<size_t>(e)] = true; });
    touched += static_cast<double>(std::count(seen.begin(), seen.end(), true));
    ++groups;
  }
  return touched / groups;
}

// All routed experts of one layer; the shared one takes turns.
class Experts {
 public:
  Experts() {
    for (int64_t e = 0; e < kExperts; ++e) routed_.push_back(expert(WeightFormat::kFp4Row));
    for (int i = 0; i < 8; ++i) shared_.push_back(expert(WeightFormat::kFp8Block));
    table_ = upload(routed_);
  }

  Prepared operator()(int64_t tokens) {
    // Few tokens choose few experts: choices take turns too.
    const int64_t rows = std::max<int64_t>(tokens, 1024);
    const std::vector<int32_t> chosen = random_experts(rows);
    const Memory ids = upload(chosen);
    const Memory factors = upload(std::vector<float>(chosen.size(), 0.25f));
    const DeviceRows x = activations(tokens, kHidden);
    const DeviceRows y = empty_rows(tokens, kHidden);
    const double per_expert = 3 * kHidden * kInter;
    return {[this, ids, factors, x, y, tokens, rows, row = int64_t{0},
             turn = size_t{0}](cuda::Launch& launch) mutable {
              cuda::experts(launch, {.x = x.view,
                                     .experts = routed_,
                                     .table = as<const ExpertWeights>(table_),
                                     .shared = &shared_[turn++ % shared_.size()],
                                     .ids = as<int32_t>(ids) + row * kTopk,
                                     .weights = as<float>(factors) + row * kTopk,
                                     .topk = kTopk,
                                     .y = y.view});
              row = (row + tokens) % rows;
            },
            {.bytes = touched_experts(chosen, tokens) * bytes(routed_[0]) + bytes(shared_[0]) +
                      size_of(x.view) + size_of(y.view),
             .tensor_flops = 2 * per_expert * static_cast<double>(tokens * (kTopk + 1))}};
  }

 private:
  ExpertWeights expert(WeightFormat format) {
    const auto add = [&](int64_t rows, int64_t cols) {
      return matrices_.emplace_back(weights(format, rows, cols)).view;
    };
    return {add(kInter, kHidden), add(kInter, kHidden), add(kHidden, kInter)};
  }
  static double bytes(const ExpertWeights& e) {
    return static_cast<double>(bytes_of(e.w1) + bytes_of(e.w3) + bytes_of(e.w2));
  }

  std::vector<DeviceMatrix> matrices_;
  std::vector<ExpertWeights> routed_, shared_;
  Memory table_;
};

class Route {
 public:
  Prepared operator()(int64_t tokens) {
    const DeviceRows x = activations(tokens, kHidden, 0.05f);
    const Memory ids = allocate(tokens * kTopk * 4);
    const Memory factors = allocate(tokens * kTopk * 4);
    return {[this, x, ids, factors](cuda::Launch& launch) {
              cuda::route(launch, {.x = x.view,
                                   .gate = &gates_.next(),
                                   .bias = {as<float>(bias_), kExperts},
                                   .topk = kTopk,
                                   .scale = 1.5f,
                                   .ids = as<int32_t>(ids),
                                   .weights = as<float>(factors)});
            },
            {.bytes = gates_.bytes() + size_of(x.view),
             .tensor_flops = 2.0 * static_cast<double>(tokens * kExperts * kHidden)}};
  }

 private:
  Turns gates_{WeightFormat::kBf16, kExperts, kHidden};
  Memory bias_ = upload(std::vector<float>(kExperts, 0.0f));
};

// ---- hyper-connections

class HcMix {
 public:
  Prepared operator()(int64_t tokens) {
    const DeviceRows h = activations(tokens, kWidth);
    const DeviceRows pre = empty_rows(tokens, kStreams);
    const DeviceRows post = empty_rows(tokens, kStreams);
    const DeviceRows comb = empty_rows(tokens, kStreams * kStreams);
    return {[this, h, pre, post, comb](cuda::Launch& launch) {
              const HcWeights w{
                  turns_.next(), {as<float>(base_), kCoefficients}, {as<float>(scale_), 3}};
              cuda::hc_mix(launch, {.weights = &w,
                                    .h = h.view,
                                    .streams = kStreams,
                                    .norm_eps = 1e-20f,
                                    .hc_eps = 1e-6f,
                                    .pre = pre.view,
                                    .post = post.view,
                                    .comb = comb.view});
            },
            {.bytes = turns_.bytes() + size_of(h.view),
             .f32_flops = 2.0 * static_cast<double>(tokens * (kCoefficients + 1) * kWidth)}};
  }

 private:
  static constexpr int64_t kCoefficients = (2 + kStreams) * kStreams;
  static constexpr int64_t kWidth = kStreams * kHidden;
  Turns turns_{WeightFormat::kF32, kCoefficients, kWidth};
  Memory base_ = upload(std::vector<float>(kCoefficients, 0.1f));
  Memory scale_ = upload(std::vector<float>(3, 1.0f));
};

Prepared collapse_norm(int64_t tokens) {
  const DeviceMatrix norm = weights(WeightFormat::kBf16, 1, kHidden);
  const DeviceRows h = activations(tokens, kStreams * kHidden);
  const DeviceRows pre = activations(tokens, kStreams);
  const DeviceRows x = empty_rows(tokens, kHidden);
  return {[norm, h, pre, x](cuda::Launch& launch) {
            cuda::collapse_norm(launch, {.h = h.view,
                                         .streams = kStreams,
                                         .pre = pre.view,
                                         .norm = {as<uint16_t>(norm.memory), kHidden},
                                         .eps = 1e-20f,
                                         .collapsed = {},
                                         .x = x.view});
          },
          {.bytes = size_of(h.view) + size_of(x.view)}};
}

Prepared expand(int64_t tokens) {
  const DeviceRows h = activations(tokens, kStreams * kHidden);
  const DeviceRows y = activations(tokens, kHidden);
  const DeviceRows post = activations(tokens, kStreams);
  // Small: streams are changed in place and must stay numbers.
  const DeviceRows comb = activations(tokens, kStreams * kStreams, 0.1f);
  return {
      [h, y, post, comb](cuda::Launch& launch) {
        cuda::expand(
            launch,
            {.h = h.view, .streams = kStreams, .y = y.view, .post = post.view, .comb = comb.view});
      },
      {.bytes = 2 * size_of(h.view) + size_of(y.view)}};
}

}  // namespace

std::vector<Case> cases(int64_t context) {
  using enum WeightFormat;
  std::vector<Case> all;
  for (const LinearShape& shape :
       {LinearShape{"wq_a", kFp8Block, 1280, 5120, 1, true, false, 8192},
        {"wq_b", kFp8Block, 32768, 1280, 1, true, false, 8192, Element::kF32, Element::kBf16},
        {"wkv", kFp8Block, 512, 5120, 1, true, false, 8192},
        {"wo_a", kFp8Block, 8192, 4096, 8, false, false, 8192, Element::kBf16, Element::kBf16},
        {"wo_b", kFp8Block, 5120, 8192, 1, true, false, 8192, Element::kBf16},
        {"head", kBf16, 129280, 5120, 1, false, true, 512},
        {"gate", kBf16, 384, 5120, 1, false, true, 8192}}) {
    all.push_back(with_weights<Linear>(shape.name, shape));
    all.back().most_tokens = shape.most_tokens;
  }
  all.push_back(with_weights<Route>("route"));
  all.push_back(with_weights<Experts>("experts"));
  for (Case& c : attention_cases(context)) all.push_back(std::move(c));
  all.push_back(with_weights<HcMix>("hc_mix"));
  all.push_back({"collapse_norm", 8192, [] { return collapse_norm; }});
  all.push_back({"expand", 8192, [] { return expand; }});
  return all;
}

}  // namespace tidemill::gpu
