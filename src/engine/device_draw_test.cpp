// What a device draws with its backend, and what it draws itself from the logits: the same tokens.
#include <gtest/gtest.h>

#include "engine/device.h"
#include "engine/test_plant.h"
#include "ops/reference_backend.h"

namespace tidemill {
namespace {

constexpr int64_t kVocabulary = 320;

struct Counts {
  int64_t drawn = 0;    // rows
  int64_t open = 0;     // of them
  int64_t fetched = 0;  // rows of logits, from the first draw on
};

// The reference backend, which says that its memory is not the host's, and leaves some rows open.
class Apart : public ReferenceBackend {
 public:
  Apart(ThreadTeam& team, int64_t open_every, Counts& counts)
      : ReferenceBackend(team, {}), every_(open_every), counts_(counts) {}

  bool host_memory() const override { return false; }
  void copy(void* to, const void* from, int64_t bytes) override {
    constexpr int64_t kRow = kVocabulary * int64_t{sizeof(float)};
    if (counts_.drawn > 0 && bytes % kRow == 0) counts_.fetched += bytes / kRow;
    ReferenceBackend::copy(to, from, bytes);
  }
  void draw(const DrawArgs& a) override {
    ReferenceBackend::draw(a);
    for (int64_t t = 0; t < a.logits.count; ++t) {
      if (++counts_.drawn % every_ != 0) continue;
      ++counts_.open;
      a.drawn[t] = {};
    }
  }

 private:
  int64_t every_;
  Counts& counts_;
};
constexpr int64_t kNever = int64_t{1} << 60;

// Answers to requests that decode together, each in steps of its own tokens and drafts.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<LogProbabilities> logprobs;
};
std::vector<Answer> answers(std::span<const Request> requests, int64_t drafts,
                            std::function<std::unique_ptr<Backend>(ThreadTeam&)> make_backend) {
  RunnerOptions options{.threads = 1,
                        .context = 256,
                        .sequences = std::ssize(requests),
                        .max_step_tokens = 256,
                        .make_backend = std::move(make_backend)};
  auto runner = ModelRunner::load(TIDEMILL_SOURCE_DIR "/tests/vectors/micro", options);
  EXPECT_TRUE(runner) << runner.error().message;
  constexpr double kTemperature = 1.0;
  Device device(**runner, {.draft_length = drafts,
                           .temperatures = *DraftTemperatures::create({&kTemperature, 1}, 3)});
  std::vector<DeviceRequestPtr> running;
  std::vector<Answer> result(requests.size());
  uint64_t step = 0;
  StepJob job;
  for (size_t i = 0; i < requests.size(); ++i) {
    auto request = std::make_shared<DeviceRequest>();
    request->id = i;
    request->sampling = requests[i].sampling;
    request->tokens = requests[i].prompt;
    request->prompt_tokens = std::ssize(request->tokens);
    request->max_tokens = requests[i].max_tokens;
    request->max_drafts = drafts;
    if (request->sampling.uses_history()) request->history.add_prompt(request->tokens);
    Sequence start = *(*runner)->pool().acquire();
    EXPECT_TRUE((*runner)->pool().reserve(start, 256));
    running.push_back(request);
    job.items.push_back({.request = request,
                         .plan = {.tokens = request->prompt_tokens, .samples = true},
                         .start = std::move(start)});
  }
  while (!running.empty()) {
    job.step = ++step;
    device.launch(std::move(job));
    EXPECT_TRUE(device.wait(Deadline::after(std::chrono::seconds(60))));
    const auto outcome = device.take();
    EXPECT_TRUE(outcome && outcome->status);
    if (!outcome || !outcome->status) return {};
    job = {};
    std::vector<DeviceRequestPtr> left;
    for (size_t i = 0; i < running.size(); ++i) {
      const ItemOutcome& item = outcome->items[i];
      Answer& answer = result[running[i]->id];
      answer.tokens.insert(answer.tokens.end(), item.outputs.begin(), item.outputs.end());
      answer.logprobs.insert(answer.logprobs.end(), item.logprobs.begin(), item.logprobs.end());
      if (item.finish != FinishReason::kNone) continue;
      left.push_back(running[i]);
      job.items.push_back(
          {.request = running[i],
           .plan = {.slack = 256, .drafts = drafts, .decode = true, .samples = true}});
    }
    running = std::move(left);
  }
  return result;
}

std::vector<Request> requests_of_all_kinds() {
  std::vector<Request> requests;
  for (uint32_t seed = 1; seed <= 9; ++seed) {
    Request r = test_request(5 + 3 * seed, seed);  // every third greedy, one with a penalty
    r.sampling.top_p = seed % 2 == 0 ? 0.9f : 1.0f;
    if (seed % 4 == 0) r.sampling.top_k = 8;
    if (seed == 7) r.sampling.min_p = 0.1f;
    if (seed == 8) r.sampling.logprobs = 2;
    requests.push_back(r);
  }
  return requests;
}

TEST(DeviceDraw, ABackendsDrawsAreTheSamplers) {
  const auto requests = requests_of_all_kinds();
  const auto expected =
      answers(requests, 0, [](ThreadTeam& team) { return make_reference_backend(team); });
  for (const int64_t drafts : {0, 3}) {
    for (const int64_t open_every : {kNever, int64_t{5}}) {
      Counts counts;
      const auto got = answers(requests, drafts, [&](ThreadTeam& team) {
        return std::make_unique<Apart>(team, open_every, counts);
      });
      EXPECT_GT(counts.drawn, 0);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "request " << i << ", drafts " << drafts);
        EXPECT_EQ(got[i].tokens, expected[i].tokens);
        EXPECT_EQ(got[i].tokens.size(), 20u);
        ASSERT_EQ(got[i].logprobs.size(), expected[i].logprobs.size());
        for (size_t j = 0; j < got[i].logprobs.size(); ++j) {
          EXPECT_EQ(got[i].logprobs[j].chosen.logprob, expected[i].logprobs[j].chosen.logprob);
        }
      }
    }
  }
}

TEST(DeviceDraw, OnlyRowsThatHaveToBeSeenAreFetched) {
  const auto requests = requests_of_all_kinds();
  for (const int64_t open_every : {kNever, int64_t{5}}) {
    Counts counts;
    answers(requests, 0,
            [&](ThreadTeam& team) { return std::make_unique<Apart>(team, open_every, counts); });
    constexpr int64_t kEdited = 2 * 20;  // of the requests with a penalty and with logprobs
    EXPECT_EQ(counts.drawn, 9 * 20);
    EXPECT_GE(counts.fetched, kEdited + (counts.open > 0));
    EXPECT_LE(counts.fetched, kEdited + counts.open);
  }
}

}  // namespace
}  // namespace tidemill
