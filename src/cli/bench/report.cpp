#include "cli/bench/report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "cli/bench/table.h"

namespace tidemill::cli {
namespace {

std::string load_text(const CellShape& shape) {
  return shape.concurrency > 0 ? fmt::format("{}", shape.concurrency)
                               : fmt::format("{:g}/s", shape.rate);
}

// Three digits, so that a table of small and large numbers stays readable.
std::string number(double value) {
  if (std::abs(value) >= 100) return fmt::format("{:.0f}", value);
  if (std::abs(value) >= 10) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string gain(double ratio) {
  if (!(ratio > 0)) return "-";
  const double tenths = std::round(1000 * (ratio - 1));
  return fmt::format("{:+.1f} %", tenths == 0 ? 0.0 : tenths / 10);  // no "-0.0"
}

std::string median(const Spread& spread) { return spread.count > 0 ? number(spread.median) : "-"; }

std::string range(const Spread& spread) {
  return spread.count > 1 ? fmt::format("{}..{}", number(spread.least), number(spread.most)) : "-";
}

std::string triple(const Percentiles& p) {
  if (p.count == 0) return "-";
  return fmt::format("{} {} {}", number(p.p50), number(p.p90), number(p.p99));
}

double acceptance(const StepWork& work) {
  const int64_t drafted = work.all_drafted();
  return drafted > 0 ? static_cast<double>(work.all_accepted()) / static_cast<double>(drafted) : 0;
}

}  // namespace

double Floor::step_ms(const CellSummary& summary, int64_t concurrency) const {
  const StepWork& work = summary.work;
  const double drafts = work.request_steps > 0 ? static_cast<double>(work.all_drafted()) /
                                                     static_cast<double>(work.request_steps)
                                               : 0;
  return 1000 * traffic.bytes(static_cast<double>(concurrency) * (1 + drafts)) / bytes_per_second;
}

double MeasuredCell::of_floor() const {
  if (!floor_ms) return 0;
  if (shape.kind == CellKind::kPrefill) {
    return summary.tokens_per_second.median * *floor_ms / 1000 /
           static_cast<double>(std::max<int64_t>(1, shape.prompt_tokens));
  }
  return summary.step_ms() > 0 ? *floor_ms / summary.step_ms() : 0;
}

// ---- records

namespace {

Json to_json(const Percentiles& p) {
  if (p.count == 0) return {};
  return {{"count", p.count}, {"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}, {"max", p.most}};
}

Json to_json(const Spread& spread) {
  if (spread.count == 0) return {};
  return {{"count", spread.count},
          {"median", spread.median},
          {"min", spread.least},
          {"max", spread.most}};
}

// What identifies a cell; its requests carry it too, so that a line stands for itself.
Json to_json(const CellShape& shape, size_t cell) {
  Json json = {{"cell", cell}, {"kind", to_string(shape.kind)}, {"drafts", shape.drafts}};
  if (shape.concurrency > 0) json["concurrency"] = shape.concurrency;
  if (shape.concurrency == 0) json["rate"] = shape.rate;
  return json;
}

Json bursts_json(const RequestRecord& record, bool all) {
  std::vector<double> times;
  Json list = Json::array();
  for (size_t i = 1; i < record.bursts.size(); ++i) {
    const double ms = 1000 * (record.bursts[i].at_s - record.bursts[i - 1].at_s);
    times.push_back(ms);
    if (all) list.push_back({ms, record.bursts[i].tokens});
  }
  return all ? list : to_json(percentiles(std::move(times)));
}

}  // namespace

Json to_json(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"isa", machine.isa},
          {"cpus", machine.cpus},
          {"threads", machine.threads},
          {"load", machine.load}};
}

Json request_json(const RequestRecord& record, const CellShape& shape, size_t cell, int64_t run,
                  bool gaps) {
  Json json = {{"record", "request"}};
  json.update(to_json(shape, cell));
  json["run"] = run;
  json["index"] = record.index;
  json["arrival_ms"] = 1000 * record.arrival_s;
  json["submit_ms"] = 1000 * record.submit_s;
  json["queued_ms"] = record.queued_ms();
  json["ttft_ms"] = record.bursts.empty() ? Json() : Json(record.ttft_ms());
  json["total_ms"] = record.total_ms();
  json["burst_ms"] = bursts_json(record, gaps);
  json["prompt_tokens"] = record.usage.prompt_tokens;
  json["cached_tokens"] = record.usage.cached_tokens;
  json["output_tokens"] = record.tokens();
  json["steps"] = record.usage.steps;
  json["drafted"] = record.usage.drafted;
  json["accepted"] = record.usage.accepted;
  json["preemptions"] = record.usage.preemptions;
  json["finish"] = to_string(record.finish);
  if (record.failed()) json["error"] = record.error;
  return json;
}

Json cell_json(const MeasuredCell& measured, size_t cell) {
  const auto& [shape, summary, floor_ms] = measured;
  const StepWork& work = summary.work;
  const double steps = std::max<double>(1, static_cast<double>(work.steps));
  Json json = {{"record", "cell"}};
  json.update(to_json(shape, cell));
  json["chunk"] = shape.chunk;
  if (shape.prompt_tokens > 0) json["prompt_tokens_each"] = shape.prompt_tokens;
  json["requests"] = summary.requests;
  json["failed"] = summary.failed;
  json["cancelled"] = summary.cancelled;
  if (summary.failed > 0) json["first_error"] = summary.first_error;
  json["prompt_tokens"] = summary.prompt_tokens;
  json["cached_tokens"] = summary.cached_tokens;
  json["output_tokens"] = summary.output_tokens;
  json["tokens_per_second"] = to_json(summary.tokens_per_second);
  json["steady_tokens_per_second"] = to_json(summary.steady_tokens_per_second);
  json["user_tokens_per_second"] = to_json(summary.user_tokens_per_second);
  json["queued_ms"] = to_json(summary.queued_ms);
  json["ttft_ms"] = to_json(summary.ttft_ms);
  json["token_ms"] = to_json(summary.token_ms);
  json["burst_ms"] = to_json(summary.burst_ms);
  json["total_ms"] = to_json(summary.total_ms);
  json["tokens_per_step"] = work.tokens_per_step();
  json["drafted"] = work.drafted;
  json["accepted"] = work.accepted;
  json["predicted"] = work.predicted;
  json["steps"] = work.steps;
  json["step_ms"] = summary.step_ms();
  json["plan_ms_per_step"] = work.plan_ms / steps;
  json["commit_ms_per_step"] = work.commit_ms / steps;
  json["exposed_ms_per_step"] = work.exposed_ms / steps;
  json["host_hidden_share"] = work.hidden_share();
  json["device_idle_share"] = work.idle_share();
  json["preemptions"] = work.preemptions;
  if (floor_ms) {
    json["floor_ms"] = *floor_ms;
    json["of_floor"] = measured.of_floor();
  }
  return json;
}

Json draft_json(const DraftReport& report, const DraftComparison& comparison) {
  Json json = {{"results", Json::array()}, {"dynamic", Json::array()}};
  for (const DraftResult& result : report.results) {
    json["results"].push_back({{"record", "simulated"},
                               {"drafts", comparison.policies[result.policy]},
                               {"concurrency", result.concurrency},
                               {"tokens_per_second", result.median.tokens_per_second},
                               {"tokens_per_step", result.median.tokens_per_step},
                               {"drafts_per_request", result.median.drafts_per_request},
                               {"step_ms", result.median.step_ms}});
  }
  for (const DraftVerdict& verdict : report.verdicts) {
    const auto or_null = [](double ratio) { return ratio > 0 ? Json(ratio) : Json(); };
    json["dynamic"].push_back({{"drafts", verdict.dynamic},
                               {"concurrency", verdict.concurrency},
                               {"best_fixed", verdict.best_fixed},
                               {"over_best_fixed", or_null(verdict.over_best)},
                               {"over_fixed_5", or_null(verdict.over_fixed_5)}});
  }
  return json;
}

Json convert_json(std::span<const ConvertedCell> cells, double acceptance) {
  Json json = {{"acceptance", acceptance}, {"cells", Json::array()}};
  for (const ConvertedCell& cell : cells) {
    json["cells"].push_back({{"line", cell.line},
                             {"drafts", cell.length},
                             {"concurrency", cell.concurrency},
                             {"context", cell.context},
                             {"recorded",
                              {{"acceptance", cell.recorded_acceptance},
                               {"tokens_per_step", cell.recorded_tau},
                               {"tokens_per_second", cell.recorded_rate}}},
                             {"tokens_per_step", cell.tau},
                             {"tokens_per_second", cell.rate}});
  }
  return json;
}

// ---- tables

namespace {

std::string workload_table(std::span<const MeasuredCell> cells) {
  TextTable table({"drafts", "in flight", "tokens/s", "range", "/user p50", "TTFT ms 50 90 99",
                   "token ms 50 90 99", "total ms 50 90 99", "tok/step", "idle", "failed"});
  for (const auto& [shape, s, floor] : cells) {
    if (shape.kind != CellKind::kWorkload) continue;
    table.add({shape.drafts, load_text(shape), median(s.tokens_per_second),
               range(s.tokens_per_second), number(s.user_tokens_per_second.p50), triple(s.ttft_ms),
               triple(s.token_ms), triple(s.total_ms), number(s.work.tokens_per_step()),
               percent(s.work.idle_share()), fmt::format("{}", s.failed)});
  }
  return table.empty() ? "" : table.text() + "\n";
}

std::string prefill_table(std::span<const MeasuredCell> cells) {
  TextTable table({"prefill chunk", "prompt", "batch", "prompt tokens/s", "range",
                   "TTFT ms 50 90 99", "idle", "of floor", "failed"});
  for (const MeasuredCell& cell : cells) {
    const auto& [shape, s, floor] = cell;
    if (shape.kind != CellKind::kPrefill) continue;
    table.add({fmt::format("{}", shape.chunk), fmt::format("{}", shape.prompt_tokens),
               load_text(shape), median(s.tokens_per_second), range(s.tokens_per_second),
               triple(s.ttft_ms), percent(s.work.idle_share()),
               cell.of_floor() > 0 ? percent(cell.of_floor()) : "-", fmt::format("{}", s.failed)});
  }
  return table.empty() ? "" : table.text() + "\n";
}

std::string decode_table(std::span<const MeasuredCell> cells) {
  TextTable table({"decode drafts", "context", "batch", "tokens/s", "range", "/user p50",
                   "token ms 50 90 99", "tok/step", "accepted", "step ms", "idle", "of floor"});
  for (const MeasuredCell& cell : cells) {
    const auto& [shape, s, floor] = cell;
    if (shape.kind != CellKind::kDecode) continue;
    table.add({shape.drafts, fmt::format("{}", shape.prompt_tokens), load_text(shape),
               median(s.tokens_per_second), range(s.tokens_per_second),
               number(s.user_tokens_per_second.p50), triple(s.token_ms),
               number(s.work.tokens_per_step()),
               s.work.all_drafted() > 0 ? percent(acceptance(s.work)) : "-", number(s.step_ms()),
               percent(s.work.idle_share()), cell.of_floor() > 0 ? percent(cell.of_floor()) : "-"});
  }
  return table.empty() ? "" : table.text() + "\n";
}

std::string host_table(std::span<const MeasuredCell> cells) {
  TextTable table({"host drafts", "running", "steps", "step ms", "plan ms", "commit ms",
                   "exposed ms", "hidden", "device idle"});
  for (const auto& [shape, s, floor] : cells) {
    if (shape.kind != CellKind::kHost) continue;
    const double steps = std::max<double>(1, static_cast<double>(s.work.steps));
    const auto ms = [&](double all) { return fmt::format("{:.3f}", all / steps); };
    table.add({shape.drafts, load_text(shape), fmt::format("{}", s.work.steps), number(s.step_ms()),
               ms(s.work.plan_ms), ms(s.work.commit_ms), ms(s.work.exposed_ms),
               percent(s.work.hidden_share()), percent(s.work.idle_share())});
  }
  return table.empty() ? "" : table.text() + "\n";
}

// tokens/s of each draft mode (columns) at each load (rows), with the best one marked.
std::string comparison_table(std::span<const MeasuredCell> cells) {
  std::vector<std::string> modes, loads;
  const auto keep = [](std::vector<std::string>& list, const std::string& name) {
    if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
  };
  for (const MeasuredCell& cell : cells) {
    if (cell.shape.kind != CellKind::kWorkload) continue;
    keep(modes, cell.shape.drafts);
    keep(loads, load_text(cell.shape));
  }
  if (modes.size() < 2) return {};
  std::vector<std::string> headings{"tokens/s, in flight"};
  headings.insert(headings.end(), modes.begin(), modes.end());
  TextTable table(std::move(headings));
  for (const std::string& load : loads) {
    std::vector<std::string> row(modes.size() + 1, "-");
    row[0] = load;
    double best = 0;
    size_t best_column = 0;
    for (const MeasuredCell& cell : cells) {
      if (cell.shape.kind != CellKind::kWorkload || load_text(cell.shape) != load) continue;
      const auto mode = std::find(modes.begin(), modes.end(), cell.shape.drafts) - modes.begin();
      const auto column = static_cast<size_t>(mode) + 1;
      row[column] = median(cell.summary.tokens_per_second);
      if (cell.summary.tokens_per_second.median > best) {
        best = cell.summary.tokens_per_second.median;
        best_column = column;
      }
    }
    if (best_column > 0) row[best_column] = "*" + row[best_column];
    table.add(std::move(row));
  }
  return table.text() + "\n";
}

}  // namespace

std::string cell_tables(std::span<const MeasuredCell> cells) {
  std::string text = workload_table(cells) + comparison_table(cells) + prefill_table(cells) +
                     decode_table(cells) + host_table(cells);
  if (text.ends_with("\n\n")) text.pop_back();
  return text;
}

std::string draft_tables(const DraftReport& report, const DraftComparison& comparison) {
  std::vector<std::string> headings{"tokens/s, in flight"};
  for (const std::string& policy : comparison.policies) headings.push_back(policy);
  TextTable rates(std::move(headings));
  std::vector<std::string> row;
  for (const DraftResult& result : report.results) {
    if (result.policy == 0) row = {fmt::format("{}", result.concurrency)};
    row.push_back(number(result.median.tokens_per_second));
    if (row.size() == comparison.policies.size() + 1) rates.add(row);
  }
  // A row for each concurrency, as above; the verdicts of one follow each other.
  const size_t per_row = static_cast<size_t>(std::count_if(
      report.verdicts.begin(), report.verdicts.end(),
      [&](const DraftVerdict& v) { return v.concurrency == report.verdicts.front().concurrency; }));
  headings = {"gain, in flight", "best fixed"};
  for (size_t i = 0; i < per_row; ++i) headings.push_back(report.verdicts[i].dynamic);
  for (size_t i = 0; i < per_row; ++i) {
    headings.push_back(report.verdicts[i].dynamic + " / fixed:5");
  }
  TextTable gains(std::move(headings));
  for (size_t first = 0; first + per_row <= report.verdicts.size() && per_row > 0;
       first += per_row) {
    const auto verdicts = std::span(report.verdicts).subspan(first, per_row);
    row = {fmt::format("{}", verdicts[0].concurrency), verdicts[0].best_fixed};
    for (const DraftVerdict& verdict : verdicts) row.push_back(gain(verdict.over_best));
    for (const DraftVerdict& verdict : verdicts) row.push_back(gain(verdict.over_fixed_5));
    gains.add(row);
  }
  return rates.text() + (gains.empty() ? "" : "\n" + gains.text());
}

std::string convert_table(std::span<const ConvertedCell> cells, double acceptance) {
  TextTable table({"drafts", "context", "in flight", "recorded a", "tau", "tokens/s",
                   fmt::format("at a = {:g}: tau", acceptance), "tokens/s"});
  for (const ConvertedCell& cell : cells) {
    table.add({fmt::format("fixed:{}", cell.length), fmt::format("{}", cell.context),
               fmt::format("{}", cell.concurrency), fmt::format("{:.3f}", cell.recorded_acceptance),
               number(cell.recorded_tau), number(cell.recorded_rate), number(cell.tau),
               number(cell.rate)});
  }
  return table.text();
}

// ---- plot

std::vector<ParetoPoint> pareto_points(std::span<const MeasuredCell> cells) {
  // Cells of several contexts are different curves.
  std::set<int64_t> contexts;
  for (const MeasuredCell& cell : cells) contexts.insert(cell.shape.prompt_tokens);
  std::vector<ParetoPoint> points;
  for (const auto& [shape, summary, floor] : cells) {
    const bool plotted = shape.kind == CellKind::kWorkload || shape.kind == CellKind::kDecode;
    if (!plotted || shape.concurrency == 0 || summary.tokens_per_second.count == 0) continue;
    const std::string series = contexts.size() > 1
                                   ? fmt::format("{}, {}", shape.drafts, shape.prompt_tokens)
                                   : shape.drafts;
    points.push_back({series, summary.user_tokens_per_second.p50, summary.tokens_per_second.median,
                      fmt::format("{}", shape.concurrency)});
  }
  return points;
}

std::vector<ParetoPoint> pareto_points(const DraftReport& report,
                                       const DraftComparison& comparison) {
  std::vector<ParetoPoint> points;
  for (const DraftResult& result : report.results) {
    const double rate = result.median.tokens_per_second;
    points.push_back({comparison.policies[result.policy],
                      rate / static_cast<double>(result.concurrency), rate,
                      fmt::format("{}", result.concurrency)});
  }
  // By series: a legend in the order of the policies, a line along the concurrencies.
  std::stable_sort(points.begin(), points.end(), [&](const ParetoPoint& a, const ParetoPoint& b) {
    const auto place = [&](const ParetoPoint& point) {
      return std::find(comparison.policies.begin(), comparison.policies.end(), point.series);
    };
    return place(a) < place(b);
  });
  return points;
}

}  // namespace tidemill::cli
