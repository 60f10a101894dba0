// Inputs of attention tests.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/backend.h"
#include "ops/reference.h"
#include "ops/test_inputs.h"

namespace tidemill {

struct AttendShape {
  int64_t heads, dim, window, topk;
};

// A step of several sequences: rings, fresh rows, pages and selections that own their memory.
struct AttendStep {
  AttendArgs args;
  OwnedRows q;
  OwnedRows out;
  std::vector<float> sink;
  std::vector<int32_t> sequence, table, selected;
  std::vector<int64_t> window_begin, window_end, step_start, step_row, ring_offset, table_begin;
  std::vector<std::byte> fresh, ring, pages;

  AttendStep(TestInputs& in, const AttendShape& shape, const std::vector<int64_t>& start,
             const std::vector<int64_t>& rows)
      : q(0, 0), out(0, 0) {
    int64_t tokens = 0;
    for (const int64_t n : rows) tokens += n;
    q = in.activations(tokens, shape.heads * shape.dim, 0.3f);
    out = OwnedRows(tokens, shape.heads * shape.dim);
    sink = in.normals(shape.heads, 1);
    const RowFormat window{RowKind::kQ8, shape.dim};
    const RowFormat entry{RowKind::kQ4Entry, shape.dim};
    const int64_t sequences = static_cast<int64_t>(start.size());
    fresh = packed(in, window, tokens);
    ring = packed(in, window, sequences * shape.window + 1);  // one row before the layer's rings

    constexpr int64_t kEntries = 300;
    constexpr int64_t kPerBlock = 16;
    const int64_t blocks = (kEntries + kPerBlock - 1) / kPerBlock;
    const int64_t block_bytes = kPerBlock * entry.bytes() + 64;
    pages.resize(static_cast<size_t>(sequences * blocks * block_bytes));
    for (int64_t b = 0; b < sequences * blocks; ++b) {
      const std::vector<std::byte> rows_of_block = packed(in, entry, kPerBlock);
      std::memcpy(pages.data() + b * block_bytes + 32, rows_of_block.data(), rows_of_block.size());
      table.push_back(static_cast<int32_t>((b * 7) % (sequences * blocks)));
    }
    int64_t row = 0;
    for (int64_t s = 0; s < sequences; ++s) {
      step_start.push_back(start[static_cast<size_t>(s)]);
      step_row.push_back(row);
      ring_offset.push_back(s * shape.window * window.bytes());
      table_begin.push_back(s * blocks);
      for (int64_t i = 0; i < rows[static_cast<size_t>(s)]; ++i, ++row) {
        const int64_t position = start[static_cast<size_t>(s)] + i;
        sequence.push_back(static_cast<int32_t>(s));
        window_end.push_back(position + 1);
        window_begin.push_back(std::max<int64_t>(0, position + 1 - shape.window));
        const int64_t chosen = std::min<int64_t>(shape.topk, in.below(shape.topk + 1) + i);
        for (int64_t k = 0; k < shape.topk; ++k) {
          selected.push_back(k < chosen ? static_cast<int32_t>(k * kEntries / shape.topk) : -1);
        }
      }
    }
    args.q = q.view();
    args.out = out.view();
    args.heads = shape.heads;
    args.sink = {sink.data(), shape.heads};
    args.sequence = sequence.data();
    args.window_begin = window_begin.data();
    args.window_end = window_end.data();
    args.window_format = window;
    args.fresh = fresh.data();
    args.step_start = step_start.data();
    args.step_row = step_row.data();
    args.ring_base = ring.data();
    args.ring_add = window.bytes();
    args.ring_offset = ring_offset.data();
    args.ring_rows = shape.window;
    if (shape.topk == 0) return;
    args.entries = {pages.data(), block_bytes,       32, kPerBlock, entry,
                    table.data(), table_begin.data()};
    args.selected = selected.data();
    args.topk = shape.topk;
  }

  static std::vector<std::byte> packed(TestInputs& in, const RowFormat& format, int64_t rows) {
    OwnedRows values = in.activations(rows, format.width);
    std::vector<std::byte> result(static_cast<size_t>(rows * format.bytes()));
    for (int64_t t = 0; t < rows; ++t) {
      reference::pack_row(format, values.view().f32(t), result.data() + t * format.bytes());
    }
    return result;
  }

  std::vector<float> run(Backend& backend) {
    std::fill(out.data.begin(), out.data.end(), -7.0f);
    backend.attend(args);
    return out.data;
  }

  // The same with rows in these forms; the results as float32.
  std::vector<float> run_as(Backend& backend, Element of_q, Element of_out) {
    const AttendArgs all = args;
    std::vector<uint16_t> narrow_q = narrow(q.data);
    if (of_q == Element::kBf16) args.q = moved(args.q, q.data, narrow_q);
    std::fill(out.data.begin(), out.data.end(), -7.0f);
    std::vector<uint16_t> narrow_out = narrow(out.data);
    if (of_out == Element::kBf16) args.out = moved(args.out, out.data, narrow_out);
    backend.attend(args);
    args = all;
    if (of_out == Element::kF32) return out.data;
    std::vector<float> result(out.data.size());
    for (size_t i = 0; i < result.size(); ++i) result[i] = bf16_to_float(narrow_out[i]);
    return result;
  }

 private:
  static std::vector<uint16_t> narrow(const std::vector<float>& values) {
    std::vector<uint16_t> result;
    for (const float value : values) result.push_back(bf16_from_float(value));
    return result;
  }
  static Rows moved(const Rows& rows, const std::vector<float>& from, std::vector<uint16_t>& to) {
    return {to.data() + (rows.f32(0) - from.data()), rows.count, rows.width, rows.stride,
            Element::kBf16};
  }
};

}  // namespace tidemill
