#include "cli/load/summary.h"

#include <algorithm>
#include <utility>

namespace tidemill::cli {
namespace {

void count_failure(std::vector<LoadFailure>& failures, const LoadRecord& record) {
  const auto same = [&](const LoadFailure& known) {
    return known.status == record.status && known.reason == record.reason;
  };
  auto found = std::find_if(failures.begin(), failures.end(), same);
  if (found == failures.end()) {
    found = failures.insert(
        failures.end(),
        {.status = record.status, .reason = record.reason, .example = record.detail});
  }
  ++found->count;
}

// The samples of the percentiles, in milliseconds.
struct Samples {
  std::vector<double> ttft, sent_ttft, e2e, sent_e2e, itl, tpot;

  void add(const LoadRecord& record) {
    const double lag = record.lag_ms();
    e2e.push_back(record.e2e_ms());
    sent_e2e.push_back(record.e2e_ms() - lag);
    if (!record.chunks_s.empty()) {
      ttft.push_back(record.ttft_ms());
      sent_ttft.push_back(record.ttft_ms() - lag);
    }
    for (size_t i = 1; i < record.chunks_s.size(); ++i) {
      itl.push_back(1000 * (record.chunks_s[i] - record.chunks_s[i - 1]));
    }
    if (record.chunks_s.size() > 1 && record.output_tokens() > 1) tpot.push_back(record.tpot_ms());
  }
};

}  // namespace

double LoadSummary::per_second(int64_t count) const {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

double LoadSummary::good_share() const {
  const int64_t all = arrived - aborted;
  return all > 0 ? static_cast<double>(good) / static_cast<double>(all) : 0;
}

LoadSummary summarise(std::span<const LoadRecord> records, const LoadIntent& intent) {
  LoadSummary sum;
  Samples samples;
  std::vector<double> intended, sent, lags;
  for (const LoadRecord& record : records) {
    ++sum.arrived;
    sum.waited += record.waited;
    sum.seconds = std::max(sum.seconds, record.end_s);
    intended.push_back(record.intended_s);
    if (record.sent()) {
      ++sum.sent;
      sent.push_back(record.sent_s);
      lags.push_back(record.lag_ms());
    }
    if (record.outcome == LoadOutcome::kAborted) ++sum.aborted;
    if (record.outcome == LoadOutcome::kError) {
      ++sum.failed;
      count_failure(sum.failures, record);
    }
    if (!record.ok()) continue;
    ++sum.ok;
    sum.prompt_tokens += record.prompt_tokens;
    sum.cached_tokens += record.cached_tokens;
    sum.output_tokens += record.output_tokens();
    sum.without_usage += !record.has_usage;
    sum.without_content += record.chunks_s.empty();
    sum.good += intent.slo.is_met_by(record);
    samples.add(record);
  }
  const auto more = [](const LoadFailure& a, const LoadFailure& b) { return a.count > b.count; };
  std::stable_sort(sum.failures.begin(), sum.failures.end(), more);
  sum.ttft_ms = percentiles(std::move(samples.ttft));
  sum.sent_ttft_ms = percentiles(std::move(samples.sent_ttft));
  sum.e2e_ms = percentiles(std::move(samples.e2e));
  sum.sent_e2e_ms = percentiles(std::move(samples.sent_e2e));
  sum.itl_ms = percentiles(std::move(samples.itl));
  sum.tpot_ms = percentiles(std::move(samples.tpot));
  sum.lag_ms = percentiles(std::move(lags));
  std::sort(intended.begin(), intended.end());
  std::sort(sent.begin(), sent.end());
  sum.intended_gaps = check_gaps(intended, intent.process, intent.rate);
  sum.sent_gaps = check_gaps(sent, intent.process, intent.rate);
  return sum;
}

std::vector<std::string> load_notes(const LoadSummary& sum, const LoadIntent& intent) {
  std::vector<std::string> notes;
  if (sum.waited > 0) {
    notes.push_back(fmt::format(
        "The generator could not keep up: {} of {} requests found none of the {} connections free "
        "and waited. Latencies from the intended time include the wait; raise --connections.",
        sum.waited, sum.arrived, intent.connections));
  }
  if (sum.waited == 0 && !sum.kept_up()) {
    notes.push_back(fmt::format(
        "The generator could not keep up: 1 % of the requests were sent more than {:.1f} ms late "
        "(limit {:g}). Lower the rate, or use an idle machine.",
        sum.lag_ms.p99, kMostLagMs));
  }
  const std::string process(to_string(intent.process));
  if (!sum.intended_gaps.fits) {
    notes.push_back(fmt::format(
        "The planned arrivals do not look {} at {:g}/s; one seed in a thousand does so by chance.",
        process, intent.rate));
  } else if (!sum.sent_gaps.fits) {
    notes.push_back(
        fmt::format("The requests left at other times than planned: the sends do not "
                    "look {} at {:g}/s.",
                    process, intent.rate));
  }
  if (sum.without_usage > 0) {
    notes.push_back(fmt::format(
        "{} answers had no usage: their prompts count as 0 tokens, their output as its chunks.",
        sum.without_usage));
  }
  if (sum.without_content > 0) {
    notes.push_back(
        fmt::format("{} answers had no content, so no first token.", sum.without_content));
  }
  return notes;
}

}  // namespace tidemill::cli
