// Encoder replay after a prefix hit whose windows are gone. Its oracle is a truncated run: a plain
// pass in which attention hides window keys below the replay and cached entries stay as they are.
#include <set>

#include "forward/test_bench.h"
#include "ops/reference_backend.h"

namespace tidemill {
namespace {

constexpr int64_t kWindow = 32;  // of the micro checkpoint

std::span<const int32_t> part(const std::vector<int32_t>& tokens, int64_t begin, int64_t end) {
  return std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

// What a request finds after a hit: the donor's blocks of the first `hit` tokens, no windows. Hits
// of the prefix cache are multiples of 128; here they may be anything.
Sequence adopt(StatePool& pool, const Sequence& donor, const std::vector<int32_t>& tokens,
               int64_t hit, int64_t decoder_floor = 0) {
  Sequence sequence = *pool.acquire();
  sequence.adopted = hit;
  sequence.replay_from = std::max<int64_t>(0, hit - kWindow);
  sequence.decoder_floor = decoder_floor;
  sequence.tokens.assign(tokens.begin(), tokens.begin() + sequence.replay_from);
  sequence.blocks.assign(donor.blocks.begin(),
                         donor.blocks.begin() + pool.layout().blocks_for(hit));
  for (const int32_t block : sequence.blocks) pool.add_reference(block);
  return sequence;
}

// For one sequence at a time: told what the truncated run must not see and not write. Products go
// to vector kernels, for speed only; route and rope_table to the functions of the tested backend.
class TruncatingBackend : public ReferenceBackend {
 public:
  explicit TruncatingBackend(ThreadTeam& team)
      : TruncatingBackend(team, Bench::make_host_backend(team)) {}
  TruncatingBackend(ThreadTeam& team, std::unique_ptr<Backend> fast)
      : ReferenceBackend(team, Rounding{}, fast->product_order()), fast_(std::move(fast)) {}

  int64_t first_key = 0;              // window keys below this position do not exist
  const std::byte* blocks = nullptr;  // where entries and index keys live
  std::set<int64_t> kept;             // offsets of rows there that are never written

  void attend(const AttendArgs& a) override {
    std::vector<int64_t> begin(a.window_begin, a.window_begin + a.q.count);
    for (size_t t = 0; t < begin.size(); ++t) {
      begin[t] = std::max(begin[t], std::min(first_key, a.window_end[t]));
    }
    AttendArgs hidden = a;
    hidden.window_begin = begin.data();
    fast_->attend(hidden);
  }
  void linear(const LinearArgs& a) override { fast_->linear(a); }
  void route(const RouteArgs& a) override { fast_->route(a); }
  void rope_table(const RopeTableArgs& a) override { fast_->rope_table(a); }
  void hc_mix(const HcMixArgs& a) override { fast_->hc_mix(a); }
  void experts(const ExpertsArgs& a) override { fast_->experts(a); }
  void store_rows(const StoreRowsArgs& a) override {
    std::vector<int64_t> offset(a.offset, a.offset + a.x.count);
    for (int64_t& o : offset) {
      if (a.base == blocks && kept.contains(a.add + o)) o = -1;
    }
    StoreRowsArgs some = a;
    some.offset = offset.data();
    ReferenceBackend::store_rows(some);
  }

 private:
  std::unique_ptr<Backend> fast_;
};

struct Outcome {
  std::vector<float> logits;  // of every token that gets any
  std::vector<float> draft;
  std::vector<std::byte> state;
  bool operator==(const Outcome& other) const {
    return same(logits, other.logits) && same(draft, other.draft) && state == other.state;
  }
};

class TruncatedRun {
 public:
  TruncatedRun()
      : bench_(2, ReplayForm::kCompact, 600, 6, [this](ThreadTeam& team) {
          auto backend = std::make_unique<TruncatingBackend>(team);
          backend_ = backend.get();
          return backend;
        }) {
    backend_->blocks = bench_.pool().blocks();
  }

  // The exact pass up to the hit, and one that ends where the replay begins: all windows are there,
  // so that only hiding them makes the difference.
  void start(const std::vector<int32_t>& tokens, int64_t hit) {
    hit_ = hit;
    begin_ = std::max<int64_t>(0, hit - kWindow);
    backend_->first_key = 0;
    backend_->kept.clear();
    for (Sequence* old : {&exact_, &base_}) {
      if (old->slot >= 0) bench_.pool().release(*old);
      *old = bench_.sequence();
    }
    bench_.run(exact_, part(tokens, 0, hit), {hit});
    if (begin_ > 0) bench_.run(base_, part(tokens, 0, begin_), {begin_});
  }
  // Goes on to the end of `tokens`, which begin with those of the start.
  Outcome run(const std::vector<int32_t>& tokens, int64_t decoder_floor) {
    StatePool& pool = bench_.pool();
    Sequence sequence = *pool.fork(base_);
    EXPECT_TRUE(pool.reserve(sequence, hit_));
    for (size_t i = 0; i < exact_.blocks.size(); ++i) {
      std::ranges::copy(pool.block(exact_.blocks[i]), pool.block(sequence.blocks[i]).begin());
    }
    keep(sequence);
    backend_->first_key = begin_;
    sequence.decoder_floor = std::max(decoder_floor, begin_);
    const auto end = static_cast<int64_t>(tokens.size());
    Outcome outcome;
    outcome.logits = bench_.run(sequence, part(tokens, begin_, end), {end});
    outcome.draft = bench_.draft(sequence, 17);
    outcome.state = pool.snapshot(sequence);
    pool.release(sequence);
    return outcome;
  }

 private:
  // Every entry and index key whose group ends below the hit.
  void keep(const Sequence& sequence) {
    backend_->kept.clear();
    const StateLayout& layout = bench_.pool().layout();
    for (const StateLayout::Source& source : layout.sources) {
      for (int64_t j = 0; j < hit_ / source.ratio; ++j) {
        const int64_t block = sequence.blocks[static_cast<size_t>(j / source.rows_per_block)];
        const int64_t base = block * layout.block_bytes;
        const int64_t row = j % source.rows_per_block;
        backend_->kept.insert(base + source.entry_offset + row * layout.entry.bytes());
        backend_->kept.insert(base + source.key_offset + row * layout.key.bytes());
      }
    }
  }

  TruncatingBackend* backend_ = nullptr;
  Bench bench_;
  Sequence exact_, base_;
  int64_t hit_ = 0;
  int64_t begin_ = 0;
};

// Odd and even hits, at and beside the window and block ends; the decoder cut at, before and after
// the hit, or not at all; chunk borders inside the replay, at the hit and at 128; last chunks
// shorter than the window; decode right after the hit.
TEST(Replay, IsTheTruncatedRunInBothForms) {
  TruncatedRun oracle;
  const std::vector<std::vector<int64_t>> cuts = {
      {1}, {7}, {kWindow, 1}, {kWindow + 1, 5}, {kWindow - 1, 2, 30}, {3, 600}};
  size_t next_cut = 0;
  for (const int64_t hit : {31, 32, 33, 64, 127, 128, 129, 161, 256, 257}) {
    const auto tokens = random_tokens(hit + 40, static_cast<uint32_t>(hit));
    oracle.start(tokens, hit);
    Bench compact(1, ReplayForm::kCompact);
    Bench mask(1, ReplayForm::kMask);
    Sequence donors[2] = {compact.sequence(), mask.sequence()};
    compact.run(donors[0], part(tokens, 0, hit), {hit});
    mask.run(donors[1], part(tokens, 0, hit), {hit});
    for (const int64_t rest : {1, 2, 40}) {
      const std::vector<int32_t> input(tokens.begin(), tokens.begin() + hit + rest);
      for (const int64_t floor : {int64_t{0}, hit - 5, hit, hit + 7}) {
        if (floor >= hit + rest) continue;
        const Outcome expected = oracle.run(input, floor);
        ASSERT_TRUE(finite(expected.logits) && finite(expected.draft)) << hit;
        for (Bench* bench : {&compact, &mask, &compact, &mask}) {
          StatePool& pool = bench->pool();
          const Sequence& donor = donors[bench == &mask];
          const auto cached = pool.snapshot(donor);
          const auto& cut = cuts[next_cut++ % cuts.size()];
          Sequence sequence = adopt(pool, donor, input, hit, floor);
          Outcome got;
          got.logits = bench->run(sequence, std::span(input).subspan(sequence.tokens.size()), cut);
          got.draft = bench->draft(sequence, 17);
          got.state = pool.snapshot(sequence);
          EXPECT_EQ(got, expected)
              << "hit " << hit << " + " << rest << ", floor " << floor << ", chunks of " << cut[0]
              << (bench == &mask ? ", mask" : ", compact");
          // The cached rows are only read; whole blocks of a hit are not even copied.
          EXPECT_EQ(pool.snapshot(donor), cached);
          for (size_t i = 0; i < static_cast<size_t>(hit / kBlockTokens); ++i) {
            EXPECT_EQ(sequence.blocks[i], donor.blocks[i]);
          }
          pool.release(sequence);
        }
      }
    }
  }
}

// It is an approximation: if this fails, the oracle above compares nothing.
TEST(Replay, DiffersFromTheExactRun) {
  const auto tokens = random_tokens(200, 3);
  Bench bench;
  Sequence exact = bench.sequence();
  const auto logits = bench.run(exact, tokens, {128, 72});
  Sequence sequence = adopt(bench.pool(), exact, tokens, 128, 128);
  const auto replayed = bench.run(sequence, part(tokens, 96, 200), {200});
  ASSERT_EQ(replayed.size(), size_t{72 * 320});
  EXPECT_FALSE(same(replayed, {logits.end() - 72 * 320, logits.end()}));
}

// Requests with the same hit, with a cut decoder and without, together and beside others, one of
// them cancelled inside its replay: each gets what it gets alone, and the hit's bytes stay.
TEST(Replay, NeighboursAndCancelledOnesCannotBeSeen) {
  Bench bench(2);
  StatePool& pool = bench.pool();
  const auto tokens = random_tokens(300, 9);
  const auto prompt = random_tokens(120, 10);
  Sequence donor = bench.sequence();
  bench.run(donor, part(tokens, 0, 256), {256});
  const auto cached = pool.snapshot(donor);
  const int64_t free_blocks = pool.free_blocks();

  struct Request {
    const std::vector<int32_t>* tokens;
    int64_t hit;
    int64_t floor;
    Sequence sequence = {};
    std::vector<float> logits = {};
  };
  const std::vector<Request> requests = {
      {&tokens, 256, 260}, {&tokens, 256, 260}, {&tokens, 256, 0}, {&prompt, 0, 80}};
  const auto start = [&](const Request& request) {
    if (request.hit > 0) return adopt(pool, donor, tokens, request.hit, request.floor);
    Sequence sequence = bench.sequence();
    sequence.decoder_floor = request.floor;
    return sequence;
  };
  std::vector<std::vector<float>> alone;
  for (const Request& request : requests) {
    Sequence sequence = start(request);
    alone.push_back(
        bench.run(sequence, std::span(*request.tokens).subspan(sequence.tokens.size()), {600}));
    pool.release(sequence);
  }
  EXPECT_TRUE(same(alone[0], alone[1]));

  for (const int64_t chunk : {5, 32, 33}) {
    auto running = requests;
    for (Request& request : running) request.sequence = start(request);
    Sequence cancelled = start(requests[0]);
    for (int64_t step = 0;; ++step) {
      std::vector<StepItem> items;
      std::vector<Request*> who;
      const auto add = [&](const std::vector<int32_t>& all, Sequence& sequence, int64_t most,
                           Request* request) {
        const int64_t begin = sequence.length();
        const int64_t end = std::min(static_cast<int64_t>(all.size()), begin + most);
        if (begin == end) return;
        items.push_back({&sequence, part(all, begin, end), Logits::kAll});
        who.push_back(request);
      };
      for (Request& r : running) add(*r.tokens, r.sequence, chunk + (&r - running.data()), &r);
      if (items.empty()) break;
      if (step < 2) add(tokens, cancelled, chunk - 2, nullptr);
      const auto output = bench.forward().run(items);
      ASSERT_TRUE(output);
      int64_t row = 0;
      for (size_t k = 0; k < items.size(); ++k) {
        const Sequence& sequence = *items[k].sequence;
        const int64_t begin = sequence.length() - static_cast<int64_t>(items[k].tokens.size());
        const int64_t first = std::max(begin, decoder_floor(sequence));
        const int64_t count = std::max<int64_t>(0, sequence.length() - first);
        if (who[k] != nullptr && count > 0) {
          const float* values = output->logits.f32(row);
          who[k]->logits.insert(who[k]->logits.end(), values,
                                values + count * output->logits.width);
        }
        row += count;
      }
      ASSERT_EQ(row, output->logits.count);
      if (step == 1) pool.release(cancelled);
    }
    for (size_t i = 0; i < running.size(); ++i) {
      EXPECT_TRUE(same(running[i].logits, alone[i])) << "request " << i << ", chunk " << chunk;
      pool.release(running[i].sequence);
    }
    EXPECT_EQ(pool.snapshot(donor), cached);
    EXPECT_EQ(pool.free_blocks(), free_blocks);
  }
}

// A verification right after the hit and across the next block end: what is undone leaves no trace.
TEST(Replay, RejectedDraftsLeaveNoTrace) {
  const auto tokens = random_tokens(300, 21);
  const auto wrong = random_tokens(8, 22);
  Bench bench;
  StatePool& pool = bench.pool();
  Sequence donor = bench.sequence();
  bench.run(donor, part(tokens, 0, 128), {128});
  for (const int64_t start : {129, 130, 159, 251, 253, 254, 255}) {
    for (int64_t accepted = 0; accepted <= 5; ++accepted) {
      std::vector<int32_t> step(tokens.begin() + start, tokens.begin() + start + 1 + accepted);
      step.insert(step.end(), wrong.begin(), wrong.begin() + (5 - accepted));
      const int64_t end = start + 1 + accepted;
      Outcome outcomes[2];
      for (const bool verify : {true, false}) {
        Sequence sequence = adopt(pool, donor, tokens, 128, 128);
        bench.run(sequence, part(tokens, 96, start), {start});
        if (verify) {
          bench.run(sequence, step, {6});
          ASSERT_TRUE(pool.truncate(sequence, end));
        } else {
          bench.run(sequence, part(tokens, start, end), {1});
        }
        Outcome& outcome = outcomes[verify];
        outcome.state = pool.snapshot(sequence);
        outcome.draft = bench.draft(sequence, 17);
        outcome.logits = bench.run(sequence, part(tokens, end, end + 4), {1});
        pool.release(sequence);
      }
      EXPECT_EQ(outcomes[0], outcomes[1]) << start << " + " << accepted;
    }
  }
}

// A replay with no block to be had: only the step that passes the hit needs one, and fails as a
// whole.
TEST(Replay, NeedsNoBlocksUntilItPassesTheHit) {
  Bench bench(1, ReplayForm::kCompact, 600, 1);  // 16 blocks, one slot
  StatePool& pool = bench.pool();
  const auto tokens = random_tokens(2048, 23);
  Sequence donor = bench.sequence();
  bench.run(donor, part(tokens, 0, 2048), {600});
  ASSERT_EQ(pool.free_blocks(), 0);
  Sequence request = donor;               // takes over its slot and references
  pool.add_reference(request.blocks[0]);  // the hit's: somebody else uses it too
  request.tokens.resize(128 - kWindow);
  request.adopted = 128;
  request.replay_from = 128 - kWindow;
  request.blocks.resize(1);
  bench.run(request, part(tokens, 128 - kWindow, 128), {20});
  EXPECT_EQ(request.length(), 128);
  const StepItem item{&request, part(tokens, 128, 130), Logits::kLast};
  EXPECT_FALSE(bench.forward().run({&item, 1}));
  EXPECT_EQ(request.length(), 128);
}

}  // namespace
}  // namespace tidemill
