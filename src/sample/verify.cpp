#include "sample/verify.h"

#include <algorithm>
#include <cassert>

namespace tidemill {
namespace {

// Probabilities and masses up to this are rounding noise.
constexpr double kTiny = 1e-8;

// Distribution that one draft was drawn from.
struct DraftRow {
  std::span<const float> q;  // empty: the draft was certain
  int32_t draft;

  double operator()(int32_t token) const {
    if (q.empty()) return token == draft ? 1.0 : 0.0;
    return static_cast<double>(q[token]);
  }
};

bool accepts(const Distribution& p, const DraftRow& q, const NoiseKey& key) {
  const double target = p.probability(q.draft);
  if (target == 0.0) return false;  // q may have no such token
  return noise_uniform(key, 0) * std::max(q(q.draft), kTiny) < target;
}

// A token in place of the rejected draft. Without a residual (p = q up to rounding) p itself.
int32_t replace_draft(const Distribution& p, const DraftRow& q, const NoiseKey& key) {
  const auto residual = [&](size_t i) {
    return std::max(0.0, static_cast<double>(p.weights[i]) / p.total - q(p.ids[i]));
  };
  double mass = 0.0;
  for (size_t i = 0; i < p.ids.size(); ++i) mass += residual(i);
  return mass > kTiny ? draw(key, p.ids, residual) : p.draw(key);
}

// Accepted drafts in the history for as long as the rows after them are looked at.
class AcceptedDrafts {
 public:
  AcceptedDrafts(TokenHistory& history, std::span<const int32_t> drafts, bool needed)
      : history_(history), drafts_(drafts), needed_(needed) {}
  ~AcceptedDrafts() {
    if (!needed_) return;
    for (const int32_t token : drafts_.first(count_)) history_.remove_output(token);
  }
  AcceptedDrafts(const AcceptedDrafts&) = delete;
  AcceptedDrafts& operator=(const AcceptedDrafts&) = delete;

  void accept_next() {
    if (needed_) history_.add_output(drafts_[count_]);
    ++count_;
  }
  size_t count() const { return count_; }

 private:
  TokenHistory& history_;
  std::span<const int32_t> drafts_;
  bool needed_;
  size_t count_ = 0;
};

}  // namespace

Result<Verdict> verify_keyed(Sampler& sampler, std::span<const float> target,
                             std::span<const int32_t> drafts, const SamplingParams& params,
                             TokenHistory& history, int64_t position) {
  const auto vocabulary = static_cast<size_t>(sampler.vocabulary());
  assert(target.size() == (drafts.size() + 1) * vocabulary);
  AcceptedDrafts accepted(history, drafts, params.uses_history());
  return verify_keyed(drafts, [&](int64_t j) {
    if (j > 0) accepted.accept_next();
    return sampler.sample(target.subspan(static_cast<size_t>(j) * vocabulary, vocabulary), params,
                          history, position + j);
  });
}

Result<Verdict> verify_keyed(std::span<const int32_t> drafts,
                             const std::function<Result<int32_t>(int64_t j)>& token) {
  for (int64_t j = 0;; ++j) {
    TRY(const int32_t own, token(j));
    if (j == std::ssize(drafts) || own != drafts[static_cast<size_t>(j)]) return Verdict{j, own};
  }
}

Result<Verdict> verify_rejection(Sampler& sampler, std::span<const float> target,
                                 std::span<const int32_t> drafts, std::span<const float> q,
                                 const SamplingParams& params, TokenHistory& history,
                                 int64_t position) {
  const auto vocabulary = static_cast<size_t>(sampler.vocabulary());
  assert(target.size() == (drafts.size() + 1) * vocabulary);
  assert(q.empty() || q.size() == drafts.size() * vocabulary);
  AcceptedDrafts accepted(history, drafts, params.uses_history());
  for (;;) {
    const size_t j = accepted.count();
    const int64_t at = position + static_cast<int64_t>(j);
    TRY(const Distribution p,
        sampler.distribution(target.subspan(j * vocabulary, vocabulary), params, history, at));
    const auto verdict = [&](int32_t next) { return Verdict{static_cast<int64_t>(j), next}; };
    if (j == drafts.size()) return verdict(p.draw({params.seed, at, NoiseStream::kTarget}));
    const DraftRow row{q.empty() ? q : q.subspan(j * vocabulary, vocabulary), drafts[j]};
    if (!accepts(p, row, {params.seed, at, NoiseStream::kAccept})) {
      return verdict(replace_draft(p, row, {params.seed, at, NoiseStream::kResidual}));
    }
    accepted.accept_next();
  }
}

}  // namespace tidemill
