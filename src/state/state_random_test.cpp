// A million random operations on a tiny pool with up to two steps in flight, against an oracle
// (user cases 5 and 41). The fake device does all its reading and writing as late as it may: just
// before its step is reported as finished.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>

#include "state/test_state.h"

namespace tidemill {
namespace {

constexpr int64_t kSlots = 6;
constexpr int64_t kBlocks = 24;
constexpr int64_t kLongest = 7 * kBlockTokens;

uint64_t hash_of(std::span<const int32_t> tokens) {
  uint64_t hash = 14695981039346656037u;
  for (const int32_t id : tokens) hash = (hash ^ static_cast<uint64_t>(id)) * 1099511628211u;
  return hash;
}
uint64_t read_stamp(std::span<const std::byte> memory) {
  uint64_t stamp = 0;
  std::memcpy(&stamp, memory.data(), sizeof(stamp));
  return stamp;
}
void write_stamp(std::span<std::byte> memory, uint64_t stamp) {
  std::memcpy(memory.data(), &stamp, sizeof(stamp));
}

// A sequence with what its memory must hold. A block's stamp is the hash of all tokens up to its
// end, or up to the sequence's length when the block was last written.
struct Live {
  Sequence sequence;
  std::vector<uint64_t> stamps;  // of its blocks, once the steps in flight are done
  uint64_t slot_stamp = 0;
  int64_t executed = 0;  // tokens whose steps have finished
  int in_flight = 0;
};

// One sequence's part of a step: what the device was told, whatever became of the sequence since.
struct Work {
  std::shared_ptr<Live> live;
  int64_t slot = -1;
  uint64_t slot_stamp = 0;
  std::vector<int32_t> blocks;
  std::vector<uint64_t> before;  // of the blocks that hold earlier tokens
  std::vector<std::pair<size_t, uint64_t>> writes;
  int64_t end = 0;
};
struct Step {
  int64_t number = 0;
  std::vector<Work> work;
};

class World {
 public:
  explicit World(uint32_t seed)
      : random_(seed),
        pool_(tiny_pool(kSlots, kBlocks)),
        cache_(pool_, {.budget_bytes = 12 * 512, .lifetime = std::chrono::seconds(500)}) {}

  void act() {
    now_ += std::chrono::milliseconds(10);
    switch (below(16)) {
      case 0:
      case 1:
        look_up();
        break;
      case 2:
      case 3:
        admit();
        break;
      case 4:
        if (!hits_.empty()) hits_.erase(hits_.begin());  // the request was cancelled
        break;
      case 5:
      case 6:
      case 7:
      case 8:
        if (steps_.size() < 2) launch();
        break;
      case 9:
      case 10:
      case 11:
        if (!steps_.empty()) finish();
        break;
      case 12:
        if (Live* live = pick()) publish(*live);
        break;
      case 13:
        if (Live* live = pick()) undo(*live);
        break;
      case 14:
        if (below(8) == 0) pool_.evict_block();
        if (below(3) == 0) fork();
        break;
      default:
        if (!live_.empty()) release(below(live_.size()));
    }
    if (++actions_ % 512 == 0) check_counts();
  }

  void end() {
    while (!steps_.empty()) finish();
    while (!live_.empty()) release(0);
    hits_.clear();
    check_counts();
    EXPECT_EQ(pool_.block_pool().in_use_count(), 0);
    EXPECT_EQ(pool_.block_pool().pinned_count(), 0);
    EXPECT_EQ(pool_.returning_blocks(), 0);
    EXPECT_EQ(pool_.free_slots(), kSlots);
    EXPECT_EQ(cache_.indexed_blocks(), pool_.block_pool().cached_count());
    cache_.clear();
    EXPECT_EQ(cache_.indexed_blocks(), 0);
    EXPECT_EQ(pool_.block_pool().free_count(), kBlocks);
    const PrefixCacheStats stats = cache_.stats();
    EXPECT_GT(stats.hits, actions_ / 100);
    EXPECT_GT(stats.evicted_blocks, actions_ / 1000);
    EXPECT_GT(stats.duplicate_blocks, 0);
    EXPECT_GT(reads_, actions_);
  }

 private:
  size_t below(size_t n) { return random_() % n; }
  Live* pick() { return live_.empty() ? nullptr : live_[below(live_.size())].get(); }

  // Few different blocks, so that inputs share prefixes.
  std::vector<int32_t> input() {
    std::vector<int32_t> tokens;
    const size_t blocks = below(6);
    for (size_t i = 0; i < blocks; ++i) {
      const auto letter = static_cast<int32_t>(below(2));
      for (int32_t k = 0; k < kBlockTokens; ++k) tokens.push_back(1000 * letter + k);
    }
    for (size_t i = below(kBlockTokens) + 1; i-- > 0;) {
      tokens.push_back(static_cast<int32_t>(below(3)));
    }
    return tokens;
  }

  struct Waiting {
    std::vector<int32_t> tokens;
    PrefixHit hit;
  };

  void look_up() {
    if (hits_.size() >= 3) return;
    Waiting waiting{input(), {}};
    waiting.hit = cache_.lookup(view(waiting.tokens), chain_, {}, now_);
    verify(waiting);
    hits_.push_back(std::move(waiting));
  }
  // Right now and at any later time until it is adopted.
  void verify(const Waiting& waiting) {
    const auto& blocks = waiting.hit.blocks();
    for (size_t i = 0; i < blocks.size(); ++i) {
      ASSERT_EQ(read_stamp(pool_.block(blocks[i])),
                hash_of(std::span(waiting.tokens).first((i + 1) * kBlockTokens)));
    }
  }

  void admit() {
    if (hits_.empty()) return;
    auto sequence = pool_.acquire();
    if (!sequence) return;
    Waiting waiting = std::move(hits_.front());
    hits_.pop_front();
    verify(waiting);
    auto live = std::make_shared<Live>();
    live->sequence = std::move(*sequence);
    cache_.adopt(std::move(waiting.hit), view(waiting.tokens), live->sequence);
    live->executed = live->sequence.length();
    for (size_t i = 0; i < live->sequence.blocks.size(); ++i) {
      live->stamps.push_back(hash_of(std::span(waiting.tokens).first((i + 1) * kBlockTokens)));
    }
    own_slot(*live);
    inputs_[live.get()] = std::move(waiting.tokens);
    live_.push_back(std::move(live));
  }
  void own_slot(Live& live) {
    live.slot_stamp = ++slot_stamps_;
    write_stamp(pool_.slot(live.sequence.slot), live.slot_stamp);
  }

  // Plans a step: reserves blocks and appends tokens; the device has done nothing yet.
  void launch() {
    Step step;
    for (const auto& live : live_) {
      if (below(3) == 0) continue;
      Sequence& s = live->sequence;
      const int64_t begin = s.length();
      const auto& text = inputs_[live.get()];
      const auto left = static_cast<int64_t>(text.size()) - begin;
      const int64_t count = left > 0 ? std::min<int64_t>(left, 1 + static_cast<int64_t>(below(300)))
                                     : 1 + static_cast<int64_t>(below(6));
      if (begin + count > kLongest) continue;
      // A copy of a block needs the writes in flight to be done.
      if (live->in_flight > 0 &&
          pool_.blocks_needed(s, begin + count) !=
              std::max<int64_t>(0, pool_.layout().blocks_for(begin + count) -
                                       static_cast<int64_t>(s.blocks.size()))) {
        continue;
      }
      if (!pool_.reserve(s, begin + count)) continue;
      Work work{.live = live, .slot = s.slot, .slot_stamp = live->slot_stamp, .blocks = s.blocks};
      work.before.assign(live->stamps.begin(),
                         live->stamps.begin() + pool_.layout().blocks_for(begin));
      for (int64_t i = 0; i < count; ++i) {
        s.tokens.push_back(left > 0 ? text[static_cast<size_t>(begin + i)]
                                    : static_cast<int32_t>(below(2)));
      }
      live->stamps.resize(s.blocks.size());
      for (int64_t b = begin / kBlockTokens; b < pool_.layout().blocks_for(s.length()); ++b) {
        const int64_t end = std::min(s.length(), (b + 1) * kBlockTokens);
        const auto number = static_cast<size_t>(b);
        live->stamps[number] = hash_of(std::span(s.tokens).first(static_cast<size_t>(end)));
        work.writes.emplace_back(number, live->stamps[number]);
      }
      work.end = s.length();
      ++live->in_flight;
      step.work.push_back(std::move(work));
    }
    if (step.work.empty()) return;
    step.number = pool_.begin_step();
    steps_.push_back(std::move(step));
  }

  void finish() {
    Step step = std::move(steps_.front());
    steps_.pop_front();
    for (const Work& work : step.work) {
      ASSERT_EQ(read_stamp(pool_.slot(work.slot)), work.slot_stamp);
      for (size_t i = 0; i < work.before.size(); ++i, ++reads_) {
        ASSERT_EQ(read_stamp(pool_.block(work.blocks[i])), work.before[i]) << actions_;
      }
      for (const auto& [number, stamp] : work.writes) {
        write_stamp(pool_.block(work.blocks[number]), stamp);
      }
      work.live->executed = work.end;
      --work.live->in_flight;
    }
    pool_.finish_step(step.number);
  }

  void publish(Live& live) {
    Sequence& s = live.sequence;
    cache_.publish(s, live.executed, chain_);
    if (live.in_flight > 0 || s.keys.empty()) return;
    const auto position = static_cast<int64_t>(s.keys.size()) * kBlockTokens;
    (void)cache_.save_windows(s, position, chain_, now_);
  }

  // The end of a draft is undone; the engine does so when no step writes the sequence.
  void undo(Live& live) {
    if (live.in_flight > 0) return;
    const int64_t length = live.sequence.length() - static_cast<int64_t>(below(8));
    if (!pool_.truncate(live.sequence, length)) return;
    live.executed = live.sequence.length();
    live.stamps.resize(live.sequence.blocks.size());
    auto& text = inputs_[&live];  // it goes on with other tokens
    text.resize(std::min(text.size(), live.sequence.tokens.size()));
  }

  void fork() {
    Live* live = pick();
    if (live == nullptr || live->in_flight > 0) return;
    if (below(2) == 0) cache_.publish(live->sequence, live->executed, chain_);
    auto twin_sequence = pool_.fork(live->sequence);
    if (!twin_sequence) return;
    auto twin = std::make_shared<Live>(*live);
    twin->sequence = std::move(*twin_sequence);
    twin->stamps.resize(twin->sequence.blocks.size());
    own_slot(*twin);
    inputs_[twin.get()] = inputs_[live];
    live_.push_back(std::move(twin));
  }

  void release(size_t number) {
    pool_.release(live_[number]->sequence);
    inputs_.erase(live_[number].get());
    live_.erase(live_.begin() + static_cast<int64_t>(number));
  }

  void check_counts() {
    std::vector<int32_t> references(kBlocks);
    const auto count = [&](const std::vector<int32_t>& blocks) {
      for (const int32_t block : blocks) ++references[static_cast<size_t>(block)];
    };
    for (const auto& live : live_) count(live->sequence.blocks);
    for (const Waiting& waiting : hits_) {
      count(waiting.hit.blocks());
      verify(waiting);
    }
    int64_t in_use = 0;
    const BlockPool& blocks = pool_.block_pool();
    for (int32_t b = 0; b < kBlocks; ++b) {
      const int32_t expected = references[static_cast<size_t>(b)];
      ASSERT_EQ(blocks.references(b), expected) << b;
      in_use += expected > 0;
    }
    ASSERT_EQ(blocks.in_use_count(), in_use);
    ASSERT_EQ(pool_.free_slots() + pool_.returning_slots() + static_cast<int64_t>(live_.size()),
              kSlots);
    for (const int32_t block : blocks.free_list()) {
      ASSERT_EQ(read_stamp(pool_.block(block)), ~uint64_t{0});
    }
  }

  std::mt19937 random_;
  StatePool pool_;
  PrefixCache cache_;
  KeyChain chain_ = shared_chain();
  Clock::time_point now_;
  std::vector<std::shared_ptr<Live>> live_;
  std::map<const Live*, std::vector<int32_t>> inputs_;
  std::deque<Waiting> hits_;
  std::deque<Step> steps_;
  uint64_t slot_stamps_ = 0;
  int64_t actions_ = 0;
  int64_t reads_ = 0;
};

TEST(StateRandom, NoStepReadsWhatIsNotItsOwn) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    World world(seed);
    for (int i = 0; i < 250'000 && !testing::Test::HasFatalFailure(); ++i) world.act();
    world.end();
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed;
      return;
    }
  }
}

}  // namespace
}  // namespace tidemill
