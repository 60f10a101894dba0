// tidemill bench: how fast, offline. docs/benchmarking.md is its manual.
#include <fmt/ranges.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/atomic_file.h"
#include "cli/bench/convert.h"
#include "cli/bench/draft.h"
#include "cli/bench/options.h"
#include "cli/bench/pareto.h"
#include "cli/bench/report.h"
#include "cli/bench/session.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/progress.h"

namespace tidemill::cli {
namespace {

// Files are created before anything is measured: a path that cannot be written fails at once.
struct OutputFiles {
  std::optional<AtomicFile> records;
  std::optional<AtomicFile> pareto;

  static Result<OutputFiles> create(const BenchOptions& options) {
    OutputFiles files;
    if (!options.records.empty()) {
      TRY(files.records, AtomicFile::create(options.records));
    }
    if (!options.pareto.empty()) {
      TRY(files.pareto, AtomicFile::create(options.pareto));
    }
    return files;
  }

  Status record(const Json& line) {
    // A path of the machine need not be UTF-8.
    constexpr auto kReplace = Json::error_handler_t::replace;
    return records ? records->write(line.dump(-1, ' ', false, kReplace) + "\n") : Status();
  }

  Status finish(std::span<const ParetoPoint> points, std::string_view title) {
    if (records) CHECK_OK(records->commit());
    if (!pareto) return {};
    CHECK_OK(pareto->write(pareto_svg(points, title)));
    return pareto->commit();
  }
};

Status interrupted(std::string_view measured) {
  return fail(ErrorCode::kCancelled, "interrupted; {} were measured", measured);
}

Status measure(const BenchOptions& options) {
  TRY(OutputFiles files, OutputFiles::create(options));
  InterruptFlag interrupt;
  TRY(const SessionResult result,
      run_session(options, interrupt.flag(), [&](const Json& line) { return files.record(line); }));
  CHECK_OK(files.finish(pareto_points(result.cells), result.machine.cpu));
  if (options.json) {
    Json json;
    json["machine"] = to_json(result.machine);
    json["model"] = result.model;
    if (options.floor) {
      json["read_bytes_per_second"] = result.read_bytes_per_second;
      json["peak_flops_per_second"] = result.peak_flops_per_second;
      json["prefill_flops_per_token"] = result.token_flops;
    }
    json["interrupted"] = result.interrupted;
    json["cells"] = Json::array();
    for (size_t i = 0; i < result.cells.size(); ++i) {
      json["cells"].push_back(cell_json(result.cells[i], i));
    }
    CHECK_OK(write_stdout(python_json(json) + "\n"));
  } else {
    const Machine& machine = result.machine;
    std::string head = fmt::format("{}, {}, {} threads on {} CPUs, load {:.1f}", machine.cpu,
                                   machine.isa, machine.threads, machine.cpus, machine.load);
    if (options.floor) {
      head += fmt::format(", memory {:.1f} GB/s, {:.0f} GFLOP/s, prefill {:.3g} MFLOP per token",
                          result.read_bytes_per_second / 1e9, result.peak_flops_per_second / 1e9,
                          static_cast<double>(result.token_flops) / 1e6);
    }
    CHECK_OK(write_stdout(head + "\n\n" + cell_tables(result.cells)));
  }
  CHECK_OK(result.error);
  for (const MeasuredCell& cell : result.cells) {
    if (cell.summary.failed == 0 || cell.summary.failed < cell.summary.requests) continue;
    return fail(ErrorCode::kNoCapacity, "a cell has no request that succeeded: {}",
                cell.summary.first_error);
  }
  if (result.interrupted) return interrupted(fmt::format("{} cells", result.cells.size()));
  return {};
}

Status simulate(const BenchOptions& options) {
  TRY(const CostCurve curve, CostCurve::load(options.curve));
  TRY(OutputFiles files, OutputFiles::create(options));
  DraftComparison comparison{
      .policies = options.drafts,
      .concurrencies = options.concurrency,
      .seeds = options.repeats > 0 ? options.repeats : 3,
  };
  if (comparison.policies.empty()) {
    comparison.policies = {"off",     "fixed:1", "fixed:2",        "fixed:3",           "fixed:4",
                           "fixed:5", "dynamic", "dynamic-lagged", "dynamic-early-stop"};
  }
  if (comparison.concurrencies.empty()) {
    comparison.concurrencies = {1, 2, 4, 8, 16, 24, 32, 48, 60, 64, 80, 96};
  }
  InterruptFlag interrupt;
  ProgressBar bar("simulating");
  TRY(const DraftReport report, compare_drafts(curve, comparison, [&](double fraction) {
        bar.update(fraction);
        return !interrupt.flag();
      }));
  bar.finish();
  Json json = draft_json(report, comparison);
  for (const Json& line : json["results"]) CHECK_OK(files.record(line));
  CHECK_OK(files.finish(pareto_points(report, comparison), "simulated device"));
  const std::vector<std::string> breaches = check_drafts(report);
  if (options.check) json["breaches"] = breaches;
  CHECK_OK(
      write_stdout(options.json ? python_json(json) + "\n" : draft_tables(report, comparison)));
  if (interrupt.flag()) return interrupted(fmt::format("{} points", report.results.size()));
  if (options.check && !breaches.empty()) {
    return fail(ErrorCode::kRequest, "--check: {}", fmt::join(breaches, "; "));
  }
  return {};
}

Status convert(const BenchOptions& options) {
  const std::string drafts = options.drafts.empty() ? "" : options.drafts.front();
  TRY(const auto cells, convert_records(options.convert, options.acceptance, drafts));
  if (options.json) {
    return write_stdout(python_json(convert_json(cells, options.acceptance)) + "\n");
  }
  return write_stdout(convert_table(cells, options.acceptance));
}

Status bench(const BenchOptions& options) {
  switch (options.mode()) {
    case BenchMode::kCurve:
      return simulate(options);
    case BenchMode::kConvert:
      return convert(options);
    default:
      return measure(options);
  }
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "bench", "How fast: workloads, sweeps, drafts, the host's work; records and a plot");
  const auto options = std::make_shared<BenchOptions>();
  options->add_to(*command);
  command->callback([command, options, &action] {
    const Status status = options->check_flags(*command);
    action = [options, status] { return status ? bench(*options) : status; };
  });
}

}  // namespace tidemill::cli
