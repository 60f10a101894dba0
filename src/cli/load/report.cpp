// A summary as JSON and as text.
#include "base/escape.h"
#include "cli/bench/table.h"
#include "cli/load/summary.h"

namespace tidemill::cli {
namespace {

Json to_json(const Percentiles& p) {
  if (p.count == 0) return {};
  return {{"count", p.count}, {"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}, {"max", p.most}};
}

Json to_json(const GapCheck& gaps, ArrivalProcess process) {
  if (gaps.count == 0) return {};
  Json json = {
      {"count", gaps.count}, {"mean_gap_ms", 1000 * gaps.mean_s}, {"variation", gaps.variation}};
  if (process == ArrivalProcess::kPoisson) {
    json["ks_distance"] = gaps.distance;
    json["ks_limit"] = gaps.limit;
  }
  json["fits"] = gaps.fits;
  return json;
}

void add_row(TextTable& table, const char* name, const Percentiles& p) {
  if (p.count == 0) return;
  const auto cell = [](double ms) { return fmt::format("{:.1f}", ms); };
  table.add({name, cell(p.p50), cell(p.p90), cell(p.p99), cell(p.most)});
}

std::string failure_name(const LoadFailure& failure) {
  return failure.reason == "http" ? fmt::format("HTTP {}", failure.status) : failure.reason;
}

std::string gaps_text(const GapCheck& gaps, const LoadIntent& intent) {
  std::string text =
      fmt::format("mean gap {:.1f} ms, variation {:.2f}", 1000 * gaps.mean_s, gaps.variation);
  if (intent.process == ArrivalProcess::kPoisson) {
    text += fmt::format(", KS {:.3f} (limit {:.3f})", gaps.distance, gaps.limit);
  }
  return text;
}

}  // namespace

Json load_summary_json(const LoadSummary& sum, const LoadIntent& intent) {
  Json json = {{"target", intent.target}, {"model", intent.model}};
  json["arrivals"] = {{"process", to_string(intent.process)}};
  if (intent.process != ArrivalProcess::kTrace) json["arrivals"]["rate"] = intent.rate;
  json["arrivals"]["seed"] = intent.seed;
  json["arrivals"]["intended"] = to_json(sum.intended_gaps, intent.process);
  json["arrivals"]["sent"] = to_json(sum.sent_gaps, intent.process);
  json["arrivals"]["lag_ms"] = to_json(sum.lag_ms);
  json["arrivals"]["waited"] = sum.waited;
  json["kept_up"] = sum.kept_up();
  json["notes"] = load_notes(sum, intent);
  json["requests"] = {{"planned", intent.planned}, {"arrived", sum.arrived},
                      {"sent", sum.sent},          {"ok", sum.ok},
                      {"failed", sum.failed},      {"aborted", sum.aborted}};
  json["failures"] = Json::array();
  for (const LoadFailure& failure : sum.failures) {
    json["failures"].push_back({{"reason", failure.reason},
                                {"status", failure.status},
                                {"count", failure.count},
                                {"example", failure.example}});
  }
  json["seconds"] = sum.seconds;
  json["requests_per_second"] = sum.per_second(sum.ok);
  json["output_tokens_per_second"] = sum.per_second(sum.output_tokens);
  json["tokens_per_second"] = sum.per_second(sum.prompt_tokens + sum.output_tokens);
  json["prompt_tokens"] = sum.prompt_tokens;
  json["cached_tokens"] = sum.cached_tokens;
  json["output_tokens"] = sum.output_tokens;
  json["without_usage"] = sum.without_usage;
  json["without_content"] = sum.without_content;
  json["from_intended"] = {{"ttft_ms", to_json(sum.ttft_ms)}, {"e2e_ms", to_json(sum.e2e_ms)}};
  json["from_sent"] = {{"ttft_ms", to_json(sum.sent_ttft_ms)},
                       {"e2e_ms", to_json(sum.sent_e2e_ms)}};
  json["itl_ms"] = to_json(sum.itl_ms);
  json["tpot_ms"] = to_json(sum.tpot_ms);
  json["goodput"] = Json();
  if (!intent.slo.empty()) {
    json["goodput"] = {{"slo", intent.slo.text()},
                       {"good", sum.good},
                       {"share", sum.good_share()},
                       {"requests_per_second", sum.per_second(sum.good)}};
  }
  return json;
}

std::string load_summary_text(const LoadSummary& sum, const LoadIntent& intent) {
  std::string out = fmt::format("{}, model {}, {}", intent.target, escape_control(intent.model),
                                to_string(intent.process));
  if (intent.process != ArrivalProcess::kTrace) out += fmt::format(" {:g}/s", intent.rate);
  out += fmt::format(", seed {}\n", intent.seed);
  out += fmt::format("{} requests in {:.1f} s: {} ok, {} failed, {} aborted\n", sum.arrived,
                     sum.seconds, sum.ok, sum.failed, sum.aborted);
  for (const LoadFailure& failure : sum.failures) {
    out += fmt::format("  {} x {}: {}\n", failure.count, failure_name(failure),
                       escape_control(failure.example));
  }
  TextTable table({"ms", "p50", "p90", "p99", "max"});
  add_row(table, "TTFT", sum.ttft_ms);
  add_row(table, "TTFT from actual send", sum.sent_ttft_ms);
  add_row(table, "ITL", sum.itl_ms);
  add_row(table, "TPOT", sum.tpot_ms);
  add_row(table, "E2E", sum.e2e_ms);
  add_row(table, "E2E from actual send", sum.sent_e2e_ms);
  add_row(table, "send lag", sum.lag_ms);
  if (!table.empty()) out += fmt::format("\n{}\n", table.text());
  out += fmt::format(
      "{:.2f} requests/s, {:.1f} output tokens/s, {:.1f} tokens/s with prompts\n"
      "{} prompt tokens ({} cached), {} output tokens\n",
      sum.per_second(sum.ok), sum.per_second(sum.output_tokens),
      sum.per_second(sum.prompt_tokens + sum.output_tokens), sum.prompt_tokens, sum.cached_tokens,
      sum.output_tokens);
  if (!intent.slo.empty()) {
    out += fmt::format("goodput ({}): {} of {} requests ({:.1f} %), {:.2f} requests/s\n",
                       intent.slo.text(), sum.good, sum.arrived - sum.aborted,
                       100 * sum.good_share(), sum.per_second(sum.good));
  }
  if (sum.intended_gaps.count > 0) {
    out += fmt::format("arrivals: planned {}", gaps_text(sum.intended_gaps, intent));
    if (sum.sent_gaps.count > 0) {
      out += fmt::format("; sent {}", gaps_text(sum.sent_gaps, intent));
    }
    out += '\n';
  }
  for (const std::string& note : load_notes(sum, intent)) out += note + "\n";
  return out;
}

}  // namespace tidemill::cli
