// Bounds of time and memory for a compile, which hold inside xgrammar too: it has none of its own.
#pragma once

#include <cstdint>
#include <stop_token>

#include "base/clock.h"
#include "base/result.h"

namespace tidemill {

// Thrown where a compile goes beyond a bound, caught in GrammarCompiler::compile. Not a
// std::exception: nothing on the way takes it for an error of the grammar.
struct CompileInterrupted {
  Error error;
};

struct CompileBounds {
  Deadline deadline = Deadline::never();
  std::stop_token stop = {};
  int64_t working_bytes = INT64_MAX;  // of intermediate grammars and automata, all stages together
};

// While it lives, the bounds hold for this thread; one at a time. What is bounded, all of it by
// calls that the linker leads past this file (--wrap in cmake/xgrammar.cmake):
//   the optimiser of rules, by each sequence and each list of alternatives that it makes, and by
//   each class and string that it copies;
//   the automata, by each state, and by the set of end states that each rule keeps over all states
//   (rules x states bits: what a grammar of many small rules costs most);
//   the merging of states, which takes far longer than linear in some automata: left out there;
//   the pass over the tokens, by each state and each byte of a token.
class CompileLimit {
 public:
  explicit CompileLimit(CompileBounds bounds);
  ~CompileLimit();
  CompileLimit(const CompileLimit&) = delete;
  CompileLimit& operator=(const CompileLimit&) = delete;

  // The one of this thread, if any.
  static CompileLimit* current();

  // Throw CompileInterrupted when a bound is passed. The first looks at once; the others now and
  // then, for what takes well below a microsecond.
  void check();
  void count_step();
  void count_bytes(int64_t bytes);

 private:
  CompileBounds bounds_;
  int64_t bytes_ = 0;
  int64_t steps_ = 0;
};

// The same for CompileLimit::current(), if there is one: for our own stages.
void count_compile_step();
// Counts a multiple of the bytes of a grammar's text, which xgrammar holds in several forms.
void count_compile_text(size_t bytes);

}  // namespace tidemill
