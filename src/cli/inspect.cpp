// tidemill inspect: what a checkpoint consists of, what a token costs, what fits where.
#include <fmt/ranges.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/huge_memory.h"
#include "base/thread_team.h"
#include "cli/command.h"
#include "cli/inspect_report.h"
#include "cli/model_directory.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "model/weight_pager.h"
#include "text/json.h"

namespace tidemill::cli {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr std::array<int64_t, 8> kMemoryGiB = {1, 4, 16, 64, 128, 256, 512, 1024};

struct InspectOptions {
  std::string model;
  bool json = false;
};

// "512 B", "12.3 MB": decimal units, as disks and model cards use them.
std::string bytes_text(int64_t bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string count_text(int64_t count) {
  if (count >= 1'000'000'000) return fmt::format("{:.1f} G", static_cast<double>(count) / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.1f} M", static_cast<double>(count) / 1e6);
  if (count >= 1'000) return fmt::format("{:.1f} k", static_cast<double>(count) / 1e3);
  return fmt::format("{}", count);
}

// One word per duty, so that a table of layers reads like the paper's figure.
std::vector<std::string> duties(const LayerRole& role) {
  std::vector<std::string> words{role.decoder ? "decoder" : "encoder"};
  if (role.kv_source < 0) words.push_back("window only");
  if (role.kv_source >= 0) {
    words.push_back(fmt::format("{} cache {} (ratio {})", role.owns_kv ? "owns" : "reads",
                                role.kv_source, role.ratio));
    words.push_back(role.owns_index ? "selects" : "reuses selection");
  }
  if (role.builds_pool) words.push_back("builds pool");
  if (role.reads_pool) words.push_back("within pool");
  if (role.engram >= 0) words.push_back(fmt::format("Engram {}", role.engram));
  if (role.tap >= 0) words.push_back(fmt::format("drafter tap {}", role.tap));
  return words;
}

Json to_json(const LayerRole& role) {
  const auto number_or_null = [](int64_t number) { return number < 0 ? Json() : Json(number); };
  return {{"part", role.decoder ? "decoder" : "encoder"},
          {"ratio", role.ratio},
          {"kv_source", number_or_null(role.kv_source)},
          {"owns_kv", role.owns_kv},
          {"owns_index", role.owns_index},
          {"builds_pool", role.builds_pool},
          {"reads_pool", role.reads_pool},
          {"engram", number_or_null(role.engram)},
          {"tap", number_or_null(role.tap)}};
}

Json to_json(const Model& model, const InspectReport& report) {
  Json json;
  const auto kind_json = [](const TensorKind& kind) {
    return Json{{"tensors", kind.tensors},
                {"parameters", kind.parameters},
                {"bytes", kind.bytes},
                {"read_bytes_per_token", kind.read_bytes}};
  };
  json["file_bytes"] = model.checkpoint().file_bytes();
  for (const TensorKind& kind : report.kinds)
    json["kinds"][std::string(kind.name)] = kind_json(kind);
  json["total"] = kind_json(report.total);
  json["layers"] = Json::array();
  for (const LayerRole& role : model.topology().layers) json["layers"].push_back(to_json(role));
  json["state"] = {{"bytes_per_token", report.state_token_bytes},
                   {"bytes_per_sequence", report.state_sequence_bytes},
                   {"read_bytes_per_token", report.state_read_bytes},
                   {"index_key_bytes_per_context_token", report.index_key_bytes_per_token}};
  const WeightResidency weights = WeightResidency::of(model);
  json["little_memory"] = {{"always_bytes", weights.always},
                           {"expert_bytes", weights.experts},
                           {"table_bytes", weights.tables},
                           {"least_bytes", weights.least_bytes()}};
  const NodeShares nodes = ThreadTeam::nodes_for(ThreadTeam::available_threads());
  json["memory_nodes"] = nodes.describe();
  const std::string_view mapped = why_mapped(model.checkpoint().file_bytes(), nodes);
  json["huge_pages"] = {{"auto", mapped.empty() ? "on" : "off"}, {"why_off", mapped}};
  json["fits"] = Json::array();
  for (const int64_t memory : kMemoryGiB) {
    const int64_t tokens = tokens_that_fit(report, memory * kGiB, 1);
    json["fits"].push_back(
        {{"memory_gib", memory}, {"tokens", tokens < 0 ? Json() : Json(tokens)}});
  }
  return json;
}

std::string to_text(const Model& model, const InspectReport& report) {
  std::string text = fmt::format("{:<22}{:>9}{:>14}{:>12}{:>18}\n", "kind", "tensors", "parameters",
                                 "bytes", "read per token");
  const auto add = [&](const TensorKind& kind) {
    text += fmt::format("{:<22}{:>9}{:>14}{:>12}{:>18}\n", kind.name, kind.tensors,
                        count_text(kind.parameters), bytes_text(kind.bytes),
                        bytes_text(kind.read_bytes));
  };
  for (const TensorKind& kind : report.kinds) add(kind);
  add(report.total);

  text += "\nlayer\n";
  const auto& layers = model.topology().layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    text += fmt::format("{:>5}  {}\n", i, fmt::join(duties(layers[i]), ", "));
  }

  const int64_t context = model.config().max_position_embeddings;
  text += fmt::format(
      "\nstate\n  {:<34}{}\n  {:<34}{}\n  {:<34}{}\n  {:<34}{} + {} per 1000 tokens before it\n",
      "per token", bytes_text(report.state_token_bytes), "per sequence",
      bytes_text(report.state_sequence_bytes), fmt::format("one sequence of {} tokens", context),
      bytes_text(report.state_sequence_bytes + context * report.state_token_bytes),
      "read per token", bytes_text(report.state_read_bytes),
      bytes_text(1000 * report.index_key_bytes_per_token));

  text += "\nmemory     tokens of one sequence beside the weights (activations not counted)\n";
  for (const int64_t memory : kMemoryGiB) {
    const int64_t tokens = tokens_that_fit(report, memory * kGiB, 1);
    const std::string fits = tokens < 0          ? "the weights do not fit"
                             : tokens >= context ? fmt::format("the whole context of {}", context)
                                                 : fmt::format("{}", tokens);
    text += fmt::format("{:>4} GiB   {}\n", memory, fits);
    if (tokens >= context) break;
  }

  const WeightResidency weights = WeightResidency::of(model);
  text += fmt::format(
      "\nwith --memory SIZE below the weights' {}, at least {}\n"
      "  {} stay in memory; of the {} of routed experts, those wanted most\n"
      "  {} of Engram tables stay in the file\n",
      bytes_text(report.total.bytes), bytes_text(weights.least_bytes()), bytes_text(weights.always),
      bytes_text(weights.experts), bytes_text(weights.tables));

  const NodeShares nodes = ThreadTeam::nodes_for(ThreadTeam::available_threads());
  const std::string_view mapped = why_mapped(model.checkpoint().file_bytes(), nodes);
  const std::string held = !mapped.empty()        ? fmt::format("mapped ({})", mapped)
                           : huge_pages_offered() ? "in huge pages"
                                                  : "in memory, in small pages";
  text += fmt::format("\nweights, with --huge-pages auto on this machine now: {}; {}\n", held,
                      nodes.describe());
  return text;
}

Status inspect(const InspectOptions& options) {
  TRY(const auto directory, find_model(options.model));
  ProgressBar bar("checking");
  LoadOptions load;
  load.prefault = false;
  load.progress = [&](double fraction) { bar.update(fraction); };
  TRY(const auto model, Model::load(directory, load));
  bar.finish();
  ThreadTeam team(1);
  const auto backend = make_reference_backend(team);  // only for the formats of the caches
  TRY(const auto layout, StateLayout::build(model->config(), model->topology(), *backend));
  const InspectReport report = inspect_model(*model, layout);
  if (options.json) return write_stdout(python_json(to_json(*model, report)) + "\n");
  return write_stdout(to_text(*model, report));
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "inspect", "Parameters and bytes by kind, layer roles, bytes per token, what fits where");
  const auto options = std::make_shared<InspectOptions>();
  command->add_option("--model", options->model,
                      "Checkpoint directory (default: $TIDEMILL_MODEL, or mini)");
  command->add_flag("--json", options->json, "The same as JSON");
  command->callback([options, &action] { action = [options] { return inspect(*options); }; });
}

}  // namespace tidemill::cli
