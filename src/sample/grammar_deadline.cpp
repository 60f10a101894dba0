#include "sample/grammar_deadline.h"

#include <xgrammar/tokenizer_info.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tidemill {
namespace {

thread_local std::optional<Deadline> compile_deadline;

}  // namespace

// xgrammar::TokenizerInfo::GetSortedDecodedVocab() const, and what the linker calls in its place
// (names as libstdc++ makes them).
using SortedVocabulary = std::vector<std::pair<int32_t, std::string>>;
const SortedVocabulary& sorted_vocabulary(const xgrammar::TokenizerInfo* tokens) asm(
    "__real__ZNK8xgrammar13TokenizerInfo21GetSortedDecodedVocabB5cxx11Ev");
const SortedVocabulary& sorted_vocabulary_in_time(const xgrammar::TokenizerInfo* tokens) asm(
    "__wrap__ZNK8xgrammar13TokenizerInfo21GetSortedDecodedVocabB5cxx11Ev");

const SortedVocabulary& sorted_vocabulary_in_time(const xgrammar::TokenizerInfo* tokens) {
  if (compile_deadline && compile_deadline->expired()) throw CompileTimeout();
  return sorted_vocabulary(tokens);
}

CompileTimeLimit::CompileTimeLimit(Deadline deadline) { compile_deadline = deadline; }
CompileTimeLimit::~CompileTimeLimit() { compile_deadline.reset(); }

}  // namespace tidemill
