// Index selection of the cpu backend: scores in chunks of entries over the threads, then the
// selection of every token.
#include <algorithm>
#include <limits>

#include "base/formats.h"
#include "ops/cpu_backend.h"
#include "ops/index_select/cpu_index.h"
#include "ops/index_select/cpu_select.h"

namespace tidemill {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kTokensAtOnce = 8;       // tokens of one sequence that share widened keys
constexpr int64_t kScoreFloats = 4 << 20;  // bound of the score memory, unless one token needs more

// bf16 bits in an order where greater floats have greater keys; both zeros are one key.
uint16_t order_key(float score) {
  const uint16_t bits = bf16_from_float(score + 0.0f);
  return static_cast<uint16_t>((bits & 0x8000u) != 0 ? ~bits : bits | 0x8000u);
}

// The candidate pool of a token from its scores: blocks by their best entry, the newest always in.
void build_pool(const IndexSelectArgs& a, const float* score, int64_t visible, int32_t* pool) {
  const int64_t blocks = (visible + a.pool_block - 1) / a.pool_block;
  std::vector<float> best(static_cast<size_t>(blocks));
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * a.pool_block;
    const int64_t end = std::min(begin + a.pool_block, visible);
    float largest = kMinusInfinity;
    for (int64_t j = begin; j < end; ++j) largest = std::max(largest, score[j]);
    best[static_cast<size_t>(b)] = largest;
  }
  if (blocks > 0) best.back() = std::numeric_limits<float>::infinity();
  select_largest(best.data(), blocks, a.pool_topk, pool);
}

// Entries that a token scores, ascending: all visible ones, or those of its pool.
struct Candidates {
  int64_t visible = 0;
  const int32_t* pool = nullptr;
  int64_t block = 1;
  int64_t count = 0;

  Candidates(const IndexSelectArgs& a, int64_t t) : visible(a.visible[t]), count(visible) {
    if (a.pool_in == nullptr) return;
    pool = a.pool_in + t * a.pool_topk;
    block = a.pool_block;
    count = 0;
    for (int64_t i = 0; i < a.pool_topk && pool[i] >= 0; ++i) {
      count += std::clamp(visible - pool[i] * block, int64_t{0}, block);
    }
  }
  // Only the last block of a pool may be shorter.
  int64_t entry(int64_t i) const {
    return pool == nullptr ? i : pool[i / block] * block + i % block;
  }
};

}  // namespace

void select_largest(const float* score, int64_t n, int64_t k, int32_t* out) {
  int64_t found = 0;
  const auto keep = [&](int64_t j) { out[found++] = static_cast<int32_t>(j); };
  if (n <= k) {
    for (int64_t j = 0; j < n; ++j) {
      if (score[j] != kMinusInfinity) keep(j);
    }
    std::fill(out + found, out + k, -1);
    return;
  }
  // The k-th largest key, high byte first; `above` keys are greater than it.
  int64_t above = 0;
  const auto find_byte = [&](const int64_t(&count)[256]) {
    int byte = 255;
    while (byte > 0 && above + count[byte] < k) above += count[byte--];
    return static_cast<uint16_t>(byte);
  };
  int64_t high[256] = {};
  for (int64_t j = 0; j < n; ++j) ++high[order_key(score[j]) >> 8];
  const uint16_t high_byte = find_byte(high);
  int64_t low[256] = {};
  for (int64_t j = 0; j < n; ++j) {
    const uint16_t key = order_key(score[j]);
    if (key >> 8 == high_byte) ++low[key & 255];
  }
  const auto cut = static_cast<uint16_t>(high_byte << 8 | find_byte(low));
  int64_t ties = k - above;  // that still fit; the first ones are taken
  for (int64_t j = 0; j < n && found < k; ++j) {
    const uint16_t key = order_key(score[j]);
    if (key < cut || score[j] == kMinusInfinity) continue;
    if (key > cut || ties-- > 0) keep(j);
  }
  std::fill(out + found, out + k, -1);
}

void CpuBackend::index_select(const IndexSelectArgs& a) {
  const int64_t dim = a.keys.format.width;
  if (a.q.count == 0) return;
  if (dim % 32 != 0 || (a.pool_in != nullptr && a.pool_out != nullptr)) {
    return ReferenceBackend::index_select(a);
  }
  const int64_t tokens = a.q.count;
  int64_t longest = 0;
  for (int64_t t = 0; t < tokens; ++t) longest = std::max(longest, Candidates(a, t).count);
  const int64_t chunks = (longest + kIndexChunk - 1) / kIndexChunk;
  const int64_t stride = std::max(chunks, int64_t{1}) * kIndexChunk;
  const int64_t batch = std::clamp(kScoreFloats / stride, int64_t{1}, tokens);
  float* scores = hidden_.floats(batch * stride);
  const int64_t threads = context_.team.size();
  float* memory = thread_.floats(threads * kIndexChunk * dim);

  for (int64_t begin = 0; begin < tokens; begin += batch) {
    const int64_t end = std::min(begin + batch, tokens);
    // Groups of neighbours that see the same keys; a pool is each token's own.
    std::vector<int64_t> group_begin;
    for (int64_t t = begin; t < end; ++t) {
      if (group_begin.empty() || a.pool_in != nullptr || t - group_begin.back() == kTokensAtOnce ||
          a.sequence[t] != a.sequence[group_begin.back()]) {
        group_begin.push_back(t);
      }
    }
    const auto groups = static_cast<int64_t>(group_begin.size());
    group_begin.push_back(end);
    const int64_t bytes = (end - begin) * longest * a.heads * dim;
    for_each_unit(groups * chunks, bytes, [&](int64_t unit, int rank) {
      const auto group = static_cast<size_t>(unit / chunks);
      const int64_t first = unit % chunks * kIndexChunk;
      const int64_t t = group_begin[group];
      const int64_t last = group_begin[group + 1] - 1;
      int64_t count = 0;  // of the token of the group that sees most
      for (int64_t i = t; i <= last; ++i) count = std::max(count, Candidates(a, i).count);
      const Candidates candidates(a, t);
      const std::byte* rows[kIndexChunk];
      const int64_t n = std::min(kIndexChunk, count - first);
      if (n <= 0) return;
      for (int64_t i = 0; i < n; ++i) {
        rows[i] = a.keys.row(a.sequence[t], candidates.entry(first + i));
      }
      IndexScoresArgs args;
      args.keys = {a.keys.format, rows, n};
      args.heads = a.heads;
      args.dim = dim;
      args.tokens = last - t + 1;
      args.q = a.q.f32(t);
      args.q_stride = a.q.stride;
      args.weight = a.weight.f32(t);
      args.weight_stride = a.weight.stride;
      args.score = scores + (t - begin) * stride + first;
      args.score_stride = stride;
      args.memory = memory + rank * kIndexChunk * dim;
      kernels_.index_scores(args);
    });
    for_each_unit(end - begin, (end - begin) * longest, [&](int64_t unit, int) {
      const int64_t t = begin + unit;
      const Candidates candidates(a, t);
      const float* score = scores + unit * stride;
      if (a.pool_out != nullptr) {
        build_pool(a, score, candidates.count, a.pool_out + t * a.pool_topk);
      }
      int32_t* selected = a.selected + t * a.topk;
      select_largest(score, candidates.count, a.topk, selected);
      for (int64_t i = 0; i < a.topk && selected[i] >= 0; ++i) {
        selected[i] = static_cast<int32_t>(candidates.entry(selected[i]));
      }
    });
  }
}

}  // namespace tidemill
