// A million random steps over a fake device that ends step N only after step N + 2 was planned:
// arrivals, cancels, deadlines, drafts, prefix hits, lost snapshots, tiny pools.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "sched/fake_device.h"
#include "sched/scheduler.h"

namespace tidemill {
namespace {

constexpr int64_t kEpisodes = 250;
constexpr int64_t kStepsPerEpisode = 4000;

class Episode {
 public:
  explicit Episode(uint64_t seed) : random_(seed), options_(draw_options()) {
    scheduler_ = Scheduler::create(options_).value();
    slots_ = options_.max_sequences + draw(-1, 1);
    if (slots_ < 1) slots_ = 1;
    host_ = draw(0, 1) ? draw(0, options_.pool_blocks) : 0;
    device_ = FakeDevice(options_.pool_blocks, slots_, options_.block_tokens, host_);
    depth_ = static_cast<size_t>(draw(0, 2));
    load_ = std::exp(-real(0.0, 4.0));
    for (TenantId t = 0; t < 3; ++t) scheduler_.set_weight(t, real(0.2, 5));
  }

  void run() {
    for (int64_t i = 0; i < kStepsPerEpisode && !testing::Test::HasFailure(); ++i) {
      while (real(0, 1) < load_) arrive();
      if (draw(0, 60) == 0) cancel();
      if (draw(0, 9) == 0) change_a_hit();
      if (draw(0, 9) == 0) lose_snapshot(static_cast<RequestId>(draw(1, last_id_ + 1)));
      step();
    }
    drain();
  }

  int64_t plans() const { return plans_; }
  int64_t preemptions() const { return preemptions_; }
  int64_t finished() const { return finished_; }

 private:
  struct Life {
    int32_t priority = 0;
    int64_t submitted = 0;  // plan number
    int64_t size = 0;
    int64_t started = -1;
    int64_t reach = 0;            // end of what was planned since the last start
    int64_t preempted_reach = 0;  // ... when last preempted
    int64_t preemptions = 0;
    int64_t priority_preemptions = 0;
  };

  int64_t draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  double real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }

  SchedulerOptions draw_options() {
    SchedulerOptions o;
    o.block_tokens = draw(1, 8) * 2;
    o.context = draw(20, 200);
    o.max_sequences = draw(1, 12);
    o.min_chunk = draw(1, 8);
    o.chunk_align = draw(0, 1) ? o.block_tokens : 1;
    o.max_step_tokens = o.max_sequences + 2 * o.min_chunk + draw(0, 60);
    o.pool_blocks = (o.context + o.block_tokens - 1) / o.block_tokens + draw(0, 30);
    o.step_ms = draw(0, 1) ? real(0.5, 4.0) : 0;
    o.floor_every = draw(1, 8);
    o.max_waiting = 30;
    o.watermark = draw(0, 1) ? 0.05 : 0;
    o.reservation_ms = real(0, 100);
    o.age_ms = real(20, 100);
    o.age_ms_per_token = real(0, 1);
    o.fair_quantum = draw(1, 200);
    o.lookahead = draw(4, 40);
    o.snapshot_from = draw(0, 2) * 20;
    return o;
  }

  void arrive() {
    Arrival a;
    a.id = static_cast<RequestId>(++last_id_);
    a.tenant = static_cast<TenantId>(draw(0, 2));
    a.priority = static_cast<int32_t>(draw(0, 3));
    a.prompt_tokens = draw(1, draw(0, 3) == 0 ? options_.context : 30);
    a.max_tokens = draw(1, 40);
    if (draw(0, 7) == 0) a.deadline = now_ + real(1, 2000);
    const auto answer = scheduler_.submit(a, now_);
    if (!answer) {
      EXPECT_NE(answer.error().why, Why::kInvalid);
      return;
    }
    device_.arrive(a);
    if (draw(0, 2) == 0) find_prefix(a.id, a.prompt_tokens);
    scheduler_.set_drafts(a.id, draw(0, 2) == 0 ? draw(0, 5) : 0);
    alive_[a.id] = {a.priority, plans_, a.prompt_tokens + a.max_tokens};
  }

  void find_prefix(RequestId id, int64_t prompt_tokens) {
    device_.set_hit(id, draw(0, prompt_tokens), draw(0, 1) * draw(0, 10));
  }
  // The cache evicts and learns while requests wait.
  void change_a_hit() {
    const auto found = alive_.lower_bound(static_cast<RequestId>(draw(0, last_id_)));
    if (found != alive_.end()) find_prefix(found->first, device_.stream(found->first)->prompt);
  }

  void cancel() {
    if (alive_.empty()) return;
    auto victim = alive_.lower_bound(static_cast<RequestId>(draw(1, last_id_)));
    if (victim == alive_.end()) victim = alive_.begin();
    const RequestId id = victim->first;
    EXPECT_TRUE(scheduler_.cancel(id));
    EXPECT_FALSE(scheduler_.cancel(id));
    device_.end(id);
    end(id);
  }

  void lose_snapshot(RequestId id) {
    scheduler_.lose_snapshot(id);
    device_.drop_snapshot(id);
  }

  void end(RequestId id) { ASSERT_EQ(alive_.erase(id), 1u) << "request " << id << " ended twice"; }

  void step() {
    const Capacity capacity = device_.capacity();
    const StepPlan plan = scheduler_.plan(now_, capacity);
    ++plans_;
    check(plan);
    for (const Refusal& refusal : plan.refusals) end(refusal.id);
    device_.launch(plan);
    while (device_.in_flight() > depth_ || (plan.items.empty() && device_.in_flight() > 0)) {
      finish();
    }
    now_ += 1;
    ASSERT_EQ(device_.complaint(), "");
    // User case 29: whoever is there, something moves.
    if (alive_.empty()) idle_ = 0;
    ASSERT_LT(++idle_, 100) << "nothing was computed in 100 steps; " << scheduler_.running()
                            << " run, " << scheduler_.waiting() << " wait\n"
                            << fmt::format("{} blocks are free\n{}", device_.free_blocks(),
                                           fmt::join(describe(plan), "\n"));
  }

  void finish() {
    const uint64_t number = device_.oldest_step();
    std::vector<std::pair<RequestId, bool>> seen;
    const auto results = device_.finish([&](const PlanItem& item) {
      return ItemResult{draw(1, 1 + item.drafts), draw(0, 40) == 0};
    });
    idle_ = 0;
    const auto shape = shapes_.find(number);
    const double ms =
        (0.2 + 0.02 * static_cast<double>(shape->second.tokens) + 1e-4 * shape->second.area) *
        real(0.8, 1.2);
    shapes_.erase(shape);
    const Status status = scheduler_.commit(number, results, ms);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    // Exactly those end that the device has ended.
    for (auto life = alive_.begin(); life != alive_.end();) {
      const bool ended = device_.stream(life->first) == nullptr;
      const ScheduledRequest* known = scheduler_.find(life->first);
      ASSERT_EQ(ended, known == nullptr || known->state == RequestState::kFinished);
      finished_ += ended;
      life = ended ? alive_.erase(life) : std::next(life);
    }
  }

  void check(const StepPlan& plan) {
    std::set<RequestId> named;
    for (const Preemption& p : plan.preemptions) {
      ++preemptions_;
      ASSERT_TRUE(named.insert(p.id).second);
      Life& victim = alive_.at(p.id);
      const Life& gainer = alive_.at(p.for_id);
      if (p.why == Why::kHigherPriority) {
        ASSERT_GT(victim.priority, gainer.priority);
        ASSERT_LE(++victim.priority_preemptions, options_.max_priority_preemptions);
      } else {
        ASSERT_GE(victim.priority, gainer.priority);
      }
      // User case 28: never again before it has made progress. So the number is bounded, too.
      ASSERT_TRUE(victim.preemptions++ == 0 || victim.reach > victim.preempted_reach);
      ASSERT_LE(victim.preemptions, victim.size);
      victim.preempted_reach = victim.reach;
    }
    int64_t tokens = 0, prefills = 0;
    bool floor = false;
    for (const PlanItem& item : plan.items) {
      ASSERT_TRUE(named.insert(item.id).second) << "twice in a plan: " << item.id;
      ASSERT_GE(item.tokens, 1);
      tokens += item.tokens;
      prefills += !item.decode;
      floor = floor || item.why == Why::kFloor;
      ASSERT_TRUE(item.samples || item.tokens >= options_.min_chunk);
      Life& life = alive_.at(item.id);
      if (item.start != Start::kNone) life.reach = 0;
      life.reach = std::max(life.reach, item.position + item.tokens - item.drafts);
      if (life.started < 0) {
        life.started = plans_;
        // The whole queue and everything on the device may be ahead, each one alone; then ageing
        // past every priority, and the reservation.
        const int64_t each = 2 * (options_.context + 40);
        const double ageing = 5 * (options_.age_ms + 200 * options_.age_ms_per_token);
        ASSERT_LT(plans_ - life.submitted, 42 * each + static_cast<int64_t>(ageing) + 100);
      }
    }
    ASSERT_LE(tokens, options_.max_step_tokens);
    ASSERT_EQ(tokens, plan.shape.tokens);
    ASSERT_LE(scheduler_.running(), options_.max_sequences);
    if (options_.step_ms > 0 && plan.predicted_ms > options_.step_ms * 1.0001) {
      ASSERT_TRUE(prefills == 0 || (floor && prefills == 1));
    }
    if (!plan.items.empty()) shapes_[plan.step] = plan.shape;
  }

  void drain() {
    scheduler_.drain();
    ASSERT_FALSE(scheduler_.submit({.id = 1u << 30, .prompt_tokens = 1, .max_tokens = 1}, now_));
    for (int64_t i = 0; i < 100000 && !testing::Test::HasFailure(); ++i) {
      if (alive_.empty() && device_.in_flight() == 0) break;
      step();
    }
    while (device_.in_flight() > 0) finish();
    ASSERT_TRUE(alive_.empty());
    ASSERT_EQ(scheduler_.known(), 0);
    ASSERT_EQ(scheduler_.running(), 0);
    ASSERT_EQ(scheduler_.waiting(), 0);
    ASSERT_EQ(scheduler_.in_flight(), 0);
    ASSERT_EQ(device_.free_blocks(), options_.pool_blocks);
    ASSERT_EQ(device_.free_slots(), slots_);
    ASSERT_EQ(device_.host_blocks(), host_);
  }

  std::mt19937_64 random_;
  SchedulerOptions options_;
  Scheduler scheduler_ = Scheduler::create({.context = 1, .pool_blocks = 1}).value();
  FakeDevice device_{1, 1, 1};
  int64_t slots_ = 0;
  int64_t host_ = 0;
  size_t depth_ = 0;
  double load_ = 0;
  double now_ = 0;
  int64_t last_id_ = 0;
  int64_t plans_ = 0;
  int64_t idle_ = 0;
  int64_t preemptions_ = 0;
  int64_t finished_ = 0;
  std::map<RequestId, Life> alive_;
  std::map<uint64_t, StepShape> shapes_;
};

TEST(SchedulerRandom, MillionSteps) {
  int64_t plans = 0, preemptions = 0, finished = 0;
  for (uint64_t seed = 1; seed <= kEpisodes; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Episode episode(seed);
    episode.run();
    ASSERT_FALSE(HasFailure());
    plans += episode.plans();
    preemptions += episode.preemptions();
    finished += episode.finished();
  }
  EXPECT_GE(plans, 1'000'000);
  EXPECT_GT(preemptions, 10'000);
  EXPECT_GT(finished, 10'000);
  RecordProperty("preemptions", std::to_string(preemptions));
  RecordProperty("finished", std::to_string(finished));
}

}  // namespace
}  // namespace tidemill
