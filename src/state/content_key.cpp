#include "state/content_key.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cassert>
#include <memory>
#include <string_view>

namespace tidemill {
namespace {

// Part of every root: change it when the meaning of a key or of a block's bytes changes.
constexpr std::string_view kScheme = "tidemill state 1";

// Integers are little-endian and strings have their length before them: no two different inputs
// make the same bytes.
class Message {
 public:
  template <typename Integer>
  void number(Integer value) {
    const auto bits = static_cast<uint64_t>(value);
    for (size_t i = 0; i < sizeof(Integer); ++i) {
      bytes_.push_back(static_cast<std::byte>(bits >> (8 * i)));
    }
  }
  void text(std::string_view text) {
    number(static_cast<int64_t>(text.size()));
    raw(std::as_bytes(std::span(text)));
  }
  void raw(std::span<const std::byte> data) {
    bytes_.insert(bytes_.end(), data.begin(), data.end());
  }
  void reserve(size_t bytes) { bytes_.reserve(bytes); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

ContentKey cut(const Digest& digest, int bits) {
  ContentKey key;
  std::copy_n(digest.begin(), key.bytes.size(), key.bytes.begin());
  for (size_t i = 0; i < key.bytes.size(); ++i) {
    const int kept = std::clamp(bits - 8 * static_cast<int>(i), 0, 8);
    key.bytes[i] = static_cast<uint8_t>(key.bytes[i] & (0xFF << (8 - kept)));
  }
  return key;
}

}  // namespace

Digest sha256(std::span<const std::byte> data) {
  // Looking an algorithm up costs more than hashing a block with it.
  static EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  thread_local const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
  Digest digest{};
  const bool done = EVP_DigestInit_ex2(context.get(), algorithm, nullptr) == 1 &&
                    EVP_DigestUpdate(context.get(), data.data(), data.size()) == 1 &&
                    EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) == 1;
  // Fails only when the library has no SHA-256. Users of keys compare tokens as well.
  assert(done);
  (void)done;
  return digest;
}

std::string ContentKey::hex() const {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::vector<ImageSpan> image_parts(std::span<const ImageSpan> images, int64_t begin, int64_t end) {
  std::vector<ImageSpan> parts;
  for (const ImageSpan& image : images) {
    const int64_t from = std::max(begin, image.begin);
    const int64_t to = std::min(end, image.begin + image.tokens);
    if (from < to) parts.push_back({begin - image.begin, to - from, image.digest});
  }
  return parts;
}

KeyChain::KeyChain(const StateIdentity& identity, int bits)
    : bits_(bits), approximate_(identity.approximate) {
  assert(bits >= 1 && bits <= 128);
  Message message;
  message.text(kScheme);
  message.text(identity.weights);
  message.text(identity.text);
  message.text(identity.layout);
  message.text(identity.tenant);
  message.number(uint8_t{identity.approximate});
  root_ = cut(sha256(message.bytes()), 128);
}

ContentKey KeyChain::next(const ContentKey& parent, std::span<const int32_t> tokens,
                          std::span<const ImageSpan> images) const {
  Message message;
  message.reserve(parent.bytes.size() + 16 + tokens.size_bytes() + images.size() * 48);
  message.raw(std::as_bytes(std::span(parent.bytes)));
  message.number(static_cast<int64_t>(tokens.size()));
  for (const int32_t id : tokens) message.number(id);
  message.number(static_cast<int64_t>(images.size()));
  for (const ImageSpan& image : images) {
    message.number(image.begin);
    message.number(image.tokens);
    message.raw(std::as_bytes(std::span(image.digest)));
  }
  return cut(sha256(message.bytes()), bits_);
}

}  // namespace tidemill
