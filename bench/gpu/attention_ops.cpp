#include "attention_ops.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>

#include "device.h"
#include "random.h"

namespace tidemill::gpu {
namespace {

constexpr int64_t kPageTokens = 128;
constexpr int64_t kTopk = 512;

// Packed rows of random values, one after the other.
Memory packed_rows(const RowFormat& format, int64_t count) {
  Memory result = allocate(count * format.bytes());
  const int64_t pass = std::min<int64_t>(count, 1 << 18);
  const DeviceRows x = activations(pass, format.width);
  std::vector<int64_t> offset(static_cast<size_t>(pass));
  for (size_t i = 0; i < offset.size(); ++i) {
    offset[i] = static_cast<int64_t>(i) * format.bytes();
  }
  const Memory offsets = upload(offset);
  cuda::Launch launch;
  for (int64_t first = 0; first < count; first += pass) {
    cuda::store_rows(launch, {.x = x.view.first(std::min(pass, count - first)),
                              .format = format,
                              .base = result.get(),
                              .add = first * format.bytes(),
                              .offset = as<int64_t>(offsets)});
  }
  require(cudaGetLastError(), "rows of a cache");
  require(cudaStreamSynchronize(nullptr), "rows of a cache");
  return result;
}

// Rows of sequences with a whole context, their pages scattered over a pool.
struct Cache {
  Memory rows, table, table_begin;
  PagedRows view;

  // The pool has room for so many whole contexts.
  Cache(RowFormat format, int64_t context, int64_t ratio, int64_t sequences,
        int64_t pool_contexts) {
    const int64_t per_page = kPageTokens / ratio;
    const int64_t of_sequence = context / kPageTokens;
    const int64_t pool_pages = pool_contexts * of_sequence;
    Random random(11);
    std::vector<int32_t> pages;
    std::vector<int64_t> begin;
    for (int64_t s = 0; s < sequences; ++s) {
      begin.push_back(s * of_sequence);
      while (std::ssize(pages) < (s + 1) * of_sequence) {
        const std::vector<int32_t> all = random.permutation(pool_pages);
        pages.insert(pages.end(), all.begin(), all.end());
      }
    }
    rows = packed_rows(format, pool_pages * per_page);
    table = upload(pages);
    table_begin = upload(begin);
    view = {.base = rows.get(),
            .block_bytes = per_page * format.bytes(),
            .offset = 0,
            .rows_per_block = per_page,
            .format = format,
            .table = as<int32_t>(table),
            .table_begin = as<int64_t>(table_begin)};
  }
};

// 0, 1, ...: each token of a sequence of its own; or one for all.
Memory sequence_of(int64_t rows, bool own) {
  std::vector<int32_t> sequence(static_cast<size_t>(rows), 0);
  if (own) std::iota(sequence.begin(), sequence.end(), 0);
  return upload(sequence);
}

// ---- attend

class Attend {
 public:
  Attend(int64_t context, bool with_entries) : context_(context), with_entries_(with_entries) {}

  Prepared operator()(int64_t tokens) {
    const bool decode = tokens <= kMostDecode;
    const int64_t rows = decode ? kSequences : tokens;  // of all turns
    std::vector<int64_t> begin, end, step_start, step_row, ring_offset;
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t position = decode ? context_ - 1 : context_ - tokens + t;
      begin.push_back(position + 1 - kWindow);
      end.push_back(position + 1);
    }
    for (int64_t s = 0; s < kSequences; ++s) {
      step_start.push_back(decode ? context_ - 1 : context_ - tokens);
      step_row.push_back(decode ? s : 0);
      ring_offset.push_back(s * kRing * kWindowFormat.bytes());
    }
    // Whatever a list names is there, though not yet visible to all tokens of a long prompt.
    const Memory selected = upload(Random(3).lists(rows, kTopk, context_));
    const Memory sequence = sequence_of(rows, decode);
    const Memory begins = upload(begin);
    const Memory ends = upload(end);
    const Memory starts = upload(step_start);
    const Memory step_rows = upload(step_row);
    const Memory offsets = upload(ring_offset);
    const DeviceRows q = activations(tokens, kHeads * kDim, 0.3f, Element::kBf16);
    const DeviceRows out = empty_rows(tokens, kHeads * kDim, Element::kBf16);
    // Rows that several tokens of one sequence share come from memory once.
    const int64_t windows = decode ? tokens * kWindow : tokens + kWindow - 1;
    const int64_t entries = decode ? tokens * kTopk : std::min(tokens * kTopk, context_);
    const int64_t cached =
        windows * kWindowFormat.bytes() + (with_entries_ ? entries * kEntryFormat.bytes() : 0);
    const int64_t keys = kWindow + (with_entries_ ? kTopk : 0);
    return {[=, this, row = int64_t{0}](cuda::Launch& launch) mutable {
              cuda::attend(launch, {.q = q.view,
                                    .out = out.view,
                                    .heads = kHeads,
                                    .sink = {as<float>(sink_), kHeads},
                                    .sequence = as<int32_t>(sequence) + row,
                                    .window_begin = as<int64_t>(begins) + row,
                                    .window_end = as<int64_t>(ends) + row,
                                    .window_format = kWindowFormat,
                                    .fresh = fresh_.get(),
                                    .step_start = as<int64_t>(starts),
                                    .step_row = as<int64_t>(step_rows),
                                    .ring_base = rings_.get(),
                                    .ring_offset = as<int64_t>(offsets),
                                    .ring_rows = kRing,
                                    .entries = with_entries_ ? entries_.view : PagedRows{},
                                    .selected = as<int32_t>(selected) + row * kTopk,
                                    .topk = kTopk});
              row = (row + tokens) % rows;
            },
            {.bytes = static_cast<double>(cached) + size_of(q.view) + size_of(out.view),
             .tensor_flops = 4.0 * static_cast<double>(tokens * kHeads * kDim * keys)}};
  }

 private:
  static constexpr int64_t kHeads = 64;
  static constexpr int64_t kDim = 512;
  static constexpr int64_t kWindow = 128;
  static constexpr int64_t kRing = kWindow + 128;
  static constexpr int64_t kSequences = 1024;  // that take turns in decode
  static constexpr RowFormat kWindowFormat{RowKind::kQ8, kDim};
  static constexpr RowFormat kEntryFormat{RowKind::kQ4Entry, kDim};

  int64_t context_;
  bool with_entries_;
  Cache entries_{kEntryFormat, context_, 1, kSequences, 8};
  Memory rings_ = packed_rows(kWindowFormat, kSequences* kRing);
  Memory fresh_ = packed_rows(kWindowFormat, 8192);
  Memory sink_ = upload(std::vector<float>(kHeads, 0.5f));
};

// ---- index_select

// Layers 2, 8 and 14 have an entry for two tokens, layer 20 one for each and builds the pool, from
// which the four after it select.
enum class Pool { kNone, kBuild, kRead };

class IndexSelect {
 public:
  IndexSelect(int64_t context, int64_t ratio, Pool pool)
      : context_(context),
        ratio_(ratio),
        pool_(pool),
        keys_(kFormat, context, ratio, kMostDecode, kMostDecode) {}

  Prepared operator()(int64_t tokens) {
    const bool decode = tokens <= kMostDecode;
    const int64_t rows = decode ? kMostDecode : tokens;  // of all turns
    const int64_t entries = context_ / ratio_;
    std::vector<int64_t> visible;
    for (int64_t t = 0; t < rows; ++t) {
      visible.push_back(decode ? entries : (context_ - tokens + t + 1) / ratio_);
    }
    const Memory visibles = upload(visible);
    const Memory sequence = sequence_of(rows, decode);
    const DeviceRows q = activations(tokens, kHeads * kDim);
    const DeviceRows weight = activations(tokens, kHeads, 0.02f);
    cuda::Launch once;
    cuda::round_rows(once, {.x = q.view, .kind = kFormat.kind, .group = kDim});
    require(cudaStreamSynchronize(nullptr), "queries");
    const Memory selected = allocate(tokens * kTopk * 4);
    const bool pooled = pool_ != Pool::kNone;
    const Memory pool_out = pool_ == Pool::kBuild ? allocate(tokens * kPoolBlocks * 4) : nullptr;
    const Memory pool_in =  // of blocks that all tokens see
        pool_ == Pool::kRead
            ? upload(Random(5).lists(rows, kPoolBlocks, (context_ - tokens) / kPoolBlock))
            : nullptr;
    const int64_t scored = pool_ == Pool::kRead ? kPoolBlock * kPoolBlocks : entries;
    const int64_t read = decode ? tokens * scored : std::min(tokens * scored, entries);
    return {[=, this, row = int64_t{0}](cuda::Launch& launch) mutable {
              cuda::index_select(launch, {.q = q.view,
                                          .weight = weight.view,
                                          .heads = kHeads,
                                          .keys = keys_.view,
                                          .sequence = as<int32_t>(sequence) + row,
                                          .visible = as<int64_t>(visibles) + row,
                                          .most_visible = entries,
                                          .topk = kTopk,
                                          .selected = as<int32_t>(selected),
                                          .pool_block = pooled ? kPoolBlock : 0,
                                          .pool_topk = pooled ? kPoolBlocks : 0,
                                          .pool_out = as<int32_t>(pool_out),
                                          .pool_in = pool_in == nullptr ? nullptr
                                                                        : as<int32_t>(pool_in) +
                                                                              row * kPoolBlocks});
              row = (row + tokens) % rows;
            },
            {.bytes =
                 static_cast<double>(read * kFormat.bytes() + tokens * kTopk * 4) + size_of(q.view),
             .tensor_flops = 2.0 * static_cast<double>(tokens * kHeads * kDim * scored)}};
  }

 private:
  static constexpr int64_t kHeads = 32;
  static constexpr int64_t kDim = 128;
  static constexpr int64_t kPoolBlock = 8;
  static constexpr int64_t kPoolBlocks = 2048;
  static constexpr RowFormat kFormat{RowKind::kQ4Index, kDim};

  int64_t context_;
  int64_t ratio_;
  Pool pool_;
  Cache keys_;
};

}  // namespace

std::vector<Case> attention_cases(int64_t context) {
  return {with_weights<Attend>("attend", context, true),
          with_weights<Attend>("attend_window", context, false),
          with_weights<IndexSelect>("index_half", context, 2, Pool::kNone),
          with_weights<IndexSelect>("index_build", context, 1, Pool::kBuild),
          with_weights<IndexSelect>("index_pool", context, 1, Pool::kRead)};
}

}  // namespace tidemill::gpu
