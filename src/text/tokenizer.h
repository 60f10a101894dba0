// Byte-level BPE from a Hugging Face tokenizer.json, with the DeepSeek pre-tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tidemill {

// Immutable after load; every const member may be called from any thread.
class Tokenizer {
 public:
  // Errors: kFileNotFound, kFileRead, kTokenizer (the text names the key or the entry that is
  // wrong). What is accepted: tokenizer_file.h and pattern_syntax.h.
  static Result<Tokenizer> load(const std::filesystem::path& tokenizer_json);
  static Result<Tokenizer> parse(std::string_view json);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Largest id + 1, added tokens included. Ids may have holes: has(id) tells.
  int32_t size() const;
  bool has(int32_t id) const;

  // Plain mode, for every text that a caller supplies: no added token is matched, so no text can
  // forge a special token. Invalid UTF-8 is replaced by U+FFFD first.
  std::vector<int32_t> encode(std::string_view text) const;

  // Full mode, for text that the operator wrote: added tokens are matched leftmost-longest, as
  // Hugging Face does: first those with "normalized": false, then the others in what is left.
  std::vector<int32_t> encode_with_added_tokens(std::string_view text) const;

  // Id of an added token by its exact spelling.
  std::optional<int32_t> added_token(std::string_view spelling) const;
  // True for added tokens that the file flags "special" (skipped by decode on request).
  bool is_special(int32_t id) const;

  // Bytes that the token stands for: possibly a part of a UTF-8 character. Empty for unknown ids.
  // This view and that of raw() live as long as the tokenizer, moves included.
  std::string_view bytes(int32_t id) const;
  // The string of the vocabulary (byte-level alphabet), e.g. "Ġthe"; spelling of an added token.
  std::string_view raw(int32_t id) const;

  // Bytes joined; invalid UTF-8 becomes U+FFFD, one for each maximal subpart as in Python's
  // bytes.decode("utf-8", "replace").
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

 private:
  struct Data;
  explicit Tokenizer(std::unique_ptr<const Data> data);
  std::unique_ptr<const Data> data_;
};

// Turns a stream of ids into a stream of whole UTF-8 characters: what push() returns never ends
// inside a character; the rest is kept for the next call. Bytes that can never become valid are
// replaced by U+FFFD as soon as that is known. All that is returned, joined, is decode() of the
// same ids. Not thread safe; the tokenizer must outlive it and stay at its address.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = false);
  std::string push(int32_t id);
  // End of stream: a cut character is emitted once, as U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace tidemill
