// Records, and the contract of a tier on a fake one.
#include "state/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "state/test_state.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

ContentKey key(uint64_t number) {
  ContentKey k;
  for (size_t i = 0; i < 8; ++i) k.bytes[i] = static_cast<uint8_t>(number >> (8 * i));
  return k;
}
StateRecord record(uint64_t number) {
  std::mt19937 random(static_cast<uint32_t>(number));
  StateRecord r{.key = key(number)};
  for (const SectionKind kind : {SectionKind::kBlock, SectionKind::kWindows}) {
    std::vector<std::byte> bytes(random() % 40);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    r.sections.push_back({kind, bytes});
  }
  return r;
}

TEST(Record, RoundTrip) {
  for (uint64_t i = 0; i < 20; ++i) {
    const StateRecord r = record(i);
    const auto decoded = decode_record(r.key, encode_record(r));
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(*decoded, r);
  }
}

TEST(Record, EveryDamageIsSeen) {
  const StateRecord r = record(3);
  const auto good = encode_record(r);
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      auto bad = good;
      bad[i] ^= static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(decode_record(r.key, bad)) << i;
    }
    EXPECT_FALSE(decode_record(r.key, std::span(good).first(i))) << i;
  }
  auto longer = good;
  longer.push_back({});
  EXPECT_THAT(decode_record(r.key, longer).error().message, HasSubstr("longer than it says"));
  EXPECT_THAT(decode_record(key(4), good).error().message, HasSubstr("another key"));
  EXPECT_THAT(decode_record(key(4), good).error().message, HasSubstr("counts as a miss"));
}

// In memory, with the faults of a real tier: it evicts when it likes, is slow, and loses bytes.
class FakeTier : public CacheManager {
 public:
  explicit FakeTier(size_t capacity) : capacity_(capacity) {}

  int64_t match(std::span<const ContentKey> keys) const override {
    const auto end = std::ranges::find_if(keys, [&](const ContentKey& k) {
      return !data_.contains(k.hex()) && !promised.contains(k.hex());
    });
    return end - keys.begin();
  }
  Result<Ticket> fetch(const ContentKey& k) override {
    if (fetches_.size() >= 4) return fail(ErrorCode::kNoCapacity, "4 fetches run already");
    fetches_[++tickets_] = {k, 2};
    return tickets_;
  }
  FetchState state(Ticket ticket) override {
    const auto found = fetches_.find(ticket);
    if (found == fetches_.end()) return FetchState::kMissing;
    if (found->second.polls_left-- > 0) return FetchState::kRunning;
    return data_.contains(found->second.key.hex()) ? FetchState::kReady : FetchState::kMissing;
  }
  Result<StateRecord> take(Ticket ticket) override {
    const ContentKey k = fetches_.at(ticket).key;
    fetches_.erase(ticket);
    return decode_record(k, data_.at(k.hex()));
  }
  void abort(Ticket ticket) override { fetches_.erase(ticket); }
  Status commit(const StateRecord& r) override {
    if (data_.contains(r.key.hex())) return {};
    while (data_.size() >= capacity_) {
      const auto victim = std::ranges::find_if(data_, [&](const auto& entry) {
        return std::ranges::none_of(
            fetches_, [&](const auto& f) { return f.second.key.hex() == entry.first; });
      });
      if (victim == data_.end()) return fail(ErrorCode::kNoCapacity, "all are being fetched");
      data_.erase(victim);
    }
    data_[r.key.hex()] = encode_record(r);
    return {};
  }

  std::vector<std::byte>* bytes_of(const ContentKey& k) {
    const auto found = data_.find(k.hex());
    return found == data_.end() ? nullptr : &found->second;
  }
  size_t running() const { return fetches_.size(); }
  std::map<std::string, bool> promised;  // keys that match() lies about

 private:
  struct Fetch {
    ContentKey key;
    int polls_left = 0;
  };
  size_t capacity_;
  std::map<std::string, std::vector<std::byte>> data_;
  std::map<Ticket, Fetch> fetches_;
  Ticket tickets_ = 0;
};

// What a user of a tier does: nothing means a miss, whatever the reason.
std::optional<StateRecord> load(CacheManager& tier, const ContentKey& k) {
  const auto ticket = tier.fetch(k);
  if (!ticket) return std::nullopt;
  for (;;) {
    const auto state = tier.state(*ticket);
    if (state == CacheManager::FetchState::kRunning) continue;
    if (state == CacheManager::FetchState::kMissing) {
      tier.abort(*ticket);
      return std::nullopt;
    }
    auto taken = tier.take(*ticket);
    if (!taken) return std::nullopt;
    return std::move(*taken);
  }
}

// User case 18: every number of pages comes back as it was stored.
TEST(Tier, AnyNumberOfBlocksComesBack) {
  for (const int64_t count : {1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257}) {
    Reuser r(2, 2 * count);
    FakeTier tier(static_cast<size_t>(count));
    const auto tokens = random_tokens(count * kBlockTokens, static_cast<uint32_t>(count));
    Sequence a = r.run(tokens, shared_chain());
    ASSERT_EQ(static_cast<int64_t>(a.keys.size()), count);
    for (size_t i = 0; i < a.keys.size(); ++i) {
      ASSERT_TRUE(tier.commit(record_of_block(*r.pool, a.blocks[i], a.keys[i])));
    }
    EXPECT_EQ(tier.match(a.keys), count);
    Sequence b = *r.pool->acquire();
    ASSERT_TRUE(r.pool->reserve(b, count * kBlockTokens));
    for (size_t i = 0; i < a.keys.size(); ++i) {
      const auto loaded = load(tier, a.keys[i]);
      ASSERT_TRUE(loaded);
      ASSERT_TRUE(load_block(*loaded, *r.pool, b.blocks[i]));
      EXPECT_TRUE(std::ranges::equal(r.pool->block(a.blocks[i]), r.pool->block(b.blocks[i])));
    }
    EXPECT_FALSE(load_block(record(1), *r.pool, b.blocks[0]));
    r.pool->release(a);
    r.pool->release(b);
  }
}

// User case 42: a promise of match() may be overtaken, a stored record damaged: a miss, counted,
// never an error of the caller's.
TEST(Tier, RandomFaultsAreMissesAgainstAnOracle) {
  FakeTier tier(8);
  std::map<uint64_t, StateRecord> oracle;
  std::mt19937 random(5);
  int64_t hits = 0;
  int64_t misses = 0;
  std::vector<CacheManager::Ticket> open;
  for (int step = 0; step < 50000; ++step) {
    const uint64_t number = random() % 24;
    switch (random() % 6) {
      case 0:
      case 1:
        (void)tier.commit(oracle[number] = record(number));
        break;
      case 2:
        if (auto* bytes = tier.bytes_of(key(number)); bytes != nullptr && random() % 8 == 0) {
          bytes->resize(random() % (bytes->size() + 1));
        }
        break;
      case 3:
        if (const auto ticket = tier.fetch(key(number))) open.push_back(*ticket);
        break;
      case 4:
        if (!open.empty()) {
          tier.abort(open.back());
          tier.abort(open.back());  // again: ignored
          open.pop_back();
        }
        break;
      default: {
        tier.promised[key(number).hex()] = true;
        const ContentKey wanted[] = {key(number)};
        if (tier.match(wanted) == 0) break;
        const auto loaded = load(tier, key(number));
        (loaded ? hits : misses) += 1;
        if (loaded) {
          EXPECT_EQ(*loaded, oracle.at(number));
        }
      }
    }
  }
  for (const auto ticket : open) tier.abort(ticket);
  EXPECT_EQ(tier.running(), 0u);
  EXPECT_GT(hits, 100);
  EXPECT_GT(misses, 100);
}

}  // namespace
}  // namespace tidemill
