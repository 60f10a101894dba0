#include "text/tokenizer.h"

#include <array>
#include <unordered_map>
#include <utility>

#include "base/escape.h"
#include "base/mapped_file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace tidemill {
namespace {

struct Token {
  std::string raw;
  std::string bytes;
  bool present = false;  // ids may have holes
  bool added = false;
  bool special = false;
};

// The table by id, and the check that ids and strings agree with each other. Refers to the strings
// it is given, which must outlive it.
class VocabularyBuilder {
 public:
  Status add(int32_t id, const std::string& raw) {
    const auto [known, fresh] = index_.try_emplace(raw, id);
    if (!fresh && known->second != id) {
      return fail(ErrorCode::kTokenizer, "token \"{}\" has two ids, {} and {}", escape_control(raw),
                  known->second, id);
    }
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(id + size_t{1});
    Token& token = tokens_[id];
    if (token.present && token.raw != raw) {
      return fail(ErrorCode::kTokenizer, "id {} has two tokens, \"{}\" and \"{}\"", id,
                  escape_control(token.raw), escape_control(raw));
    }
    if (!token.present) token = {.raw = raw, .bytes = token_bytes(raw), .present = true};
    return {};
  }

  Status add_added(const TokenizerFile::AddedToken& added) {
    CHECK_OK(add(added.id, added.spelling));
    Token& token = tokens_[added.id];
    if (token.added) {
      return fail(ErrorCode::kTokenizer, "added token \"{}\" is listed twice",
                  escape_control(added.spelling));
    }
    token.added = true;
    token.special = added.special;
    return {};
  }

  Result<int32_t> find(std::string_view raw) const {
    const auto found = index_.find(raw);
    if (found == index_.end()) {
      return fail(ErrorCode::kTokenizer, "token \"{}\" is not in model.vocab", escape_control(raw));
    }
    return found->second;
  }

  std::vector<Token>& tokens() { return tokens_; }

 private:
  std::unordered_map<std::string_view, int32_t> index_;  // raw string to id
  std::vector<Token> tokens_;
};

Result<std::array<int32_t, 256>> find_byte_tokens(const VocabularyBuilder& vocabulary) {
  std::array<int32_t, 256> ids{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string raw;
    append_utf8(raw, byte_to_character(static_cast<uint8_t>(byte)));
    auto id = vocabulary.find(raw);
    if (!id) return fail(ErrorCode::kTokenizer, "byte {}: {}", byte, id.error().message);
    ids[byte] = *id;
  }
  return ids;
}

Result<std::vector<BytePairEncoder::Merge>> find_merges(const VocabularyBuilder& vocabulary,
                                                        const TokenizerFile& file) {
  std::vector<BytePairEncoder::Merge> merges;
  merges.reserve(file.merges.size());
  for (const auto& [left, right] : file.merges) {
    const auto left_id = vocabulary.find(left);
    const auto right_id = vocabulary.find(right);
    const auto result_id = vocabulary.find(left + right);
    for (const auto* id : {&left_id, &right_id, &result_id}) {
      if (!*id) {
        return fail(ErrorCode::kTokenizer, "model.merges[{}]: {}", merges.size(),
                    id->error().message);
      }
    }
    merges.push_back({*left_id, *right_id, *result_id});
  }
  return merges;
}

}  // namespace

struct Tokenizer::Data {
  std::vector<Token> tokens;  // by id
  PreTokenizer pre_tokenizer;
  BytePairEncoder encoder;
  // Full mode looks for the first kind in the whole text and for the second in what is left.
  std::array<AddedTokens, 2> added;  // not normalized, normalized

  void append_plain(std::string_view text, BytePairEncoder::Scratch& scratch,
                    std::vector<int32_t>& ids) const {
    for (const std::string_view piece : pre_tokenizer.split(text)) {
      encoder.encode(piece, scratch, ids);
    }
  }

  void append_full(std::string_view text, std::span<const AddedTokens> passes,
                   BytePairEncoder::Scratch& scratch, std::vector<int32_t>& ids) const {
    if (passes.empty()) return append_plain(text, scratch, ids);
    const auto later_passes = passes.subspan(1);
    while (const auto match = passes.front().find(text)) {
      append_full(text.substr(0, match->offset), later_passes, scratch, ids);
      ids.push_back(match->id);
      text.remove_prefix(match->offset + match->size);
    }
    append_full(text, later_passes, scratch, ids);
  }

  const Token* find(int32_t id) const {
    const bool known = id >= 0 && static_cast<size_t>(id) < tokens.size() && tokens[id].present;
    return known ? &tokens[id] : nullptr;
  }
};

Tokenizer::Tokenizer(std::unique_ptr<const Data> data) : data_(std::move(data)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& tokenizer_json) {
  TRY(const MappedFile file, MappedFile::open(tokenizer_json));
  const auto bytes = file.bytes();
  auto tokenizer = parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!tokenizer) {
    return fail(tokenizer.error().code, "{}: {}", tokenizer_json.string(),
                tokenizer.error().message);
  }
  return tokenizer;
}

Result<Tokenizer> Tokenizer::parse(std::string_view json) {
  TRY(const TokenizerFile file, parse_tokenizer_file(json));

  VocabularyBuilder vocabulary;
  for (const auto& [id, raw] : file.vocabulary) CHECK_OK(vocabulary.add(id, raw));
  TRY(const auto byte_ids, find_byte_tokens(vocabulary));
  TRY(auto merges, find_merges(vocabulary, file));
  TRY(auto encoder, BytePairEncoder::build(byte_ids, std::move(merges)));
  TRY(auto pre_tokenizer, PreTokenizer::compile(file.split_patterns));

  std::array<std::vector<AddedTokens::Token>, 2> added;
  for (const auto& token : file.added_tokens) {
    CHECK_OK(vocabulary.add_added(token));
    added[token.normalized].push_back({token.spelling, token.id});
  }
  return Tokenizer(std::make_unique<const Data>(
      Data{std::move(vocabulary.tokens()),
           std::move(pre_tokenizer),
           std::move(encoder),
           {AddedTokens(std::move(added[0])), AddedTokens(std::move(added[1]))}}));
}

int32_t Tokenizer::size() const { return static_cast<int32_t>(data_->tokens.size()); }

bool Tokenizer::has(int32_t id) const { return data_->find(id) != nullptr; }

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  if (!is_valid_utf8(text)) return encode(replace_invalid_utf8(text));
  std::vector<int32_t> ids;
  BytePairEncoder::Scratch scratch;
  data_->append_plain(text, scratch, ids);
  return ids;
}

std::vector<int32_t> Tokenizer::encode_with_added_tokens(std::string_view text) const {
  if (!is_valid_utf8(text)) return encode_with_added_tokens(replace_invalid_utf8(text));
  std::vector<int32_t> ids;
  BytePairEncoder::Scratch scratch;
  data_->append_full(text, data_->added, scratch, ids);
  return ids;
}

std::optional<int32_t> Tokenizer::added_token(std::string_view spelling) const {
  for (const AddedTokens& tokens : data_->added) {
    if (const auto id = tokens.id(spelling)) return id;
  }
  return std::nullopt;
}

bool Tokenizer::is_special(int32_t id) const {
  const Token* token = data_->find(id);
  return token != nullptr && token->special;
}

std::string_view Tokenizer::bytes(int32_t id) const {
  const Token* token = data_->find(id);
  return token == nullptr ? std::string_view() : token->bytes;
}

std::string_view Tokenizer::raw(int32_t id) const {
  const Token* token = data_->find(id);
  return token == nullptr ? std::string_view() : token->raw;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  for (const int32_t id : ids) {
    if (!(skip_special && is_special(id))) text += bytes(id);
  }
  return is_valid_utf8(text) ? text : replace_invalid_utf8(text);
}

}  // namespace tidemill
