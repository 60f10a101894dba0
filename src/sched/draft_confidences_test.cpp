#include "sched/draft_confidences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<RequestId>;
using Values = std::vector<float>;

class Confidences : public testing::Test {
 protected:
  enum class Age { kLagged, kSmoothed, kFresh };

  void store(int64_t step, const Ids& requests, const Values& values) {
    const Status status = data_.store(step, requests, values);
    ASSERT_TRUE(status) << status.error().message;
  }
  Status read(Age age, int64_t step, const Ids& requests) {
    out_.assign(requests.size() * 2, -1.0f);
    switch (age) {
      case Age::kLagged:
        return data_.lagged(step, requests, out_);
      case Age::kSmoothed:
        return data_.lagged_smoothed(step, requests, out_);
      case Age::kFresh:
        return data_.fresh(step, requests, out_);
    }
    return {};
  }
  Values get(Age age, int64_t step, const Ids& requests) {
    const Status status = read(age, step, requests);
    EXPECT_TRUE(status) << status.error().message;
    return out_;
  }
  std::string error_of(Age age, int64_t step) {
    const Status status = read(age, step, {7});
    return status ? "no error" : status.error().message;
  }

  DraftConfidences data_{2, 0.75f};
  Values out_;
};

TEST_F(Confidences, AreOneBeforeTheFirstResults) {
  EXPECT_THAT(get(Age::kLagged, 0, {7}), ElementsAre(1.0f, 1.0f));
  EXPECT_THAT(get(Age::kLagged, 1, {7}), ElementsAre(1.0f, 1.0f));
  EXPECT_THAT(get(Age::kFresh, 0, {7}), ElementsAre(1.0f, 1.0f));
}

TEST_F(Confidences, OfEveryAgeAreThoseOfTheirStep) {
  for (int64_t step = 0; step < 5; ++step) {
    const float c = static_cast<float>(step) / 8.0f;
    store(step, {7}, {c, c / 2});
  }
  // 3 and 4 are there: step 5 reads 3 and 4, step 6 reads 4.
  EXPECT_THAT(get(Age::kLagged, 5, {7}), ElementsAre(3 / 8.0f, 3 / 16.0f));
  EXPECT_THAT(get(Age::kFresh, 5, {7}), ElementsAre(4 / 8.0f, 4 / 16.0f));
  EXPECT_THAT(get(Age::kLagged, 6, {7}), ElementsAre(4 / 8.0f, 4 / 16.0f));
}

TEST_F(Confidences, OfAnotherAgeAreRefused) {
  EXPECT_THAT(error_of(Age::kLagged, 2), HasSubstr("with confidences of step 0, but the newest"));
  EXPECT_THAT(error_of(Age::kFresh, 1), HasSubstr("step 1 is planned with confidences of step 0"));
  store(0, {7}, {0.5f, 0.5f});
  EXPECT_EQ(error_of(Age::kLagged, 2), "no error");
  EXPECT_THAT(error_of(Age::kFresh, 2), HasSubstr("of step 1, but the newest are of step 0"));
  EXPECT_THAT(error_of(Age::kLagged, 3), HasSubstr("of step 1"));
  EXPECT_THAT(error_of(Age::kLagged, 0), HasSubstr("planned after step 0 was processed"));
  EXPECT_THAT(error_of(Age::kFresh, 0), HasSubstr("planned after step 0 was processed"));
}

// After a flush the host knows the results of N - 1 before it plans N. Nothing changes.
TEST_F(Confidences, OfACaughtUpHostAreStillLagged) {
  store(0, {7}, {0.25f, 0.25f});
  store(1, {7}, {0.75f, 0.75f});
  EXPECT_THAT(get(Age::kLagged, 2, {7}), ElementsAre(0.25f, 0.25f));
}

TEST_F(Confidences, OfNewAndReturningRequestsAreOneAndGoneOnesAreForgotten) {
  store(0, {7, 3}, {0.1f, 0.2f, 0.3f, 0.4f});
  store(1, {3, 9}, {0.5f, 0.6f, 0.7f, 0.8f});  // 7 ended or is away
  EXPECT_THAT(get(Age::kLagged, 2, {9, 3}), ElementsAre(1.0f, 1.0f, 0.3f, 0.4f));
  EXPECT_THAT(get(Age::kLagged, 3, {7, 9, 3}), ElementsAre(1.0f, 1.0f, 0.7f, 0.8f, 0.5f, 0.6f));
  store(2, {}, {});
  EXPECT_THAT(get(Age::kLagged, 4, {3}), ElementsAre(1.0f, 1.0f));
}

TEST_F(Confidences, AreSmoothedFromARequestsFirstStepAndOnlyWithoutAGap) {
  store(0, {7}, {0.0f, 1.0f});
  EXPECT_THAT(get(Age::kSmoothed, 2, {7}), ElementsAre(0.0f, 1.0f));
  store(1, {7}, {1.0f, 0.0f});
  EXPECT_THAT(get(Age::kSmoothed, 3, {7}), ElementsAre(0.25f, 0.75f));
  EXPECT_THAT(get(Age::kSmoothed, 2, {7}), ElementsAre(0.0f, 1.0f));
  store(2, {}, {});
  store(3, {7}, {1.0f, 0.0f});
  EXPECT_THAT(get(Age::kSmoothed, 5, {7}), ElementsAre(1.0f, 0.0f));
}

TEST_F(Confidences, AreClamped) {
  store(0, {1, 2}, {NAN, -1.0f, 2.0f, INFINITY});
  EXPECT_THAT(get(Age::kLagged, 2, {1, 2}), ElementsAre(0.0f, 0.0f, 1.0f, 1.0f));
}

TEST_F(Confidences, ThatDoNotFitAreRefusedAndNothingIsStored) {
  EXPECT_THAT(data_.store(1, {}, {}).error().message, HasSubstr("of step 1 came after"));
  store(0, {1}, {0.5f, 0.5f});
  EXPECT_FALSE(data_.store(0, {}, {}));
  EXPECT_FALSE(data_.store(2, {}, {}));
  EXPECT_THAT(data_.store(1, Ids{1, 2}, Values{0.1f, 0.2f}).error().message,
              HasSubstr("2 confidences for 2 requests of 2"));
  EXPECT_THAT(data_.store(1, Ids{4, 5, 4}, Values(6)).error().message,
              HasSubstr("request 4 twice"));
  EXPECT_EQ(data_.processed(), 0);
  EXPECT_THAT(get(Age::kLagged, 2, {1}), ElementsAre(0.5f, 0.5f));
  Values small(1);
  EXPECT_FALSE(data_.lagged(2, Ids{1}, small));
}

}  // namespace
}  // namespace tidemill
