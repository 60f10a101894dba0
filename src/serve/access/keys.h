// Who may use the server: API keys, known by their SHA-256 only.
//
// The file is TOML:
//   [[key]]
//   name = "alice"                 # for logs, the ledger and quotas
//   sha256 = "9f86d081884c7d65..."  # 64 hexadecimal digits: printf %s KEY | sha256sum
//   admin = false                  # may drain the server and see everyone's usage
//   max_concurrent = 4             # limits: 0 or absent means none
//   tokens_per_minute = 100000
//   budget_tokens = 5000000
//   priority_floor = 0             # the most urgent priority that its requests may have
//
// One round of SHA-256 without salt is enough for keys of new_key(): they have 256 random bits, so
// there is nothing to guess. It is not for passwords that people make up.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serve/http/http.h"
#include "state/content_key.h"
#include "tidemill/request.h"

namespace tidemill {

struct ApiClient {
  std::string name;
  bool admin = false;
  int64_t max_concurrent = 0;     // requests in work; 0: no limit, like the two below
  int64_t tokens_per_minute = 0;  // prompt and output
  int64_t budget_tokens = 0;      // prompt and output, as long as the ledger reaches back
  // The lower a priority, the sooner: a request's may not be below this.
  int32_t priority_floor = -100;
  // For the scheduler's fair shares: no two clients of a ring have the same. Anonymous: 0.
  TenantId tenant = 0;
  Digest digest{};
};

// Immutable after its making; any thread.
class KeyRing {
 public:
  static constexpr size_t kMaxKeys = 4096;

  // Errors kFileNotFound, kFileRead, and kInvalidArgument with file, line and field; none of them
  // repeats the file's text, which may hold a key by mistake. A file of plain keys is refused with
  // the command that hashes one. A file that others than its owner may access is a logged warning.
  static Result<KeyRing> load(const std::filesystem::path& file);
  // The same for the text of a file; `source` names it in errors.
  static Result<KeyRing> parse(std::string_view toml, std::string_view source);
  // One key, "default", without limits and admin; for an environment variable. Error
  // kInvalidArgument: empty, or with spaces or control characters, which no header can carry.
  static Result<KeyRing> from_plain(std::string_view key);
  // No keys: everyone is the client "anonymous", without limits and not admin.
  static KeyRing anonymous();

  // The client of this key; null: none. In an anonymous ring all are welcome, also without a key.
  //
  // How long it takes tells nothing: what was presented is hashed, its hash is compared with every
  // entry's by CRYPTO_memcmp, and the search does not end where it finds. Comparing byte by byte
  // and stopping early would let a client find a hash out digit by digit, and from the place in the
  // list learn whose it is.
  const ApiClient* find(std::string_view presented) const;

  bool is_anonymous() const { return is_anonymous_; }
  const std::vector<ApiClient>& clients() const { return clients_; }

 private:
  KeyRing() = default;
  bool is_anonymous_ = false;
  std::vector<ApiClient> clients_;
};

// "tm-" and 43 characters of base64url: 256 random bits. Error kInternal: the system gave none.
Result<std::string> new_key();
// The entry of a key file, with the hash in place of the key.
std::string key_entry(std::string_view name, std::string_view key);

// What a client presents: "Authorization: Bearer KEY" (the scheme in any case), or else
// "x-api-key: KEY"; "": nothing. Lives as long as the head.
std::string_view presented_key(const HttpHead& head);

}  // namespace tidemill
