#include "sample/grammar_deadline.h"

#include <xgrammar/tokenizer_info.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

thread_local std::optional<tidemill::Deadline> compile_deadline;

}  // namespace

// xgrammar::TokenizerInfo::GetSortedDecodedVocab() const, as the linker names it (with libstdc++).
extern "C" {
using SortedVocabulary = std::vector<std::pair<int32_t, std::string>>;
// NOLINTBEGIN(bugprone-reserved-identifier)
const SortedVocabulary& __real__ZNK8xgrammar13TokenizerInfo21GetSortedDecodedVocabB5cxx11Ev(
    const xgrammar::TokenizerInfo* self);
const SortedVocabulary& __wrap__ZNK8xgrammar13TokenizerInfo21GetSortedDecodedVocabB5cxx11Ev(
    const xgrammar::TokenizerInfo* self);

const SortedVocabulary& __wrap__ZNK8xgrammar13TokenizerInfo21GetSortedDecodedVocabB5cxx11Ev(
    const xgrammar::TokenizerInfo* self) {
  if (compile_deadline && compile_deadline->expired()) throw tidemill::CompileTimeout();
  return __real__ZNK8xgrammar13TokenizerInfo21GetSortedDecodedVocabB5cxx11Ev(self);
}
// NOLINTEND(bugprone-reserved-identifier)
}

namespace tidemill {

CompileTimeLimit::CompileTimeLimit(Deadline deadline) { compile_deadline = deadline; }
CompileTimeLimit::~CompileTimeLimit() { compile_deadline.reset(); }

}  // namespace tidemill
