// A backend over host memory for a device: every op copies what its arguments lead to, calls the
// device's op and copies the results back. So tests that build their inputs in vectors run on a
// device as they are, slowly.
//
// Sizes come from the arguments: of caches, which only have a base address, from the lowest to the
// highest row that the op may touch. All arrays of a call lie in one piece of memory with guards of
// NaN between them; a byte that changes outside the results fails the running test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "ops/backend.h"

namespace tidemill {

// Memory of the device that calls share. With the environment variable TIDEMILL_TEST_SEPARATE every
// array is an allocation of its own instead, for compute-sanitizer.
struct DeviceMemory {
  Backend::Buffer all;
  int64_t capacity = 0;
  bool separate = std::getenv("TIDEMILL_TEST_SEPARATE") != nullptr;
};

// The arrays behind the arguments of one op.
class HostCall {
 public:
  // `bytes` from `begin` on, which is an address relative to `pointer`; run() makes the pointer the
  // device's. Nothing where it is null.
  template <typename T>
  void array(T*& pointer, const void* begin, int64_t bytes, bool written, int64_t slack = 0) {
    if (pointer == nullptr || bytes <= 0) return;
    const auto* first = static_cast<const std::byte*>(begin);
    ranges_.push_back({first, first + bytes, written, slack});
    pointers_.push_back({&pointer, first});
  }
  template <typename T>
  void in(const T*& pointer, int64_t n) {
    array(pointer, pointer, n * int64_t{sizeof(T)}, false);
  }
  template <typename T>
  void out(T*& pointer, int64_t n) {
    array(pointer, pointer, n * int64_t{sizeof(T)}, true);
  }
  void in(Rows& rows) { array(rows.data, rows.data, bytes(rows), false); }
  void out(Rows& rows) { array(rows.data, rows.data, bytes(rows), true); }
  void in(Bf16Vector& v) { in(v.data, v.size); }
  void in(F32Vector& v) { in(v.data, v.size); }
  void in(Matrix& m) {
    constexpr int64_t kSlack = 64;  // as placed weights have
    array(m.data, m.data, m.rows * m.row_bytes(), false, kSlack);
    const bool blocks = m.format == WeightFormat::kFp8Block;
    in(m.scales, (blocks ? (m.rows + 31) / 32 : m.rows) * m.scale_columns());
  }
  void in(const Matrix*& m) {
    in(matrices_.emplace_back(*m));
    m = &matrices_.back();
  }
  void in(ExpertWeights& w) { in(w.w1), in(w.w3), in(w.w2); }

  template <typename Op>
  void run(Backend& device, DeviceMemory& memory, const Op& op);

 private:
  struct Range {
    const std::byte* begin;
    const std::byte* end;
    bool written;
    int64_t slack;
    int64_t at = 0;  // in the image of all
    std::byte* device = nullptr;
    int64_t bytes() const { return end - begin; }
  };
  struct Pointer {
    void* address;            // of the pointer
    const std::byte* inside;  // the range that it belongs to
  };
  static constexpr int64_t kGuard = 256;  // and alignment

  static int64_t bytes(const Rows& r) {
    return r.count == 0 ? 0 : ((r.count - 1) * r.stride + r.width) * bytes_of(r.element);
  }
  void merge_ranges();
  bool place(Backend& device, DeviceMemory& memory, const std::vector<std::byte>& image);
  const Range& range_of(const std::byte* inside) const {
    return *std::prev(
        std::upper_bound(ranges_.begin(), ranges_.end(), inside,
                         [](const std::byte* p, const Range& range) { return p < range.begin; }));
  }

  std::vector<Range> ranges_;
  std::vector<Pointer> pointers_;
  std::deque<Matrix> matrices_;
  std::deque<Backend::Buffer> buffers_;
};

// The lowest and the highest address of some rows.
struct RowHull {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  void add(const std::byte* row, int64_t bytes) {
    begin = begin == nullptr ? row : std::min(begin, row);
    end = std::max(end, row + bytes);
  }
  int64_t bytes() const { return end - begin; }
};

// Arrays that overlap become one, so that what is changed in place is.
inline void HostCall::merge_ranges() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> merged;
  for (const Range& range : ranges_) {
    if (!merged.empty() && range.begin < merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
      merged.back().written = merged.back().written || range.written;
    } else {
      merged.push_back(range);
    }
  }
  ranges_ = std::move(merged);
}

template <typename Op>
void HostCall::run(Backend& device, DeviceMemory& memory, const Op& op) {
  merge_ranges();
  int64_t total = kGuard;
  for (Range& range : ranges_) {
    range.at = total;
    total += (range.bytes() + 2 * kGuard - 1) / kGuard * kGuard;
  }
  std::vector<std::byte> before(static_cast<size_t>(total), std::byte{0xFF});
  for (const Range& range : ranges_) {
    std::copy(range.begin, range.end, before.begin() + range.at);
  }
  if (!place(device, memory, before)) return;
  for (const Pointer& pointer : pointers_) {
    const Range& range = range_of(pointer.inside);
    uintptr_t value;
    std::memcpy(&value, pointer.address, sizeof(value));
    // The base of a cache may lie far below its first row: addresses, not pointers, are moved.
    value += reinterpret_cast<uintptr_t>(range.device) - reinterpret_cast<uintptr_t>(range.begin);
    std::memcpy(pointer.address, &value, sizeof(value));
  }
  op();
  const Status status = device.finish();
  if (!status) {
    ADD_FAILURE() << status.error().message;
    return;
  }

  std::vector<std::byte> after = before;
  if (!memory.separate) device.copy(after.data(), memory.all.get(), total);
  for (const Range& range : ranges_) {
    if (memory.separate) device.copy(after.data() + range.at, range.device, range.bytes());
    if (!range.written) continue;
    const auto size = static_cast<size_t>(range.bytes());
    std::memcpy(const_cast<std::byte*>(range.begin), after.data() + range.at, size);
    std::memcpy(before.data() + range.at, after.data() + range.at, size);
  }
  if (before == after) return;
  const int64_t at =
      std::mismatch(before.begin(), before.end(), after.begin()).first - before.begin();
  const auto behind = std::find_if(ranges_.begin(), ranges_.end(),
                                   [&](const Range& range) { return range.at > at; });
  const Range& range = *(behind == ranges_.begin() ? behind : std::prev(behind));
  ADD_FAILURE() << device.name() << " wrote outside its results, first at byte " << at - range.at
                << " of an array of " << range.bytes();
}

// Copies an image of all arrays to the device and notes where each lies.
inline bool HostCall::place(Backend& device, DeviceMemory& memory,
                            const std::vector<std::byte>& image) {
  const auto allocate = [&](int64_t bytes, Backend::Buffer& buffer) {
    auto made = device.allocate(bytes);
    if (made) buffer = std::move(*made);
    if (!made) ADD_FAILURE() << made.error().message;
    return made.has_value();
  };
  if (memory.separate) {
    for (Range& range : ranges_) {
      Backend::Buffer& buffer = buffers_.emplace_back();
      if (!allocate(range.bytes() + range.slack, buffer)) return false;
      range.device = buffer.get();
      device.copy(range.device, image.data() + range.at, range.bytes());
    }
    return true;
  }
  const auto total = static_cast<int64_t>(image.size());
  if (total > memory.capacity) {
    if (!allocate(2 * total, memory.all)) return false;
    memory.capacity = 2 * total;
  }
  device.copy(memory.all.get(), image.data(), total);
  for (Range& range : ranges_) range.device = memory.all.get() + range.at;
  return true;
}

class HostCalls : public Backend {
 public:
  explicit HostCalls(std::unique_ptr<Backend> device) : device_(std::move(device)) {}

  std::string_view name() const override { return device_->name(); }
  Rounding rounding() const override { return device_->rounding(); }
  ProductOrder product_order() const override { return device_->product_order(); }
  Result<Buffer> allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
    std::memset(memory, 0, size);
    return Buffer(memory, [](std::byte* p) { std::free(p); });
  }
  bool host_memory() const override { return true; }
  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  int64_t free_memory() const override { return device_->free_memory(); }
  Status stage(std::span<const StagedArray> arrays) override {
    for (const StagedArray& array : arrays) *array.device = array.data;
    return {};
  }
  Status check(const Config& config) const override { return device_->check(config); }
  Status finish() override { return device_->finish(); }
  int64_t calls() const { return calls_; }

  void gather(const GatherArgs& args) override {
    GatherArgs a = args;
    HostCall call;
    call.in(a.table), call.in(a.rows, a.out.count * a.per_row), call.out(a.out);
    run(call, [&] { device_->gather(a); });
  }
  void linear(const LinearArgs& args) override {
    LinearArgs a = args;
    HostCall call;
    call.in(a.w), call.in(a.x), call.out(a.y);
    run(call, [&] { device_->linear(a); });
  }
  void rms_norm(const RmsNormArgs& args) override {
    RmsNormArgs a = args;
    HostCall call;
    call.in(a.x), call.in(a.weight), call.out(a.y);
    run(call, [&] { device_->rms_norm(a); });
  }
  void rope_table(const RopeTableArgs& args) override {
    RopeTableArgs a = args;
    HostCall call;
    call.in(a.position, a.table.count), call.in(a.frequencies, a.table.width / 2);
    call.out(a.table);
    run(call, [&] { device_->rope_table(a); });
  }
  void rope(const RopeArgs& args) override {
    RopeArgs a = args;
    HostCall call;
    call.out(a.x), call.in(a.table);
    run(call, [&] { device_->rope(a); });
  }
  void hc_mix(const HcMixArgs& args) override {
    HcMixArgs a = args;
    HcWeights w = *a.weights;
    a.weights = &w;
    HostCall call;
    call.in(w.fn), call.in(w.base), call.in(w.scale), call.in(a.h);
    call.out(a.pre), call.out(a.post), call.out(a.comb);
    run(call, [&] { device_->hc_mix(a); });
  }
  void collapse_norm(const CollapseNormArgs& args) override {
    CollapseNormArgs a = args;
    HostCall call;
    call.in(a.h), call.in(a.pre), call.in(a.norm), call.out(a.collapsed), call.out(a.x);
    run(call, [&] { device_->collapse_norm(a); });
  }
  void expand(const ExpandArgs& args) override {
    ExpandArgs a = args;
    HostCall call;
    call.out(a.h), call.in(a.y), call.in(a.post), call.in(a.comb);
    run(call, [&] { device_->expand(a); });
  }
  void stream_mean(const StreamMeanArgs& args) override {
    StreamMeanArgs a = args;
    HostCall call;
    call.in(a.h), call.out(a.out);
    run(call, [&] { device_->stream_mean(a); });
  }
  void store_rows(const StoreRowsArgs& args) override {
    StoreRowsArgs a = args;
    HostCall call;
    call.in(a.x), scattered(call, a, a.x.count, a.format.bytes());
    run(call, [&] { device_->store_rows(a); });
  }
  void scatter_rows(const ScatterRowsArgs& args) override {
    ScatterRowsArgs a = args;
    HostCall call;
    call.in(a.rows, a.count * a.row_bytes), scattered(call, a, a.count, a.row_bytes);
    run(call, [&] { device_->scatter_rows(a); });
  }
  void round_rows(const RoundRowsArgs& args) override {
    RoundRowsArgs a = args;
    HostCall call;
    call.out(a.x);
    run(call, [&] { device_->round_rows(a); });
  }
  void select_rows(const SelectRowsArgs& args) override {
    SelectRowsArgs a = args;
    HostCall call;
    call.in(a.in), call.in(a.row, a.out.count), call.out(a.out);
    run(call, [&] { device_->select_rows(a); });
  }
  void repeat_row(const RepeatRowArgs& args) override {
    RepeatRowArgs a = args;
    HostCall call;
    call.in(a.row), call.out(a.out);
    run(call, [&] { device_->repeat_row(a); });
  }
  void compress_pairs(const CompressPairsArgs& args) override {
    CompressPairsArgs a = args;
    HostCall call;
    RowHull pending;
    const int64_t bytes = 2 * a.latent.width * int64_t{sizeof(float)};
    for (int64_t n = 0; n < a.latent.count; ++n) {
      if (a.even_row[n] >= 0) continue;
      pending.add(a.pending_base + a.pending_add + a.pending_offset[n], bytes);
    }
    call.array(a.pending_base, pending.begin, pending.bytes(), false);
    call.in(a.k), call.in(a.g), call.out(a.latent);
    for (auto* list : {&a.odd_row, &a.even_row, &a.pending_offset}) {
      call.in(*list, a.latent.count);
    }
    run(call, [&] { device_->compress_pairs(a); });
  }
  void index_select(const IndexSelectArgs& args) override;
  void attend(const AttendArgs& args) override;
  void route(const RouteArgs& args) override {
    RouteArgs a = args;
    HostCall call;
    call.in(a.x), call.in(a.gate), call.in(a.bias), call.in(a.bias_vl);
    call.in(a.image, a.x.count);
    call.out(a.ids, a.x.count * a.topk), call.out(a.weights, a.x.count * a.topk);
    run(call, [&] { device_->route(a); });
  }
  void experts(const ExpertsArgs& args) override {
    ExpertsArgs a = args;
    std::vector<ExpertWeights> experts(a.experts.begin(), a.experts.end());
    ExpertWeights shared = *a.shared;
    a.experts = experts;
    a.shared = &shared;
    HostCall call;
    for (ExpertWeights& expert : experts) call.in(expert);
    call.in(shared), call.in(a.x), call.out(a.y);
    call.in(a.ids, a.x.count * a.topk), call.in(a.weights, a.x.count * a.topk);
    const auto bytes = static_cast<int64_t>(a.experts.size_bytes());
    auto table = device_->allocate(bytes);
    ASSERT_TRUE(table);
    a.table = reinterpret_cast<const ExpertWeights*>(table->get());
    run(call, [&] {
      device_->copy(table->get(), experts.data(), bytes);  // now that they are the device's
      device_->experts(a);
    });
  }
  void engram_gate(const EngramGateArgs& args) override {
    EngramGateArgs a = args;
    HostCall call;
    call.out(a.h), call.in(a.kvv), call.in(a.q_weight), call.in(a.k_weight);
    call.in(a.image, a.h.count), call.out(a.gate);
    run(call, [&] { device_->engram_gate(a); });
  }
  void draw(const DrawArgs& args) override {
    DrawArgs a = args;
    HostCall call;
    call.in(a.logits), call.in(a.rows, a.logits.count), call.out(a.drawn, a.logits.count);
    run(call, [&] { device_->draw(a); });
  }

 private:
  template <typename Op>
  void run(HostCall& call, const Op& op) {
    call.run(*device_, memory_, op);
    ++calls_;
  }
  template <typename Args>
  static void scattered(HostCall& call, Args& a, int64_t count, int64_t bytes) {
    RowHull rows;
    for (int64_t t = 0; t < count; ++t) {
      if (a.offset[t] >= 0) rows.add(a.base + a.add + a.offset[t], bytes);
    }
    call.array(a.base, rows.begin, rows.bytes(), true);
    call.in(a.offset, count);
  }
  // Pages of which a call may read the given rows of sequences.
  class Pages {
   public:
    explicit Pages(PagedRows& pages) : pages_(pages) {}
    void add(int64_t sequence, int64_t j) {
      rows_.add(pages_.row(sequence, j), pages_.format.bytes());
      table_ = std::max(table_, pages_.table_begin[sequence] + j / pages_.rows_per_block + 1);
    }
    void list(HostCall& call, int64_t sequences) {
      const int64_t slack = (pages_.rows_per_block - 1) * pages_.format.bytes();
      call.array(pages_.base, rows_.begin, rows_.bytes(), false, slack);
      call.in(pages_.table, table_), call.in(pages_.table_begin, sequences);
    }

   private:
    PagedRows& pages_;
    RowHull rows_;
    int64_t table_ = 0;
  };

  std::unique_ptr<Backend> device_;
  DeviceMemory memory_;
  int64_t calls_ = 0;
};

inline int64_t sequences_of(const int32_t* sequence, int64_t tokens) {
  return tokens == 0 ? 0 : *std::max_element(sequence, sequence + tokens) + 1;
}

inline void HostCalls::index_select(const IndexSelectArgs& args) {
  IndexSelectArgs a = args;
  const int64_t tokens = a.q.count;
  const int64_t sequences = sequences_of(a.sequence, tokens);
  HostCall call;
  Pages keys(a.keys);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < a.visible[t]; ++j) keys.add(a.sequence[t], j);
  }
  keys.list(call, sequences);
  call.in(a.q), call.in(a.weight), call.in(a.sequence, tokens), call.in(a.visible, tokens);
  call.out(a.selected, tokens * a.topk), call.out(a.pool_out, tokens * a.pool_topk);
  call.in(a.pool_in, tokens * a.pool_topk);
  run(call, [&] { device_->index_select(a); });
}

inline void HostCalls::attend(const AttendArgs& args) {
  AttendArgs a = args;
  const int64_t tokens = a.q.count;
  const int64_t sequences = sequences_of(a.sequence, tokens);
  const int64_t bytes = a.window_format.bytes();
  HostCall call;
  RowHull fresh;
  RowHull ring;
  Pages entries(a.entries);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t s = a.sequence[t];
    for (int64_t p = a.window_begin[t]; p < a.window_end[t]; ++p) {
      const int64_t row = p - a.step_start[s];
      if (row >= 0)
        fresh.add(a.fresh + (a.step_row[s] + row) * bytes, bytes);
      else
        ring.add(a.ring_base + a.ring_add + a.ring_offset[s] + p % a.ring_rows * bytes, bytes);
    }
    if (a.entries.format.width == 0) continue;
    const int32_t* selected = a.selected + t * a.topk;
    for (int64_t i = 0; i < a.topk && selected[i] >= 0; ++i) entries.add(s, selected[i]);
  }
  call.array(a.fresh, fresh.begin, fresh.bytes(), false);
  call.array(a.ring_base, ring.begin, ring.bytes(), false);
  if (a.entries.format.width != 0) {
    entries.list(call, sequences);
    call.in(a.selected, tokens * a.topk);
  }
  call.in(a.q), call.out(a.out), call.in(a.sink), call.in(a.sequence, tokens);
  for (auto* list : {&a.window_begin, &a.window_end}) call.in(*list, tokens);
  for (auto* list : {&a.step_start, &a.step_row, &a.ring_offset}) call.in(*list, sequences);
  run(call, [&] { device_->attend(a); });
}

}  // namespace tidemill
