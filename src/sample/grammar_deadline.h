// A time limit for xgrammar's compiler, which has none of its own.
#pragma once

#include <stdexcept>

#include "base/clock.h"

namespace tidemill {

struct CompileTimeout : std::runtime_error {
  CompileTimeout() : std::runtime_error("the grammar was not compiled in time") {}
};

// While it lives, xgrammar's compiler throws CompileTimeout on this thread once the deadline has
// passed. Compiling is a loop over the states of the grammar, each of which asks for the sorted
// vocabulary; the linker puts a look at the clock before that (--wrap in cmake/xgrammar.cmake).
class CompileTimeLimit {
 public:
  explicit CompileTimeLimit(Deadline deadline);
  ~CompileTimeLimit();
  CompileTimeLimit(const CompileTimeLimit&) = delete;
  CompileTimeLimit& operator=(const CompileTimeLimit&) = delete;
};

}  // namespace tidemill
