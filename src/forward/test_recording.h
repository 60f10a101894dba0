// A backend for tests that treats ops as a device does, and what is decoded on it.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "forward/test_bench.h"
#include "ops/reference_backend.h"

namespace tidemill {

// What a device does, on the host: staged arrays are overwritten by the next ones, and a key that
// is known is not asked for its ops again but runs those it had the first time. Every other time it
// compares them first. It can leave what may run beside other ops until it has to be there.
class Recording : public ReferenceBackend {
 public:
  struct Counts {
    int64_t stages = 0, copies = 0, finishes = 0;
    int64_t recorded = 0, repeated = 0, compared = 0;
    int64_t late = 0;  // ops
  };

  // `late`: a bit for each lane whose ops wait until it is joined; or, `in_turn`, until an op
  // outside has come for each of those before it.
  explicit Recording(ThreadTeam& team, unsigned late = 0, bool in_turn = false)
      : ReferenceBackend(team, Rounding{}), area_(1 << 20), late_(late), in_turn_(in_turn) {}
  const Counts& counts() const { return counts_; }

  bool host_memory() const override { return false; }
  void copy(void* to, const void* from, int64_t bytes) override {
    ++counts_.copies;
    ReferenceBackend::copy(to, from, bytes);
  }
  Status stage(std::span<const StagedArray> arrays) override {
    ++counts_.stages;
    expect_joined("stage");
    std::memset(area_.data(), 0xFF, area_.size());
    size_t at = 0;
    for (const StagedArray& array : arrays) {
      const auto bytes = static_cast<size_t>(array.bytes);
      EXPECT_LE(at + bytes, area_.size());
      if (bytes > 0) std::memcpy(area_.data() + at, array.data, bytes);
      *array.device = area_.data() + at;
      at += (bytes + 63) / 64 * 64;
    }
    return {};
  }
  Status finish() override {
    ++counts_.finishes;
    expect_joined("finish");
    return {};
  }

  int64_t repeated_rows(int64_t rows) const override { return rows <= 24 ? (rows + 3) / 4 * 4 : 0; }
  void repeat(std::span<const int64_t> key, const std::function<void()>& ops) override {
    const auto [found, added] = works_.try_emplace({key.begin(), key.end()});
    Work& work = found->second;
    if (added) {
      ++counts_.recorded;
      list(ops, work);
    } else if (++work.uses % 2 == 1) {
      ++counts_.compared;
      Work again;
      list(ops, again);
      ASSERT_EQ(again.calls.size(), work.calls.size());
      for (size_t i = 0; i < work.calls.size(); ++i) {
        ASSERT_EQ(again.calls[i].name, work.calls[i].name) << "op " << i;
        ASSERT_TRUE(again.calls[i].arguments == work.calls[i].arguments)
            << "op " << i << ", " << work.calls[i].name << ", has other arguments";
      }
    }
    counts_.repeated += !added;
    for (const Call& call : work.calls) call.run();
  }

  void beside(int lane, int64_t /*rows*/, const std::function<void()>& ops) override {
    note("beside", lane);
    ASSERT_FALSE(inside_) << "ops beside ops beside others";
    inside_ = true;
    Lane& at = lanes_[static_cast<size_t>(lane)];
    at.joined = false;
    if ((late_ >> lane & 1) != 0) {
      Work* const outer = std::exchange(list_, &at.work);
      ops();
      list_ = outer;
    } else {
      ops();
    }
    inside_ = false;
  }
  void join(int lane) override {
    note("join", lane);
    Lane& at = lanes_[static_cast<size_t>(lane)];
    at.joined = true;
    while (!at.work.calls.empty()) pass_on(at);
  }

  void gather(const GatherArgs& a) override { call("gather", reference::gather, a); }
  void linear(const LinearArgs& a) override { call("linear", reference::linear, a); }
  void rms_norm(const RmsNormArgs& a) override { call("rms_norm", reference::rms_norm, a); }
  void rope_table(const RopeTableArgs& a) override { call("rope_table", reference::rope_table, a); }
  void rope(const RopeArgs& a) override { call("rope", reference::rope, a); }
  void hc_mix(const HcMixArgs& a) override { call("hc_mix", reference::hc_mix, a); }
  void collapse_norm(const CollapseNormArgs& a) override {
    call("collapse_norm", reference::collapse_norm, a);
  }
  void expand(const ExpandArgs& a) override { call("expand", reference::expand, a); }
  void stream_mean(const StreamMeanArgs& a) override {
    call("stream_mean", reference::stream_mean, a);
  }
  void store_rows(const StoreRowsArgs& a) override { call("store_rows", reference::store_rows, a); }
  void scatter_rows(const ScatterRowsArgs& a) override {
    call("scatter_rows", reference::scatter_rows, a);
  }
  void round_rows(const RoundRowsArgs& a) override { call("round_rows", reference::round_rows, a); }
  void select_rows(const SelectRowsArgs& a) override {
    call("select_rows", reference::select_rows, a);
  }
  void repeat_row(const RepeatRowArgs& a) override { call("repeat_row", reference::repeat_row, a); }
  void compress_pairs(const CompressPairsArgs& a) override {
    call("compress_pairs", reference::compress_pairs, a);
  }
  void index_select(const IndexSelectArgs& a) override {
    call("index_select", reference::index_select, a);
  }
  void attend(const AttendArgs& a) override { call("attend", reference::attend, a); }
  void route(const RouteArgs& a) override { call("route", reference::route, a); }
  void experts(const ExpertsArgs& a) override { call("experts", reference::experts, a); }
  void engram_gate(const EngramGateArgs& a) override {
    call("engram_gate", reference::engram_gate, a);
  }

 private:
  struct Call {
    std::string name;
    std::vector<std::byte> arguments;
    std::function<void()> run;
  };
  struct Work {
    std::vector<Call> calls;
    int64_t uses = 0;
  };
  struct Lane {
    Work work;
    bool joined = true;
  };

  void list(const std::function<void()>& ops, Work& work) {
    list_ = &work;
    ops();
    list_ = nullptr;
    expect_joined("repeat");
  }
  void expect_joined(const char* where) const {
    for (const Lane& lane : lanes_) EXPECT_TRUE(lane.joined) << where;
  }
  // Equal keys part and meet alike.
  void note(const char* what, int lane) {
    if (list_ != nullptr) list_->calls.push_back({what, bytes_of(lane), [] {}});
  }

  template <typename Args>
  void call(const char* name, void (*op)(const reference::Context&, const Args&),
            const Args& args) {
    if (list_ == nullptr) {
      op(context_, args);
    } else {
      list_->calls.push_back({name, bytes_of(args), [this, op, args] { op(context_, args); }});
    }
    if (inside_ || !in_turn_) return;
    for (Lane& lane : lanes_) {
      if (!lane.work.calls.empty()) pass_on(lane);
    }
  }
  // The first op of a lane that waited.
  void pass_on(Lane& lane) {
    ++counts_.late;
    Call call = std::move(lane.work.calls.front());
    lane.work.calls.erase(lane.work.calls.begin());
    if (list_ == nullptr) return call.run();
    list_->calls.push_back(std::move(call));
  }
  // All members, whatever lies between them.
  template <typename Args>
  static std::vector<std::byte> bytes_of([[maybe_unused]] const Args& args) {
    static_assert(std::is_trivially_copyable_v<Args>);
    std::vector<std::byte> bytes(sizeof(Args));
#if __has_builtin(__builtin_clear_padding)
    Args copy = args;
    __builtin_clear_padding(&copy);
    std::memcpy(bytes.data(), &copy, sizeof(Args));
#endif
    return bytes;
  }

  std::vector<std::byte> area_;
  std::map<std::vector<int64_t>, Work> works_;
  Work* list_ = nullptr;  // ops are listed here instead of run
  const unsigned late_;
  const bool in_turn_;
  std::array<Lane, kLanes> lanes_;
  bool inside_ = false;
  Counts counts_;
};

// Several sequences that decode, verify and go back, now these and now those, with drafts. All
// logits, and the state that is left.
struct Outcome {
  std::vector<float> values;
  std::vector<std::vector<std::byte>> states;
};

inline void decode(Bench& bench, int64_t steps, Outcome& outcome) {
  constexpr int64_t kSequences = 5;
  std::vector<Sequence> sequences;
  std::vector<std::vector<int32_t>> tokens;
  for (int64_t i = 0; i < kSequences; ++i) {
    sequences.push_back(bench.sequence());
    tokens.push_back(random_tokens(400, static_cast<uint32_t>(i)));
    tokens.back()[static_cast<size_t>(40 + 31 * i)] = Bench::model().config().image_token_id;
    const auto prompt = std::span(tokens.back()).first(static_cast<size_t>(1 + 31 * i));
    const auto logits = bench.run(sequences.back(), prompt, {50});
    outcome.values.insert(outcome.values.end(), logits.begin(), logits.end());
  }
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<StepItem> items;
    std::vector<Forward::DraftItem> drafts;
    for (int64_t i = 0; i < kSequences; ++i) {
      if (step % 3 == 0 && i % 3 == step % 5) continue;
      const int64_t count = step % 4 == 3 ? 1 + (step + i) % 4 : 1;
      Sequence& sequence = sequences[static_cast<size_t>(i)];
      items.push_back(
          {&sequence,
           std::span(tokens[static_cast<size_t>(i)])
               .subspan(static_cast<size_t>(sequence.length()), static_cast<size_t>(count)),
           step % 4 == 3 ? Logits::kAll : Logits::kLast});
      drafts.push_back({&sequence, static_cast<int32_t>(step)});
    }
    const auto output = bench.forward().run(items);
    ASSERT_TRUE(output) << output.error().message;
    const Rows& rows = output->logits;
    outcome.values.insert(outcome.values.end(), rows.f32(0), rows.f32(0) + rows.count * rows.width);
    for (const StepItem& item : items) {
      const auto count = static_cast<int64_t>(item.tokens.size());
      ASSERT_TRUE(bench.pool().truncate(*item.sequence, item.sequence->length() - count / 2));
    }
    if (step % 2 == 1) {
      const auto values = bench.draft(drafts);
      outcome.values.insert(outcome.values.end(), values.begin(), values.end());
    }
  }
  for (Sequence& sequence : sequences) {
    outcome.states.push_back(bench.pool().snapshot(sequence));
    bench.pool().release(sequence);
  }
}

template <typename Make>
Outcome decoded(int64_t steps, Make&& make) {
  Bench bench(1, ReplayForm::kCompact, 600, 6, make);
  Outcome outcome;
  decode(bench, steps, outcome);
  EXPECT_TRUE(finite(outcome.values));
  return outcome;
}

struct RecordingBench {
  const Recording* recording = nullptr;
  Bench bench;

  explicit RecordingBench(unsigned late = 0, bool in_turn = false)
      : bench(1, ReplayForm::kCompact, 600, 6, [this, late, in_turn](ThreadTeam& team) {
          auto backend = std::make_unique<Recording>(team, late, in_turn);
          recording = backend.get();
          return backend;
        }) {}
};

}  // namespace tidemill
