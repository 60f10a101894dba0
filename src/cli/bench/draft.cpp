#include "cli/bench/draft.h"

#include <algorithm>
#include <array>
#include <optional>

#include "cli/bench/statistics.h"

namespace tidemill::cli {
namespace {

bool is_dynamic(const std::string& policy) { return policy.starts_with("dynamic"); }

using Runs = std::vector<DraftThroughput>;  // by seed

double median_of(const Runs& runs, double DraftThroughput::*value) {
  std::vector<double> values;
  for (const DraftThroughput& run : runs) values.push_back(run.*value);
  return spread(std::move(values)).median;
}

double median_ratio(const Runs& runs, const Runs& others) {
  std::vector<double> ratios;
  for (size_t i = 0; i < runs.size(); ++i) {
    ratios.push_back(runs[i].tokens_per_second / others[i].tokens_per_second);
  }
  return spread(std::move(ratios)).median;
}

// All policies at one concurrency.
void judge(const DraftComparison& comparison, int64_t concurrency, const std::vector<Runs>& runs,
           DraftReport& report) {
  std::optional<size_t> best, five;
  std::vector<double> medians;
  for (size_t p = 0; p < runs.size(); ++p) {
    const DraftThroughput median{
        .tokens_per_second = median_of(runs[p], &DraftThroughput::tokens_per_second),
        .tokens_per_step = median_of(runs[p], &DraftThroughput::tokens_per_step),
        .drafts_per_request = median_of(runs[p], &DraftThroughput::drafts_per_request),
        .step_ms = median_of(runs[p], &DraftThroughput::step_ms)};
    medians.push_back(median.tokens_per_second);
    report.results.push_back({concurrency, p, median});
    if (comparison.policies[p] == "fixed:5") five = p;
    if (!is_dynamic(comparison.policies[p]) && (!best || medians[p] > medians[*best])) best = p;
  }
  for (size_t p = 0; p < runs.size(); ++p) {
    if (!is_dynamic(comparison.policies[p])) continue;
    DraftVerdict verdict{.concurrency = concurrency, .dynamic = comparison.policies[p]};
    if (best) {
      verdict.best_fixed = comparison.policies[*best];
      verdict.over_best = median_ratio(runs[p], runs[*best]);
    }
    if (five) verdict.over_fixed_5 = median_ratio(runs[p], runs[*five]);
    report.verdicts.push_back(std::move(verdict));
  }
}

}  // namespace

Result<DraftReport> compare_drafts(const CostCurve& curve, const DraftComparison& comparison,
                                   const std::function<bool(double)>& progress) {
  std::vector<DraftPolicy> policies;
  for (const std::string& name : comparison.policies) {
    TRY(const DraftPolicy policy, parse_draft_policy(name, comparison.draft_length));
    policies.push_back(policy);
  }
  const double all = static_cast<double>(comparison.concurrencies.size() * policies.size()) *
                     static_cast<double>(comparison.seeds);
  double done = 0;
  DraftReport report;
  for (const int64_t concurrency : comparison.concurrencies) {
    std::vector<Runs> runs(policies.size());
    for (size_t p = 0; p < policies.size(); ++p) {
      for (int64_t seed = 1; seed <= comparison.seeds; ++seed) {
        if (!progress(done++ / all)) return report;
        const DraftSimulation simulation{
            .concurrency = concurrency,
            .steps = std::max<int64_t>(200, comparison.request_steps / concurrency),
            .seed = static_cast<uint64_t>(seed),
            .draft_length = comparison.draft_length};
        TRY(const DraftThroughput result, simulate_drafts(curve, policies[p], simulation));
        runs[p].push_back(result);
      }
    }
    judge(comparison, concurrency, runs, report);
  }
  return report;
}

std::vector<std::string> check_drafts(const DraftReport& report) {
  std::vector<std::string> breaches;
  if (report.verdicts.empty()) breaches.push_back("no dynamic policy was measured");
  for (const DraftVerdict& verdict : report.verdicts) {
    if (verdict.best_fixed.empty()) {
      breaches.push_back("no fixed length was measured");
      return breaches;
    }
    if (verdict.over_best < 1 - kDraftNoise) {
      breaches.push_back(fmt::format("{} at {}: {:.2f} % below {}", verdict.dynamic,
                                     verdict.concurrency, 100 * (1 - verdict.over_best),
                                     verdict.best_fixed));
    }
  }
  for (const int64_t busy : {60, 96}) {
    const auto at = std::find_if(
        report.verdicts.begin(), report.verdicts.end(), [&](const DraftVerdict& verdict) {
          return verdict.dynamic == "dynamic" && verdict.concurrency == busy;
        });
    if (at == report.verdicts.end() || at->over_fixed_5 == 0) {
      breaches.push_back(fmt::format("dynamic and fixed:5 were not both measured at {}", busy));
    } else if (at->over_fixed_5 < 1 + kDraftNoise) {
      breaches.push_back(fmt::format("dynamic at {} does not beat fixed:5: {:+.2f} %", busy,
                                     100 * (at->over_fixed_5 - 1)));
    }
  }
  return breaches;
}

}  // namespace tidemill::cli
