#include "ops/reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace tidemill::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// -1: none can be drawn.
int32_t likeliest_of(const float* row, int64_t width) {
  // Independent lanes, so that the compiler can use vector registers.
  constexpr int64_t kLanes = 16;
  std::array<float, kLanes> largest;
  std::array<int32_t, kLanes> bad{};
  largest.fill(-kInfinity);
  const auto visit = [&](int64_t lane, float x) {
    largest[static_cast<size_t>(lane)] = std::max(largest[static_cast<size_t>(lane)], x);
    bad[static_cast<size_t>(lane)] |= static_cast<int32_t>(!(x < kInfinity));
  };
  int64_t k = 0;
  for (; k + kLanes <= width; k += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) visit(lane, row[k + lane]);
  }
  for (; k < width; ++k) visit(0, row[k]);
  const float best = *std::max_element(largest.begin(), largest.end());
  const bool any_bad = std::any_of(bad.begin(), bad.end(), [](int32_t lane) { return lane != 0; });
  if (any_bad || best == -kInfinity) return -1;
  return static_cast<int32_t>(std::find(row, row + width, best) - row);
}

struct Token {
  int32_t id;
  float scaled;
  double weight() const { return static_cast<double>(std::exp(scaled)); }
};

// Shortens a list in order of likelihood. False: whether the last one belongs to it depends on the
// order of additions.
bool keep_top_p(std::vector<Token>& tokens, float top_p) {
  constexpr double kRounding = 1e-9;
  double total = 0;
  for (const Token& token : tokens) total += token.weight();
  const double target = top_p * total;
  double sum = 0;
  for (size_t kept = 0; kept < tokens.size(); ++kept) {
    if (kept > 0 && std::abs(sum - target) < kRounding * total) return false;
    if (sum >= target) {
      tokens.resize(kept);
      return true;
    }
    sum += tokens[kept].weight();
  }
  return true;
}

Drawn drawn_from(const float* row, int64_t width, const DrawRow& how) {
  const int32_t likeliest = likeliest_of(row, width);
  if (likeliest < 0) return {};
  if (how.temperature == 0.0f) return {.count = 1, .id = {likeliest}};

  std::vector<Token> tokens;
  for (int64_t k = 0; k < width; ++k) {
    const float scaled = (row[k] - row[likeliest]) / how.temperature;
    if (scaled >= how.lowest) tokens.push_back({static_cast<int32_t>(k), scaled});
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const Token& a, const Token& b) { return a.scaled > b.scaled; });
  if (how.top_k > 0) tokens.resize(std::min(tokens.size(), static_cast<size_t>(how.top_k)));
  if (how.top_p < 1.0f && !keep_top_p(tokens, how.top_p)) return {};
  std::sort(tokens.begin(), tokens.end(),
            [](const Token& a, const Token& b) { return a.id < b.id; });

  std::vector<int32_t> ids(tokens.size());
  std::transform(tokens.begin(), tokens.end(), ids.begin(), [](const Token& t) { return t.id; });
  const int32_t id = tidemill::draw(how.key, ids, [&](size_t i) { return tokens[i].weight(); });
  return {.count = 1, .id = {id}, .scaled = {(row[id] - row[likeliest]) / how.temperature}};
}

}  // namespace

void draw(const Context& context, const DrawArgs& a) {
  context.team.parallel_for(a.logits.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      a.drawn[t] = drawn_from(a.logits.f32(t), a.logits.width, a.rows[t]);
    }
  });
}

}  // namespace tidemill::reference
