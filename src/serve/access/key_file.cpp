// KeyRing::load and parse: the key file.
#include <fmt/format.h>
#include <sys/stat.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "base/log.h"
#include "serve/access/keys.h"

namespace tidemill {
namespace {

constexpr size_t kMaxFile = size_t{4} << 20;
constexpr size_t kMaxName = 64;
constexpr std::string_view kHowToHash =
    "for each key write [[key]], name = \"WHO\" and sha256 = \"DIGEST\", with DIGEST from: "
    "printf %s KEY | sha256sum";

// Errors name place and field and never the value: a key may stand there by mistake.
class EntryReader {
 public:
  EntryReader(const toml::table& entry, std::string_view source) : entry_(entry), source_(source) {}

  Result<ApiClient> read() {
    ApiClient client;
    CHECK_OK(check_fields());
    TRY(client.name, name());
    TRY(client.digest, digest());
    if (const toml::node* node = entry_.get("admin")) {
      if (!node->is_boolean()) return bad(*node, "admin", "true or false");
      client.admin = node->as_boolean()->get();
    }
    constexpr int64_t kMax = int64_t{1} << 50;
    TRY(client.max_concurrent, number("max_concurrent", 0, 0, kMax));
    TRY(client.tokens_per_minute, number("tokens_per_minute", 0, 0, kMax));
    TRY(client.budget_tokens, number("budget_tokens", 0, 0, kMax));
    TRY(const int64_t floor, number("priority_floor", client.priority_floor, -100, 100));
    client.priority_floor = static_cast<int32_t>(floor);
    return client;
  }

 private:
  static constexpr std::array<std::string_view, 7> kFields = {
      "name",          "sha256",        "admin", "max_concurrent", "tokens_per_minute",
      "budget_tokens", "priority_floor"};

  tl::unexpected<Error> bad(const toml::node& node, std::string_view field,
                            std::string_view wanted) const {
    return fail(ErrorCode::kInvalidArgument, "{}: line {}: {}: must be {}", source_,
                node.source().begin.line, field, wanted);
  }
  tl::unexpected<Error> missing(std::string_view field) const {
    return fail(ErrorCode::kInvalidArgument, "{}: line {}: {}: missing in this [[key]]", source_,
                entry_.source().begin.line, field);
  }

  Status check_fields() const {
    for (const auto& [field, node] : entry_) {
      if (std::find(kFields.begin(), kFields.end(), field.str()) == kFields.end()) {
        return fail(ErrorCode::kInvalidArgument,
                    "{}: line {}: a field of this name is not known; known are {}", source_,
                    field.source().begin.line, fmt::join(kFields, ", "));
      }
    }
    return {};
  }

  Result<std::string> name() const {
    constexpr std::string_view kWanted =
        "1 to 64 bytes of printable text, and not anonymous, unknown or other";
    const toml::node* node = entry_.get("name");
    if (node == nullptr) return missing("name");
    if (!node->is_string()) return bad(*node, "name", kWanted);
    const std::string& name = node->as_string()->get();
    const bool is_printable = std::all_of(name.begin(), name.end(), [](char c) {
      return static_cast<unsigned char>(c) >= ' ' && c != 0x7f;
    });
    // By records without a key, and by the ledger.
    const bool is_taken = name == "anonymous" || name == "unknown" || name == "other";
    if (name.empty() || name.size() > kMaxName || !is_printable || is_taken) {
      return bad(*node, "name", kWanted);
    }
    return name;
  }

  Result<Digest> digest() const {
    constexpr std::string_view kWanted =
        "the SHA-256 of the key, 64 hexadecimal digits: printf %s KEY | sha256sum";
    const toml::node* node = entry_.get("sha256");
    if (node == nullptr) return missing("sha256");
    if (!node->is_string()) return bad(*node, "sha256", kWanted);
    const std::string& text = node->as_string()->get();
    Digest digest{};
    if (text.size() != 2 * digest.size()) return bad(*node, "sha256", kWanted);
    for (size_t i = 0; i < digest.size(); ++i) {
      const char* const pair = text.data() + 2 * i;
      const auto [end, error] = std::from_chars(pair, pair + 2, digest[i], 16);
      if (error != std::errc() || end != pair + 2) return bad(*node, "sha256", kWanted);
    }
    if (digest == Digest{}) return bad(*node, "sha256", kWanted);
    if (digest == sha256({})) {
      return fail(
          ErrorCode::kInvalidArgument,
          "{}: line {}: sha256: is the hash of nothing; was the key empty when it was made?",
          source_, node->source().begin.line);
    }
    return digest;
  }

  Result<int64_t> number(std::string_view field, int64_t otherwise, int64_t low,
                         int64_t high) const {
    const toml::node* node = entry_.get(field);
    if (node == nullptr) return otherwise;
    const auto* value = node->as_integer();
    if (value == nullptr || value->get() < low || value->get() > high) {
      return bad(*node, field, fmt::format("a whole number from {} to {}", low, high));
    }
    return value->get();
  }

  const toml::table& entry_;
  std::string_view source_;
};

// Lines of one word each, as other servers' key files have them.
bool is_plain_list(std::string_view text) {
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    return line[begin] != '[' && line.find('=') == std::string::npos;
  }
  return false;
}

Result<std::string> read_file(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) {
    return fail(ErrorCode::kFileNotFound, "{}: no such key file", file.string());
  }
  if (!std::filesystem::is_regular_file(status)) {
    return fail(ErrorCode::kFileRead, "{}: not a regular file", file.string());
  }
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMaxFile + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad() || !(stream || stream.eof())) {
    return fail(ErrorCode::kFileRead, "{}: cannot be read", file.string());
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMaxFile) {
    return fail(ErrorCode::kFileRead, "{}: more than {} bytes; no key file is that large",
                file.string(), kMaxFile);
  }
  return text;
}

}  // namespace

Result<KeyRing> KeyRing::load(const std::filesystem::path& file) {
  TRY(const std::string text, read_file(file));
  struct stat info = {};
  if (::stat(file.c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
    log_warning("{}: others than its owner may access it (mode {:04o}); chmod 600 ends that",
                file.string(), info.st_mode & 07777);
  }
  return parse(text, file.string());
}

Result<KeyRing> KeyRing::parse(std::string_view text, std::string_view source) {
  if (is_plain_list(text)) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: looks like a list of keys in plain text. Keys are kept as hashes: {}", source,
                kHowToHash);
  }
  toml::table root;
  try {
    root = toml::parse(text);
  } catch (const toml::parse_error& error) {
    // Its own description quotes the file.
    return fail(ErrorCode::kInvalidArgument, "{}: line {}, column {}: not TOML", source,
                error.source().begin.line, error.source().begin.column);
  }
  for (const auto& [field, node] : root) {
    if (field.str() != "key") {
      return fail(ErrorCode::kInvalidArgument,
                  "{}: line {}: a key file has only [[key]] entries; {}", source,
                  field.source().begin.line, kHowToHash);
    }
  }
  const toml::array* entries = root.get_as<toml::array>("key");
  if (entries == nullptr || entries->empty() || !entries->is_array_of_tables()) {
    return fail(ErrorCode::kInvalidArgument, "{}: has no [[key]] entry; {}", source, kHowToHash);
  }
  if (entries->size() > kMaxKeys) {
    return fail(ErrorCode::kInvalidArgument, "{}: {} keys; at most {} are possible", source,
                entries->size(), kMaxKeys);
  }

  KeyRing ring;
  std::set<std::string, std::less<>> names;
  std::set<Digest> digests;
  for (const toml::node& entry : *entries) {
    const toml::table& table = *entry.as_table();
    TRY(ApiClient client, EntryReader(table, source).read());
    const auto line = table.source().begin.line;
    if (!names.insert(client.name).second) {
      return fail(ErrorCode::kInvalidArgument, "{}: line {}: name: another [[key]] has the same",
                  source, line);
    }
    if (!digests.insert(client.digest).second) {
      return fail(ErrorCode::kInvalidArgument, "{}: line {}: sha256: another [[key]] has the same",
                  source, line);
    }
    ring.clients_.push_back(std::move(client));
    ring.clients_.back().tenant = ring.clients_.size();
  }
  return ring;
}

}  // namespace tidemill
