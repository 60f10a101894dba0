#include "fixture.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "ops/test_backend.h"
#include "text/json.h"

namespace tidemill {
namespace {

std::unique_ptr<Model> load(const std::filesystem::path& directory) {
  auto model = Model::load(directory);
  if (!model) {
    fmt::print(stderr, "{}\n", model.error().message);
    std::abort();
  }
  return std::move(*model);
}

}  // namespace

std::filesystem::path vectors(const std::string& name) {
  return std::filesystem::path(TIDEMILL_SOURCE_DIR) / "tests/vectors" / name;
}

double quality_bound(const std::string& name) {
  std::ifstream file(vectors("mini/quality.json"));
  std::stringstream text;
  text << file.rdbuf();
  const auto json = parse_json(text.str());
  return json && json->contains(name) ? (*json)[name].get<double>() : std::nan("");
}

const Model& micro_model() {
  static const std::unique_ptr<Model> model = load(vectors("micro"));
  return *model;
}

const Model& mini_model() {
  static const std::unique_ptr<Model> model =
      load(std::filesystem::path(TIDEMILL_SOURCE_DIR) / "models/mini");
  return *model;
}

ThreadTeam& Machine::team() {
  static ThreadTeam team(ThreadTeam::available_threads());
  return team;
}

std::unique_ptr<Backend> Machine::best() {
  if (testing_cuda_only()) return cuda_backend_for_tests();
  for (const CpuIsa isa : {CpuIsa::kAvx512Bf16, CpuIsa::kAvx512, CpuIsa::kAvx2}) {
    if (cpu_supports(isa)) return std::move(*make_cpu_backend(team(), isa));
  }
  return reference();
}

std::unique_ptr<Backend> Machine::reference(ProductOrder order) {
  return make_reference_backend(team(), Rounding{}, order);
}

Machine::Machine(const Model& model, std::unique_ptr<Backend> backend, ReplayForm form)
    : backend_(std::move(backend)), weights_(placed(model, *backend_)) {
  auto layout = StateLayout::build(model.config(), model.topology(), *backend_);
  pool_ = std::make_unique<StatePool>(*StatePool::create(*backend_, std::move(*layout), 4, 128));
  forward_ = std::make_unique<Forward>(
      *Forward::create(model, *backend_, *pool_,
                       {.max_tokens = 2048,
                        .replay_form = form,
                        .weights = weights_ != nullptr ? &weights_->weights() : nullptr}));
}

std::unique_ptr<PlacedWeights> placed(const Model& model, Backend& backend) {
  if (backend.host_memory()) return nullptr;
  return std::make_unique<PlacedWeights>(*PlacedWeights::create(model.weights(), backend));
}

std::vector<float> Machine::run(Sequence& sequence, std::span<const int32_t> tokens,
                                Logits logits) {
  const StepItem item{&sequence, tokens, logits};
  const auto output = forward_->run({&item, 1});
  EXPECT_TRUE(output) << (output ? "" : output.error().message);
  if (!output) return {};
  const Rows& rows = output->logits;
  return {rows.f32(0), rows.f32(0) + rows.count * rows.width};
}

Machine::Draft Machine::draft(const Sequence& sequence, int32_t anchor) {
  Draft draft;
  const Forward::DraftItem item{&sequence, anchor};
  EXPECT_TRUE(forward_->draft({&item, 1}));
  int32_t previous = anchor;
  for (int64_t k = 0; k < forward_->model().config().dspark_block_size; ++k) {
    const auto row = forward_->draft_logits(k, {&previous, 1});
    EXPECT_TRUE(row);
    const std::span<const float> logits(row->logits.f32(0), static_cast<size_t>(row->logits.width));
    draft.confidence.push_back(row->confidence[0]);
    draft.logits.insert(draft.logits.end(), logits.begin(), logits.end());
    draft.ids.push_back(previous = argmax(logits));
  }
  return draft;
}

int32_t argmax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

Difference compare(const std::vector<float>& got, const std::vector<float>& want,
                   const std::vector<int64_t>& positions, int64_t vocabulary, double threshold) {
  Difference d;
  const auto width = static_cast<size_t>(vocabulary);
  for (size_t i = 0; i < positions.size(); ++i) {
    const std::span<const float> g(got.data() + static_cast<size_t>(positions[i]) * width, width);
    const std::span<const float> w(want.data() + i * width, width);
    double row_max = 0;
    double sum_g = 0;
    double sum_w = 0;
    const int32_t best_g = argmax(g);
    const int32_t best_w = argmax(w);
    const double top_g = g[static_cast<size_t>(best_g)];
    const double top_w = w[static_cast<size_t>(best_w)];
    double second = -1e30;
    for (size_t v = 0; v < width; ++v) {
      const double difference = std::fabs(static_cast<double>(g[v]) - w[v]);
      d.mean += difference;
      row_max = std::max(row_max, difference);
      sum_g += std::exp(g[v] - top_g);
      sum_w += std::exp(w[v] - top_w);
      if (static_cast<int32_t>(v) != best_w) second = std::max<double>(second, w[v]);
    }
    for (size_t v = 0; v < width; ++v) {
      const double log_w = w[v] - top_w - std::log(sum_w);
      const double log_g = g[v] - top_g - std::log(sum_g);
      d.kl += std::exp(log_w) * (log_w - log_g);
    }
    d.max = std::max(d.max, row_max);
    d.argmax += best_g == best_w;
    if (best_g != best_w && top_w - second > 4) d.argmax_by_gap = false;
    if (row_max > threshold) d.rows_above.push_back(positions[i]);
  }
  const auto rows = static_cast<double>(positions.size());
  d.mean /= rows * static_cast<double>(vocabulary);
  d.kl /= rows;
  d.argmax /= rows;
  return d;
}

}  // namespace tidemill
