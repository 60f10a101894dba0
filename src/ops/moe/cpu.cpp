// Router and experts of the cpu backend: tokens grouped by expert, so that an expert's weights are
// read once per call, and two runs of the team whatever the number of experts.
#include <algorithm>

#include "base/formats.h"
#include "ops/cpu_backend.h"
#include "ops/linear/cpu_amx_shape.h"

namespace tidemill {
namespace {

constexpr int64_t kBlock = kScaleBlock;  // rows of a unit: the block of the second quantisation
// Slots that a thread multiplies at once. In tiles: g and u of kAmxUnitRows channels stay in L2.
constexpr int64_t kAtOnce = kTokenBlock;
constexpr int64_t kTilesAtOnce = 256;

}  // namespace

void CpuBackend::experts(const ExpertsArgs& a) {
  const int64_t hidden = a.x.width;
  const int64_t inter = a.shared->w1.rows;
  if (hidden % kBlock != 0 || inter % kBlock != 0) return ReferenceBackend::experts(a);

  const bool tiles = reads_tiles();
  const int64_t at_once = tiles ? kTilesAtOnce : kAtOnce;
  Assignments& work = assignments_;
  work.assign(a, at_once);
  const int64_t slots = work.slots();
  const int64_t parts = std::ssize(work.parts());
  Activations kind;
  TokenRows x = prepare(a.x, true, x_, kind);  // Q8 always fits
  x.index = work.tokens();
  x = pack(x, hidden, work.part_begin());
  const int64_t element = kernels_.activation_bytes;
  const int64_t stride = tiles ? inter * element : prepared_stride(inter);
  std::byte* activations = hidden_.bytes(slots * stride);
  const bool many = slots >= kAtOnce;
  const int64_t threads = context_.team.size();
  const int64_t large_units = inter / kAmxUnitRows * parts;
  const bool large =
      tiles && many && inter % kAmxUnitRows == 0 && large_units >= kAmxUnitsPerThread * threads;
  const int64_t channels = large ? kAmxUnitRows : kBlock;
  // A thread's g, u and, as half as much, what it packs; or blocks of outputs.
  constexpr int64_t kPanels = 8;
  const int64_t panel = at_once * channels;  // floats
  const int64_t panel_bytes =
      std::max(3 * panel, kPanels * kBlock * at_once) * int64_t{sizeof(float)};
  const int64_t thread_bytes = kMatmulScratch + panel_bytes;
  std::byte* thread_memory = thread_.bytes(threads * thread_bytes);
  const int64_t bytes = slots * inter * hidden / 2;

  // w1, w3 and SwiGLU: a unit is some blocks of channels of one part; those of a part follow one
  // another, so that its activations stay in L2, and many stay with some of the threads.
  std::atomic<bool> ordinary = true;
  const int64_t channel_units = inter / channels;
  const auto activate = [&](int64_t unit, int rank) {
    const Assignments::Part& part = work.parts()[static_cast<size_t>(unit / channel_units)];
    const int64_t channel = unit % channel_units * channels;
    std::byte* scratch = thread_memory + rank * thread_bytes;
    auto* g = reinterpret_cast<float*>(scratch + kMatmulScratch);
    float* u = g + panel;
    MatmulArgs m{.w = &part.expert->w1, .row_begin = channel, .row_end = channel + channels};
    m.x = x.part(part.slot, part.count);
    m.ordinary_x = kind == Activations::kOrdinary;
    m.scratch = scratch;
    m.y = g;
    m.y_stride = channels;
    kernels_.matmul(m);
    m.w = &part.expert->w3;
    m.y = u;
    kernels_.matmul(m);
    std::byte* to = activations + part.slot * stride + channel * element;
    std::byte* rows = tiles ? reinterpret_cast<std::byte*>(u + panel) : to;
    const int64_t row_stride = tiles ? channels * element : stride;
    for (int64_t i = 0; i < part.count; ++i) {
      for (int64_t c = 0; c < channels; c += kBlock) {
        if (!kernels_.swiglu(g + i * channels + c, u + i * channels + c, a.swiglu_limit,
                             work.weights()[part.slot + i], rows + i * row_stride + c * element)) {
          ordinary.store(false, std::memory_order_relaxed);
        }
      }
    }
    for (int64_t i = 0; tiles && i < part.count; i += kTokenTile) {
      const int64_t n = std::min(kTokenTile, part.count - i);
      kernels_.pack({.data = rows + i * row_stride, .stride = row_stride, .count = n}, channels,
                    activations + (part.slot + i) * stride + channel * element * n);
    }
  };
  // A node reads its half of every expert; threads of one node, neighbouring channels.
  const int64_t groups = many || context_.team.nodes().parts().size() > 1 ? parts : 1;
  for_each_unit(groups, parts / groups * channel_units, 2 * bytes, activate);

  // w2 and the sum: a unit is one block of outputs of every token, or several if there are so many
  // slots that reading them takes long: then a thread has about two units.
  const int64_t share = hidden / kBlock / (2 * threads);
  const int64_t outputs = kBlock * (many ? std::clamp(share, int64_t{1}, kPanels) : 1);
  for_each_unit((hidden + outputs - 1) / outputs, bytes, [&](int64_t unit, int rank) {
    const int64_t row = unit * outputs;
    const int64_t width = std::min(outputs, hidden - row);
    std::byte* scratch = thread_memory + rank * thread_bytes;
    auto* product = reinterpret_cast<float*>(scratch + kMatmulScratch);
    for (int64_t t = 0; t < a.y.count; ++t) std::fill_n(a.y.f32(t) + row, width, 0.0f);
    for (const Assignments::Part& part : work.parts()) {
      MatmulArgs m{.w = &part.expert->w2, .row_begin = row, .row_end = row + width};
      m.x = {.data = activations + part.slot * stride, .stride = stride, .count = part.count};
      m.scratch = scratch;
      m.ordinary_x = ordinary.load(std::memory_order_relaxed);
      m.y = product;
      m.y_stride = width;
      kernels_.matmul(m);
      for (int64_t i = 0; i < part.count; ++i) {
        float* y = a.y.f32(work.tokens()[part.slot + i]) + row;
        for (int64_t n = 0; n < width; ++n) y[n] += product[i * width + n];
      }
    }
    for (int64_t t = 0; t < a.y.count; ++t) kernels_.round(a.y.f32(t) + row, width);
  });
}

void CpuBackend::route(const RouteArgs& a) {
  const int64_t experts = a.gate->rows;
  float* logits = hidden_.floats(a.x.count * experts);
  linear({.w = a.gate, .x = a.x, .y = {logits, a.x.count, experts, experts}, .f32_output = true});
  for_each_row(a.x.count, experts * 32, [&](int64_t t) {
    const bool image = a.image != nullptr && a.image[t] != 0 && a.bias_vl.data != nullptr;
    const float* bias = image ? a.bias_vl.data : a.bias.data;
    float* score = logits + t * experts;
    for (int64_t e = 0; e < experts; ++e) score[e] = reference::sqrt_softplus(score[e]);
    int32_t* ids = a.ids + t * a.topk;
    float total = 0;
    for (int64_t i = 0; i < a.topk; ++i) {
      int64_t best = -1;
      for (int64_t e = 0; e < experts; ++e) {
        if (best >= 0 && !(score[e] + bias[e] > score[best] + bias[best])) continue;
        if (std::find(ids, ids + i, static_cast<int32_t>(e)) == ids + i) best = e;
      }
      ids[i] = static_cast<int32_t>(best);
      total += score[best];
    }
    for (int64_t i = 0; i < a.topk; ++i) {
      a.weights[t * a.topk + i] = score[ids[i]] / (total + 1e-20f) * a.scale;
    }
  });
}

}  // namespace tidemill
