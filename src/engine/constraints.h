// Constraints of requests on their way to compiled grammars, off the step loop.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "model/model.h"
#include "sample/grammar.h"
#include "sample/grammar_pool.h"
#include "tidemill/options.h"
#include "tidemill/request.h"

namespace tidemill {

// Errors: kRequest with the field (tools that are no JSON, a named choice without its tool, more
// than `most` bytes).
Result<GrammarSpec> grammar_spec(const Constraint& constraint, int64_t most);

class Constraints {
 public:
  // The model must outlive it. `wake` is called from another thread when something is done.
  Constraints(const Model& model, const Options& options, std::vector<int32_t> end_tokens,
              std::function<void()> wake);

  // Errors: those of grammar_spec; kTokenizer when this model's tokenizer cannot be constrained.
  // Any thread.
  Result<GrammarSpec> read(const Constraint& constraint) const;
  // Error kNoCapacity when too many wait. All others come with the result.
  Result<GrammarPool::Ticket> submit(GrammarSpec spec, Deadline deadline);
  void cancel(GrammarPool::Ticket ticket);
  std::vector<GrammarPool::Done> take_done();

  GrammarCompiler::Stats stats() const;
  int64_t pending() const { return pool_ ? pool_->pending() : 0; }

 private:
  int64_t source_bytes_;
  std::optional<Error> unusable_;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::unique_ptr<GrammarPool> pool_;
};

}  // namespace tidemill
