// Everything at once: mixed lengths, shared prefixes, several answers, tenants, priorities, drafts,
// cancels, a pool ten times too small, steps in flight. Every request ends exactly once with the
// tokens of a plain run, and everything goes back to its pool.
//
// TIDEMILL_STRESS sets the number of requests (sanitizer builds take fewer, soaks more);
// TIDEMILL_STRESS_SECONDS repeats rounds for so long and watches the memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "engine/test_plant.h"

namespace tidemill {
namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGE_SIZE);
}

// One of 60 families of prompts, so that plain runs are few and prefixes are shared.
Request stress_request(std::mt19937& random) {
  static const auto shared = random_prompt(512, 4242);
  const auto family = static_cast<uint32_t>(random() % 60);
  Request r = test_request(1 + static_cast<int64_t>(family * 7919 % 190), family,
                           1 + static_cast<int64_t>(family * 31 % 48));
  if (family % 3 != 0) {
    const int64_t prefix = 64 * static_cast<int64_t>(family % 8);
    r.prompt.insert(r.prompt.begin(), shared.begin(), shared.begin() + prefix);
  }
  r.tenant = family % 4;
  r.priority = static_cast<int32_t>(random() % 3);
  r.n = random() % 20 == 0 ? 3 : 1;
  r.drafts = random() % 4 == 0 ? static_cast<int64_t>(random() % 4) : -1;
  return r;
}

// Expected tokens of a choice, from a plain run of each distinct request.
const std::vector<int32_t>& expected(const Request& r, int64_t choice) {
  static std::map<std::pair<uint64_t, int64_t>, std::vector<int32_t>> known;
  const auto key = std::pair(r.sampling.seed, choice);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  Request alone = r;
  alone.n = 1;
  alone.priority = 0;
  alone.sampling.seed += static_cast<uint64_t>(choice);
  return known[key] = plain_answer(alone).tokens;
}

struct Sent {
  Request request;
  bool cancelled = false;
};

void round_of(Plant& plant, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::map<RequestId, Sent> sent;
  const int64_t ended = plant.ended_requests();
  for (int64_t i = 0; i < count; ++i) {
    const Request r = stress_request(random);
    const auto id = plant->submit(r);
    ASSERT_TRUE(id) << id.error().message;
    sent[*id] = {r};
    if (random() % 3 == 0) plant.collect(Engine::Milliseconds(random() % 8));
    if (random() % 8 == 0) {
      auto victim = sent.lower_bound(*id - std::min<RequestId>(*id, random() % 40));
      if (plant->cancel(victim->first)) victim->second.cancelled = true;
    }
    while (static_cast<int64_t>(sent.size()) - (plant.ended_requests() - ended) > 60) {
      plant.collect(Engine::Milliseconds(20));
    }
  }
  for (int64_t i = 0; plant.ended_requests() - ended < count; ++i) {
    ASSERT_LT(i, 6000) << "no end";
    plant.collect(Engine::Milliseconds(100));
  }
  for (const auto& [id, what] : sent) {
    for (int64_t k = 0; k < what.request.n; ++k) {
      const Collected& answer = plant.answer(id, k);
      ASSERT_EQ(answer.ends, 1) << "request " << id << " choice " << k;
      const auto& tokens = expected(what.request, k);
      if (what.cancelled && answer.finish == FinishReason::kCancelled) {
        ASSERT_LE(answer.tokens.size(), tokens.size());
        ASSERT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), tokens.begin()))
            << "request " << id << " choice " << k;
      } else {
        ASSERT_EQ(answer.tokens, tokens) << "request " << id << " choice " << k;
      }
    }
  }
  plant.answers().clear();
  ASSERT_TRUE(plant->flush(Engine::Milliseconds(10000)));
  plant.expect_idle();
}

Options small_pool(const std::string& drafts, int64_t suspend_bytes) {
  // 16 sequences of up to 6 blocks each would need 96.
  Options options = Plant::options(16, 740, 10, 128);
  options.own_thread = true;
  options.drafts = drafts;
  options.suspend_bytes = suspend_bytes;
  return options;
}

TEST(EngineStress, EveryRequestEndsOnceWithTheTokensOfAPlainRun) {
  const int64_t requests = from_environment("TIDEMILL_STRESS", 400);
  const int64_t seconds = from_environment("TIDEMILL_STRESS_SECONDS", 0);
  Plant plain(small_pool("dynamic", 2 << 20));
  const auto begin = std::chrono::steady_clock::now();
  int64_t resident = 0;
  for (uint32_t round = 0;; ++round) {
    round_of(plain, requests, 1 + round);
    if (testing::Test::HasFatalFailure()) return;
    const Stats stats = plain->stats();
    if (round == 0) {
      EXPECT_GT(stats.preemptions, 0);
      EXPECT_GT(stats.suspends, 0);
      EXPECT_GT(stats.cache_hits, 0);
    }
    const auto elapsed = std::chrono::steady_clock::now() - begin;
    if (seconds > 0) {
      const int64_t now = resident_bytes();
      std::printf(
          "%lld s: %lld finished, %lld preemptions, %.1f MB resident\n",
          static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(elapsed).count()),
          static_cast<long long>(stats.finished), static_cast<long long>(stats.preemptions),
          1e-6 * static_cast<double>(now));
      std::fflush(stdout);
      // The first rounds fill caches; later ones must not grow.
      if (round == 2) resident = now;
      if (round > 2) {
        EXPECT_LT(now, resident + (8 << 20)) << "memory grows";
      }
    }
    if (elapsed >= std::chrono::seconds(seconds)) break;
  }
}

}  // namespace
}  // namespace tidemill
