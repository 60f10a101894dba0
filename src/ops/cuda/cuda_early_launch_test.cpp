// Kernels that begin before the one before them has ended, on streams that part and meet: a layer's
// ops as a decode step has them, against the same ops with a wait after each.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "ops/test_backend.h"
#include "ops/test_inputs.h"

namespace tidemill {
namespace {

constexpr int64_t kHidden = 5120;
constexpr int64_t kStreams = 4;
constexpr int64_t kLatent = 1280;
constexpr int64_t kHeads = 16;
constexpr int64_t kHeadDim = 512;
constexpr int64_t kQuery = kHeads * kHeadDim;
constexpr int64_t kGroups = 8;
constexpr int64_t kOut = 1024;
constexpr int64_t kExperts = 32;
constexpr int64_t kInter = 256;
constexpr int64_t kTopk = 6;
constexpr int64_t kMostTokens = 40;
constexpr int64_t kWindow = 128;
constexpr RowFormat kRow{RowKind::kQ8, kHeadDim};
constexpr int kLayers = 50;

// A layer, and the memory that it works on. Its attention sees a window: of its ring, as the layer
// before left it, and of this step's rows.
class Layer {
 public:
  explicit Layer(Backend& backend) : backend_(backend) {
    for (int64_t e = 0; e <= kExperts; ++e) {
      const auto format = e < kExperts ? WeightFormat::kFp4Row : WeightFormat::kFp8Block;
      experts_.push_back({matrix(format, kInter, kHidden), matrix(format, kInter, kHidden),
                          matrix(format, kHidden, kInter)});
    }
    table_ = upload(experts_);
    for (HcWeights& hc : hc_) {
      hc = {matrix(WeightFormat::kF32, (2 + kStreams) * kStreams, kStreams * kHidden),
            vector<F32Vector>(in_.normals((2 + kStreams) * kStreams, 0.1f)),
            vector<F32Vector>(in_.normals(3, 1.0f))};
    }
    first_ = in_.activations(kMostTokens, kStreams * kHidden).data;
    std::vector<float> rotation;
    for (int64_t i = 0; i < kMostTokens * 64; ++i) rotation.push_back(in_.uniform(-1, 1));
    rotation_ = {upload(rotation), kMostTokens, 64, 64};
    std::vector<int64_t> begin, end, packed;
    for (int64_t t = 0; t < kMostTokens; ++t) {
      begin.push_back(t + 1);  // positions from kWindow on are this step's
      end.push_back(kWindow + t + 1);
      packed.push_back(t * kRow.bytes());
    }
    window_begin_ = upload(begin);
    window_end_ = upload(end);
    packed_ = upload(packed);
    sequence_ = upload(std::vector<int32_t>(kMostTokens, 0));
    step_start_ = upload(std::vector<int64_t>{kWindow});
    zero_ = upload(std::vector<int64_t>{0});
  }

  void reset() {
    const std::vector<std::byte> empty(static_cast<size_t>(kWindow * kRow.bytes()));
    backend_.copy(ring_, empty.data(), std::ssize(empty));
    backend_.copy(h_.data, first_.data(), std::ssize(first_) * 4);
    const std::vector<float> pre(static_cast<size_t>(kMostTokens * kStreams), 0.25f);
    backend_.copy(pre_[0].data, pre.data(), std::ssize(pre) * 4);
  }

  // Calls `after` behind each op.
  void run(int64_t tokens, const std::function<void()>& after) {
    const auto of = [&](const Rows& rows) { return rows.first(tokens); };
    const auto linear = [&](const Matrix& w, const Rows& x, const Rows& y, int64_t groups = 1) {
      backend_.linear({.w = &w, .x = x, .y = y, .groups = groups, .quantise_input = groups == 1});
      after();
    };
    // Each half is collapsed by what the half before it has made.
    const auto mix = [&](int half) {
      backend_.beside(0, tokens, [&] {
        backend_.hc_mix({.weights = &hc_[half],
                         .h = of(h_),
                         .norm_eps = 1e-20f,
                         .hc_eps = 1e-6f,
                         .pre = of(pre_[1 - half]),
                         .post = of(post_),
                         .comb = of(comb_)});
        after();
      });
      backend_.collapse_norm({.h = of(h_),
                              .pre = of(pre_[half]),
                              .norm = norm_,
                              .eps = 1e-20f,
                              .collapsed = {},
                              .x = of(x_)});
      after();
    };
    const auto norm = [&](const Bf16Vector& w, const Rows& x, const Rows& y) {
      backend_.rms_norm({.x = x, .weight = w, .eps = 1e-20f, .y = y});
      after();
    };
    const auto expand = [&] {
      backend_.join(0);
      backend_.expand({.h = of(h_), .y = of(y_), .post = of(post_), .comb = of(comb_)});
      after();
    };
    mix(0);
    backend_.beside(1, tokens, [&] {
      linear(wkv_, of(x_), of(kv_));
      norm(kv_norm_, of(kv_), of(kv_));
      backend_.round_rows({.x = of(kv_), .kind = RowKind::kQ4Index, .group = kHeadDim});
      after();
      backend_.store_rows({.x = of(kv_), .format = kRow, .base = fresh_, .offset = packed_});
      after();
    });
    backend_.beside(2, tokens, [&] { linear(weigh_, of(x_), of(weight_)); });
    linear(wq_a_, of(x_), of(latent_));
    norm(q_norm_, of(latent_), of(latent_));
    backend_.beside(2, tokens, [&] { linear(index_, of(latent_), of(key_)); });
    linear(wq_b_, of(latent_), of(q_));
    backend_.rope({.x = of(q_), .heads = kHeads, .table = of(rotation_)});
    after();
    backend_.join(1);
    backend_.join(2);
    // Part of the query, so that all is used.
    norm(kv_norm_, of(weight_), of(q_).slice(0, kHeadDim));
    norm(kv_norm_, of(key_), of(q_).slice(kHeadDim, kHeadDim));
    backend_.attend({.q = of(q_),
                     .out = of(mixed_),
                     .heads = kHeads,
                     .sink = sink_,
                     .sequence = sequence_,
                     .window_begin = window_begin_,
                     .window_end = window_end_,
                     .window_format = kRow,
                     .fresh = fresh_,
                     .step_start = step_start_,
                     .step_row = zero_,
                     .ring_base = ring_,
                     .ring_add = 0,
                     .ring_offset = zero_,
                     .ring_rows = kWindow,
                     .entries = {}});
    after();
    backend_.scatter_rows({.rows = fresh_,
                           .count = tokens,
                           .row_bytes = kRow.bytes(),
                           .base = ring_,
                           .offset = packed_});
    after();
    linear(wo_a_, of(mixed_), of(grouped_), kGroups);
    linear(wo_b_, of(grouped_), of(y_));
    expand();
    mix(1);
    backend_.route({.x = of(x_),
                    .gate = &gate_,
                    .bias = bias_,
                    .bias_vl = {},
                    .topk = kTopk,
                    .scale = 1.5f,
                    .ids = ids_,
                    .weights = weights_});
    after();
    backend_.experts({.x = of(x_),
                      .experts = std::span(experts_).first(kExperts),
                      .table = table_,
                      .shared = &experts_.back(),
                      .ids = ids_,
                      .weights = weights_,
                      .topk = kTopk,
                      .y = of(y_)});
    after();
    expand();
  }

  std::vector<float> result(int64_t tokens) {
    std::vector<float> h(static_cast<size_t>(tokens * h_.stride));
    backend_.copy(h.data(), h_.data, std::ssize(h) * 4);
    return h;
  }

 private:
  std::byte* allocate(int64_t bytes) {
    auto memory = backend_.allocate(bytes + 64);
    EXPECT_TRUE(memory);
    return memory_.emplace_back(std::move(*memory)).get();
  }
  template <typename T>
  T* upload(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    std::byte* to = allocate(bytes);
    backend_.copy(to, values.data(), bytes);
    return reinterpret_cast<T*>(to);
  }
  template <typename V, typename T>
  V vector(const std::vector<T>& values) {
    return {upload(values), std::ssize(values)};
  }
  Matrix matrix(WeightFormat format, int64_t rows, int64_t cols) {
    const OwnedMatrix w = in_.matrix(format, rows, cols);
    Matrix m = w.view;
    m.data = upload(std::vector<uint8_t>(w.data.begin() + 1, w.data.end()));
    if (!w.scales.empty()) m.scales = upload(w.scales);
    return m;
  }
  Rows rows(int64_t width) {
    return {allocate(kMostTokens * width * 4), kMostTokens, width, width};
  }

  Backend& backend_;
  TestInputs in_{7};
  std::vector<Backend::Buffer> memory_;
  Matrix wq_a_ = matrix(WeightFormat::kFp8Block, kLatent, kHidden);
  Matrix wq_b_ = matrix(WeightFormat::kFp8Block, kQuery, kLatent);
  Matrix wkv_ = matrix(WeightFormat::kFp8Block, kHeadDim, kHidden);
  Matrix weigh_ = matrix(WeightFormat::kFp8Block, kHeadDim, kHidden);
  Matrix index_ = matrix(WeightFormat::kFp8Block, kHeadDim, kLatent);
  Matrix wo_a_ = matrix(WeightFormat::kFp8Block, kOut, kQuery / kGroups);
  Matrix wo_b_ = matrix(WeightFormat::kFp8Block, kHidden, kOut);
  Matrix gate_ = matrix(WeightFormat::kBf16, kExperts, kHidden);
  F32Vector bias_ = vector<F32Vector>(in_.normals(kExperts, 0.1f));
  Bf16Vector norm_ = vector<Bf16Vector>(in_.bf16_normals(kHidden, 1, 0.1f));
  Bf16Vector q_norm_ = vector<Bf16Vector>(in_.bf16_normals(kLatent, 1, 0.1f));
  Bf16Vector kv_norm_ = vector<Bf16Vector>(in_.bf16_normals(kHeadDim, 1, 0.1f));
  std::vector<ExpertWeights> experts_;  // the shared one last
  const ExpertWeights* table_ = nullptr;
  HcWeights hc_[2];
  std::vector<float> first_;
  Rows rotation_;
  Rows h_{allocate(kMostTokens * (kStreams * kHidden + 16) * 4), kMostTokens, kStreams* kHidden,
          kStreams* kHidden + 16};
  Rows pre_[2] = {rows(kStreams), rows(kStreams)};
  Rows post_ = rows(kStreams), comb_ = rows(kStreams * kStreams);
  Rows x_ = rows(kHidden), latent_ = rows(kLatent), q_ = rows(kQuery);
  Rows kv_ = rows(kHeadDim), weight_ = rows(kHeadDim), key_ = rows(kHeadDim);
  Rows mixed_ = rows(kQuery), grouped_ = rows(kOut), y_ = rows(kHidden);
  F32Vector sink_ = vector<F32Vector>(in_.normals(kHeads, 1));
  std::byte* fresh_ = allocate(kMostTokens * kRow.bytes());
  std::byte* ring_ = allocate(kWindow * kRow.bytes());
  int32_t* sequence_ = nullptr;
  int64_t* window_begin_ = nullptr;
  int64_t* window_end_ = nullptr;
  int64_t* packed_ = nullptr;  // where a token's row lies among rows of the cache
  int64_t* step_start_ = nullptr;
  int64_t* zero_ = nullptr;
  int32_t* ids_ = reinterpret_cast<int32_t*>(allocate(kMostTokens * kTopk * 4));
  float* weights_ = reinterpret_cast<float*>(allocate(kMostTokens * kTopk * 4));
};

// Each layer changes what the next one reads, and all use the same scratch memory.
TEST(CudaEarlyLaunch, CannotBeSeen) {
  const auto backend = cuda_backend_for_tests();
  if (!backend) GTEST_SKIP() << "no CUDA device";
  Layer layer(*backend);
  for (const int64_t tokens : {1, 5, 9, 32, 40}) {
    const auto layers = [&](const std::function<void()>& after) {
      for (int i = 0; i < kLayers; ++i) layer.run(tokens, after);
    };
    layer.reset();
    layers([&] { ASSERT_TRUE(backend->finish()); });
    const std::vector<float> expected = layer.result(tokens);
    ASSERT_TRUE(std::all_of(expected.begin(), expected.end(), [](float x) { return x - x == 0; }));
    // Launched one by one, then captured, then from the graph.
    for (int pass = 0; pass < 4; ++pass) {
      layer.reset();
      backend->repeat({{tokens}}, [&] { layers([] {}); });
      const std::vector<float> result = layer.result(tokens);
      EXPECT_EQ(std::memcmp(expected.data(), result.data(), expected.size() * 4), 0)
          << tokens << " tokens, pass " << pass;
    }
    ASSERT_TRUE(backend->finish());
  }
}

}  // namespace
}  // namespace tidemill
