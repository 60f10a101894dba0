#include "serve/access/keys.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <span>

namespace tidemill {
namespace {

constexpr std::string_view kBase64Url =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

Digest digest_of(std::string_view text) {
  return sha256(std::as_bytes(std::span(text.data(), text.size())));
}

std::string hex(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

// No padding: 32 bytes are 42 whole characters and one of four bits.
std::string base64url(std::span<const uint8_t> bytes) {
  std::string text;
  uint32_t bits = 0;
  int count = 0;
  for (const uint8_t byte : bytes) {
    bits = bits << 8 | byte;
    for (count += 8; count >= 6; count -= 6) text += kBase64Url[bits >> (count - 6) & 63];
  }
  if (count > 0) text += kBase64Url[bits << (6 - count) & 63];
  return text;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

}  // namespace

Result<KeyRing> KeyRing::from_plain(std::string_view key) {
  const bool is_sendable = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return static_cast<unsigned char>(c) > ' ' && c != 0x7f;
  });
  if (!is_sendable) {
    return fail(ErrorCode::kInvalidArgument, "the API key is {}; no client could send it",
                key.empty() ? "empty" : "not without spaces and control characters");
  }
  KeyRing ring;
  ring.clients_.push_back(
      {.name = "default", .admin = true, .tenant = 1, .digest = digest_of(key)});
  return ring;
}

KeyRing KeyRing::anonymous() {
  KeyRing ring;
  ring.is_anonymous_ = true;
  ring.clients_.push_back({.name = "anonymous"});
  return ring;
}

const ApiClient* KeyRing::find(std::string_view presented) const {
  if (is_anonymous_) return &clients_.front();
  if (presented.empty()) return nullptr;
  const Digest digest = digest_of(presented);
  if (digest == Digest{}) return nullptr;  // the library could not hash
  const ApiClient* found = nullptr;
  for (const ApiClient& client : clients_) {
    const bool is_equal = CRYPTO_memcmp(digest.data(), client.digest.data(), digest.size()) == 0;
    found = is_equal ? &client : found;
  }
  return found;
}

Result<std::string> new_key() {
  std::array<uint8_t, 32> bytes;
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    return fail(ErrorCode::kInternal, "the system gave no random bytes for a key");
  }
  return "tm-" + base64url(bytes);
}

std::string key_entry(std::string_view name, std::string_view key) {
  std::string quoted;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < ' ' || byte == 0x7f) {
      quoted += fmt::format("\\u{:04x}", byte);
    } else {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += c;
    }
  }
  return fmt::format("[[key]]\nname = \"{}\"\nsha256 = \"{}\"\n", quoted, hex(digest_of(key)));
}

std::string_view presented_key(const HttpHead& head) {
  constexpr std::string_view kScheme = "Bearer ";
  const std::string_view authorization = trimmed(head.header("Authorization"));
  if (equal_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) {
    return trimmed(authorization.substr(kScheme.size()));
  }
  return trimmed(head.header("x-api-key"));
}

}  // namespace tidemill
