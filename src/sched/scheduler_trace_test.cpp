// Runs tests/cases/sched/*.txt: a scheduler and a fake device, line by line. `#` starts a comment.
//
//   case NAME                     a new scheduler and device; the defaults are those of Trace
//   option NAME VALUE             of SchedulerOptions; before the first event
//   pool BLOCKS SLOTS [HOST]      blocks of block_tokens, slots, host blocks; before the first
//   event cost A B C                    a step takes A + B * tokens + C * area milliseconds; else 1
//
//   submit ID PROMPT MAX [priority P] [tenant T] [deadline MS] [hit TOKENS]
//         [shared BLOCKS] [drafts N]
//   cancel ID      drafts ID N      weight TENANT W      lose ID      drain      time MS (add to
//   now) plan                          plans a step and launches it commit [ID=N] [ID=end] ends the
//   oldest step; items draw one token unless told otherwise run N                         N times:
//   plan, and commit so that at most 1 step is in flight started ID N                  like `run`,
//   until ID has its first item, in at most N steps state                         counts = LINE
//   what the last submit, plan or state answered, line by line
//
// The device complains when a plan asks for what is not free, or loses or doubles a token.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "sched/fake_device.h"
#include "sched/scheduler.h"

namespace tidemill {
namespace {

using Words = std::vector<std::string>;
using Lines = std::vector<std::string>;

// Sets an option by its name; false if there is none.
bool set_option(SchedulerOptions& o, const std::string& name, double value) {
  const std::map<std::string, int64_t*> whole = {
      {"context", &o.context},
      {"block_tokens", &o.block_tokens},
      {"max_step_tokens", &o.max_step_tokens},
      {"max_sequences", &o.max_sequences},
      {"floor_every", &o.floor_every},
      {"min_chunk", &o.min_chunk},
      {"chunk_align", &o.chunk_align},
      {"max_waiting", &o.max_waiting},
      {"max_tenant_waiting", &o.max_tenant_waiting},
      {"max_waiting_tokens", &o.max_waiting_tokens},
      {"lookahead", &o.lookahead},
      {"fair_quantum", &o.fair_quantum},
      {"snapshot_from", &o.snapshot_from},
      {"max_priority_preemptions", &o.max_priority_preemptions},
      {"min_samples", &o.cost.min_samples},
  };
  const std::map<std::string, double*> real = {
      {"step_ms", &o.step_ms},
      {"watermark", &o.watermark},
      {"reservation_ms", &o.reservation_ms},
      {"age_ms", &o.age_ms},
      {"age_ms_per_token", &o.age_ms_per_token},
  };
  if (const auto found = whole.find(name); found != whole.end()) {
    *found->second = static_cast<int64_t>(value);
  } else if (const auto also = real.find(name); also != real.end()) {
    *also->second = value;
  } else {
    return false;
  }
  return true;
}

class Trace {
 public:
  Trace() {
    options_.context = 100000;
    options_.pool_blocks = 1000;
    options_.block_tokens = 16;
    options_.max_step_tokens = 64;
    options_.max_sequences = 8;
    options_.min_chunk = 8;
    options_.chunk_align = 1;
    options_.watermark = 0;
  }

  // The lines that the command answers with, or an error text.
  Result<Lines> run(const Words& words) {
    const std::string& verb = words.front();
    if (verb == "option") {
      if (set_option(options_, words.at(1), std::stod(words.at(2)))) return Lines{};
      return fail(ErrorCode::kInvalidArgument, "no option {}", words.at(1));
    }
    if (verb == "pool") {
      options_.pool_blocks = number(words, 1);
      slots_ = number(words, 2);
      host_ = words.size() > 3 ? number(words, 3) : 0;
      return Lines{};
    }
    if (verb == "cost") {
      for (size_t i = 0; i < 3; ++i) cost_[i] = std::stod(words.at(i + 1));
      return Lines{};
    }
    CHECK_OK(begin());
    return event(words);
  }

  std::string complaint() const { return device_ ? device_->complaint() : ""; }

 private:
  static int64_t number(const Words& words, size_t index) { return std::stoll(words.at(index)); }
  static RequestId id_of(const Words& words) { return static_cast<RequestId>(number(words, 1)); }

  Status begin() {
    if (scheduler_) return {};
    TRY(scheduler_, Scheduler::create(options_));
    device_.emplace(options_.pool_blocks, slots_, options_.block_tokens, host_);
    return {};
  }

  Result<Lines> event(const Words& words) {
    const std::string& verb = words.front();
    if (verb == "submit") return submit(words);
    if (verb == "plan") return plan_and_launch();
    if (verb == "commit") return commit({words.begin() + 1, words.end()});
    if (verb == "run") {
      for (int64_t i = 0; i < number(words, 1); ++i) CHECK_OK(step());
    } else if (verb == "started") {
      for (int64_t i = 0; i < number(words, 2); ++i) {
        CHECK_OK(step());
        for (const PlanItem& item : last_plan_.items) {
          if (item.id == id_of(words)) return Lines{};
        }
      }
      return fail(ErrorCode::kInternal, "not started; the last plan was\n{}",
                  fmt::join(describe(last_plan_), "\n"));
    } else if (verb == "state") {
      return Lines{fmt::format("running {} waiting {} known {} free {}", scheduler_->running(),
                               scheduler_->waiting(), scheduler_->known(), device_->free_blocks())};
    } else if (verb == "cancel") {
      if (!scheduler_->cancel(id_of(words))) return Lines{"not known"};
      device_->end(id_of(words));
    } else if (verb == "drafts") {
      scheduler_->set_drafts(id_of(words), number(words, 2));
    } else if (verb == "weight") {
      scheduler_->set_weight(id_of(words), std::stod(words.at(2)));
    } else if (verb == "lose") {
      scheduler_->lose_snapshot(id_of(words));
      device_->drop_snapshot(id_of(words));
    } else if (verb == "drain") {
      scheduler_->drain();
    } else if (verb == "time") {
      now_ += static_cast<double>(number(words, 1));
    } else {
      return fail(ErrorCode::kInvalidArgument, "unknown command {}", verb);
    }
    return Lines{};
  }

  Result<Lines> submit(const Words& words) {
    Arrival arrival{
        .id = id_of(words), .prompt_tokens = number(words, 2), .max_tokens = number(words, 3)};
    int64_t hit = 0, shared = 0, drafts = 0;
    for (size_t i = 4; i + 1 < words.size(); i += 2) {
      const int64_t value = number(words, i + 1);
      if (words[i] == "priority") arrival.priority = static_cast<int32_t>(value);
      if (words[i] == "tenant") arrival.tenant = static_cast<TenantId>(value);
      if (words[i] == "deadline") arrival.deadline = static_cast<double>(value);
      if (words[i] == "hit") hit = value;
      if (words[i] == "shared") shared = value;
      if (words[i] == "drafts") drafts = value;
    }
    const auto answer = scheduler_->submit(arrival, now_);
    if (!answer) return Lines{describe(answer.error())};
    device_->arrive(arrival);
    device_->set_hit(arrival.id, hit, shared);
    scheduler_->set_drafts(arrival.id, drafts);
    return Lines{};
  }

  Lines plan_and_launch() {
    last_plan_ = scheduler_->plan(now_, device_->capacity());
    device_->launch(last_plan_);
    if (last_plan_.step != 0) shapes_[last_plan_.step] = last_plan_.shape;
    now_ += 1;
    return describe(last_plan_);
  }

  Result<Lines> commit(const Words& outcomes) {
    const uint64_t step = device_->oldest_step();
    if (step == 0) return fail(ErrorCode::kInvalidArgument, "no step is in flight");
    const auto results = device_->finish([&](const PlanItem& item) {
      for (const std::string& outcome : outcomes) {
        const size_t equals = outcome.find('=');
        if (std::stoull(outcome.substr(0, equals)) != item.id) continue;
        const std::string what = outcome.substr(equals + 1);
        return what == "end" ? ItemResult{1, true} : ItemResult{std::stoll(what), false};
      }
      return ItemResult{1, false};
    });
    const StepShape shape = shapes_[step];
    const double ms =
        cost_[0] + cost_[1] * static_cast<double>(shape.tokens) + cost_[2] * shape.area;
    CHECK_OK(scheduler_->commit(step, results, ms));
    return Lines{};
  }

  Status step() {
    plan_and_launch();
    while (device_->in_flight() > (last_plan_.items.empty() ? 0 : 1)) CHECK_OK(commit({}));
    return {};
  }

  SchedulerOptions options_;
  int64_t slots_ = 8;
  int64_t host_ = 0;
  double cost_[3] = {1, 0, 0};
  double now_ = 0;
  std::optional<Scheduler> scheduler_;
  std::optional<FakeDevice> device_;
  std::map<uint64_t, StepShape> shapes_;
  StepPlan last_plan_;
};

std::string joined(const Lines& lines) { return fmt::format("{}", fmt::join(lines, "\n")); }

int run_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  int cases = 0;
  std::optional<Trace> trace;
  std::string where, name;
  Lines expected;
  std::optional<Lines> answered;
  bool failed = false;  // the rest of a failed case says nothing new

  const auto compare = [&] {
    if (!answered || failed) return;
    EXPECT_EQ(joined(expected), joined(*answered)) << where;
    EXPECT_EQ(trace->complaint(), "") << where;
    failed = expected != *answered;
  };
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.starts_with("= ")) {
      expected.push_back(line.substr(2));
      continue;
    }
    std::istringstream stream(line);
    const Words words{std::istream_iterator<std::string>(stream), {}};
    if (words.empty() || words.front().starts_with('#')) continue;
    compare();
    expected.clear();
    answered.reset();
    if (words.front() == "case") {
      trace.emplace();
      name = line.substr(5);
      failed = false;
      ++cases;
      continue;
    }
    where = fmt::format("{}:{}: {}: {}", path.filename().string(), number, name, line);
    if (!trace || failed) continue;
    auto result = trace->run(words);
    EXPECT_TRUE(result.has_value()) << where << ": " << result.error().message;
    failed = !result.has_value();
    if (result) answered = std::move(*result);
  }
  compare();
  return cases;
}

TEST(SchedulerTrace, Cases) {
  const std::filesystem::path folder = TIDEMILL_SOURCE_DIR "/tests/cases/sched";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  int cases = 0;
  for (const auto& file : files) cases += run_file(file);
  EXPECT_GE(cases, 25);
  RecordProperty("cases", cases);
}

}  // namespace
}  // namespace tidemill
