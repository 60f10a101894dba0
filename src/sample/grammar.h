// Structured output: a constraint is compiled once into a grammar over the vocabulary, and each
// request walks it with its tokens and masks the others.
//
// The constraint's language is ours (grammar_regex.h, grammar_json.h, grammar_tools.h); which
// tokens may follow is found by xgrammar, which no other header here shows.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "text/conversation.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace tidemill {

// What an answer has to look like.
struct GrammarSpec {
  enum class Kind {
    kJsonObject,  // any JSON object
    kJsonSchema,  // `text` is the schema: a document that satisfies it (SchemaReader)
    kRegex,       // `text`, matched by the whole answer (regex_to_expr)
    kEbnf,        // `text` in xgrammar's notation (a GBNF), from its rule `root`
    kToolCalls,   // a block of calls of `tools`, as text/output_parser.h describes it
  } kind = Kind::kJsonObject;
  std::string text = {};

  // kToolCalls. kRequired: the answer is a block of calls. kNamed: of `tools[0]`, the only one.
  // kAuto: the answer is free until a block begins, if one does.
  std::vector<Tool> tools = {};
  ToolChoice choice = ToolChoice::kAuto;
  bool strict = false;   // arguments follow the schemas
  bool parallel = true;  // more than one call
};

struct GrammarLimits {
  int64_t source_bytes = 1 << 20;     // of the text, or of all tools' schemas together
  int max_depth = 64;                 // of schemas and of groups in regexes and EBNF
  int64_t max_positions = 20000;      // of characters in the grammar, repetitions written out
  int64_t compiled_bytes = 64 << 20;  // of one compiled grammar
  int64_t working_bytes = 512 << 20;  // that compiling one takes on the way, about
  std::chrono::milliseconds compile_time{10000};  // of all stages together
};

// The tokens of a model as grammars see them: ordinary tokens by their bytes; added tokens only
// where a grammar names them. Immutable; any thread.
class GrammarVocabulary {
 public:
  // `vocabulary`: width of a row of logits, at least tokenizer.size(). `stop_tokens`: those that
  // end an answer, at least one. kTokenizer when the tokenizer lacks </think> or ｜DSML｜ as one
  // token, or a stop token is out of range.
  static Result<GrammarVocabulary> make(const Tokenizer& tokenizer, int64_t vocabulary,
                                        std::vector<int32_t> stop_tokens);

  int64_t size() const;
  // 32-bit words of a mask: token t is bit t % 32 of word t / 32; set = may follow.
  int64_t mask_words() const { return (size() + 31) / 32; }

  struct Data;
  const Data& data() const { return *data_; }
  std::shared_ptr<const Data> shared() const { return data_; }

 private:
  explicit GrammarVocabulary(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

// A compiled grammar: immutable, shared by all requests that use it; any thread.
class CompiledGrammar {
 public:
  struct Data;
  explicit CompiledGrammar(std::unique_ptr<const Data> data);
  ~CompiledGrammar();
  const Data& data() const { return *data_; }
  int64_t bytes() const;

 private:
  std::unique_ptr<const Data> data_;
};

// Compiles constraints, and keeps the compiled ones up to a number of bytes, the least recently
// used going first. Every member may be called from any thread; a compile takes milliseconds to
// seconds on the calling thread, so it belongs on a side pool, and is not guarded by the lock.
class GrammarCompiler {
 public:
  // `cache_bytes` >= 0: --grammar-cache-bytes; 0 = no cache.
  GrammarCompiler(GrammarVocabulary vocabulary, GrammarLimits limits, int64_t cache_bytes);

  // kRequest: the constraint is malformed, not supported or cannot be satisfied (with position or
  // keyword), or is beyond a limit (with the numbers). kDeadline: the earlier of `deadline` and
  // compile_time passed. kCancelled: `stop` was requested. Each ends a compile within about 0.2 s,
  // in whichever stage it is. Throws only std::bad_alloc; memory is bounded by the limits.
  Result<std::shared_ptr<const CompiledGrammar>> compile(const GrammarSpec& spec,
                                                         Deadline deadline = Deadline::never(),
                                                         std::stop_token stop = {});

  // From the cache, else null: waits for no compile. Takes as long as reading the spec once.
  std::shared_ptr<const CompiledGrammar> find(const GrammarSpec& spec);

  struct Stats {
    int64_t hits = 0;
    int64_t misses = 0;
    int64_t evictions = 0;
    int64_t entries = 0;
    int64_t bytes = 0;  // of the cached grammars and their keys
  };
  Stats stats() const;

  const GrammarVocabulary& vocabulary() const { return vocabulary_; }

 private:
  using Grammar = std::shared_ptr<const CompiledGrammar>;
  struct Entry {
    std::string key;
    Grammar grammar;
    int64_t bytes;
  };
  Grammar look_up(const std::string& key);
  void keep(std::string key, const Grammar& grammar);

  GrammarVocabulary vocabulary_;
  GrammarLimits limits_;
  int64_t cache_bytes_;

  mutable std::mutex mutex_;
  std::list<Entry> entries_;                                       // most recently used first
  std::map<std::string_view, std::list<Entry>::iterator> by_key_;  // views of the entries' keys
  Stats stats_;
};

// One answer on its way through a grammar. Not thread safe.
//
// While the answer is in its reasoning every ordinary token may follow, and </think>, which ends
// it; the grammar holds from the first token after that. With tools and kAuto the content is free
// in the same way until <｜DSML｜. Neither text may spell that marker in ordinary tokens, which the
// reader of the output would take for one. Then the grammar says what may follow. A stop token may
// follow where the answer is complete, and nothing follows a stop token.
class GrammarMatcher {
 public:
  // `start`: where the prompt leaves the answer (Prompt::start). kToolCalls is for kToolCalls with
  // a forced choice only: the prompt ends behind the tag that opens the block.
  static Result<GrammarMatcher> make(std::shared_ptr<const CompiledGrammar> grammar,
                                     Prompt::Start start);

  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;
  ~GrammarMatcher();

  // Overwrites `mask` (mask_words() words) with what may follow. After a stop token: nothing.
  // kRequest when the answer is not complete and nothing may follow. kDeadline when the grammar is
  // so ambiguous that this and accept() together took more than kFreeSeconds and kSecondsPerToken
  // for each token: end the request.
  Status fill_mask(std::span<uint32_t> mask);
  static constexpr double kFreeSeconds = 1.0;
  static constexpr double kSecondsPerToken = 0.005;

  // Takes the token, if it may follow; otherwise false and nothing changes. Any id.
  bool accept(int32_t token);

  // Takes back the last `count` tokens, 0 <= count <= accepted(): afterwards the matcher is as if
  // they had never been taken.
  void rollback(int64_t count);

  int64_t accepted() const;     // tokens
  bool is_terminated() const;   // by a stop token
  bool is_constrained() const;  // false: in the reasoning, or in free content

  // A matcher in the same state that goes on by itself.
  GrammarMatcher fork() const;

 private:
  struct State;
  explicit GrammarMatcher(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Sets the logits of tokens that may not follow to -inf. `logits` is a row of the vocabulary.
void apply_mask(std::span<const uint32_t> mask, std::span<float> logits);

// For the verification of drafts (verify.h): masks row j for drafts[0..j) before it, as far as
// those may follow each other. `logits`: float32 [drafts + 1, vocabulary]; `mask` is scratch of
// mask_words() words. Returns how many rows are masked, 1 + the drafts that may follow: later rows
// are as they were and must not be used (the first draft that may not follow is masked in the last
// masked row, so that verification stops there). The matcher is afterwards as it was.
Result<int64_t> mask_rows(GrammarMatcher& matcher, std::span<const int32_t> drafts,
                          std::span<float> logits, std::span<uint32_t> mask);

}  // namespace tidemill
