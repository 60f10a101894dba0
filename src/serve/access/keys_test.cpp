#include "serve/access/keys.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>

#include "base/temp_directory.h"

namespace tidemill {
namespace {

using testing::HasSubstr;
using testing::Not;

// SHA-256 of "alice-key" and "bob-key", from another program.
const std::string kAlice = "72ee9d4355ccb9d3a4c9dbf37382e38e75c1b1a225b5bd1f729ee91bbda30c20";
const std::string kBob = "9b94dc1a51a38769f135edf04033ad7f2f487b6c25929be7a861cfc1ab10cf98";

HttpHead head_with(std::vector<HttpHeader> headers) {
  HttpHead head;
  head.headers = std::move(headers);
  return head;
}

std::string entry(const std::string& name, const std::string& digest,
                  const std::string& more = "") {
  return "[[key]]\nname = \"" + name + "\"\nsha256 = \"" + digest + "\"\n" + more;
}

KeyRing ring_of(const std::string& text) {
  auto ring = KeyRing::parse(text, "keys.toml");
  EXPECT_TRUE(ring) << (ring ? "" : ring.error().message);
  return ring ? *ring : KeyRing::anonymous();
}

TEST(KeyRing, ReadsEntries) {
  const KeyRing ring = ring_of("# ours\n" +
                               entry("alice", kAlice,
                                     "admin = true\nmax_concurrent = 4\n"
                                     "tokens_per_minute = 1000\nbudget_tokens = 5000000\n"
                                     "priority_floor = -5\n") +
                               entry("bob", kBob));
  ASSERT_FALSE(ring.is_anonymous());
  ASSERT_EQ(ring.clients().size(), 2u);
  const ApiClient* alice = ring.find("alice-key");
  ASSERT_NE(alice, nullptr);
  EXPECT_EQ(alice->name, "alice");
  EXPECT_TRUE(alice->admin);
  EXPECT_EQ(alice->max_concurrent, 4);
  EXPECT_EQ(alice->tokens_per_minute, 1000);
  EXPECT_EQ(alice->budget_tokens, 5'000'000);
  EXPECT_EQ(alice->priority_floor, -5);
  const ApiClient* bob = ring.find("bob-key");
  ASSERT_NE(bob, nullptr);
  EXPECT_EQ(bob->name, "bob");
  EXPECT_FALSE(bob->admin);
  EXPECT_EQ(bob->max_concurrent, 0);
  EXPECT_EQ(bob->priority_floor, -100);
  EXPECT_NE(bob->tenant, alice->tenant);
  EXPECT_NE(bob->tenant, 0u);
  for (const char* wrong : {"", "alice", "alice-key ", "alice-keY", "alice-key\n"}) {
    EXPECT_EQ(ring.find(wrong), nullptr) << wrong;
  }
  EXPECT_EQ(ring.find(kAlice), nullptr);  // the hash is no key
  EXPECT_EQ(ring.find(std::string(1'000'000, 'x')), nullptr);
}

TEST(KeyRing, ErrorsNamePlaceAndField) {
  struct Case {
    std::string text;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"", "keys.toml: has no [[key]] entry"},
      {"# nothing\n", "keys.toml: has no [[key]] entry"},
      {"[[key]]\nsha256 = \"" + kAlice + "\"\n", "line 1: name: missing"},
      {"[[key]]\nname = \"a\"\n", "line 1: sha256: missing"},
      {entry("a", "abc"), "line 3: sha256: must be the SHA-256"},
      {entry("a", std::string(63, 'a')), "line 3: sha256"},
      {entry("a", std::string(63, 'a') + "g"), "line 3: sha256"},
      {entry("a", fmt::format("-{:a>63}", "")), "line 3: sha256"},
      {entry("a", std::string(64, '0')), "line 3: sha256"},
      {entry("a", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
       "line 3: sha256: is the hash of nothing"},
      {"[[key]]\nname = \"a\"\nsha256 = 7\n", "line 3: sha256"},
      {entry("", kAlice), "line 2: name: must be"},
      {entry("anonymous", kAlice), "line 2: name: must be"},
      {entry("unknown", kAlice), "line 2: name: must be"},
      {entry("other", kAlice), "line 2: name: must be"},
      {entry(std::string(65, 'n'), kAlice), "line 2: name: must be"},
      {entry("a\\u0000b", kAlice), "line 2: name: must be"},
      {"[[key]]\nname = 3\nsha256 = \"" + kAlice + "\"\n", "line 2: name: must be"},
      {entry("a", kAlice, "max_concurrent = -1\n"), "line 4: max_concurrent: must be a whole"},
      {entry("a", kAlice, "tokens_per_minute = 1.5\n"), "line 4: tokens_per_minute"},
      {entry("a", kAlice, "budget_tokens = \"x\"\n"), "line 4: budget_tokens"},
      {entry("a", kAlice, "budget_tokens = 9223372036854775807\n"), "line 4: budget_tokens"},
      {entry("a", kAlice, "priority_floor = -101\n"), "line 4: priority_floor"},
      {entry("a", kAlice, "admin = 1\n"), "line 4: admin: must be true or false"},
      {entry("a", kAlice, "max_concurent = 1\n"), "line 4: a field of this name is not known"},
      {entry("a", kAlice) + entry("a", kBob), "line 4: name: another"},
      {entry("a", kAlice) + entry("b", kAlice), "line 4: sha256: another"},
      {entry("a", kAlice) + "\n[other]\nx = 1\n", "line 5: a key file has only [[key]]"},
      {"key = 5\n", "has no [[key]] entry"},
      {"key = [1, 2]\n", "has no [[key]] entry"},
      {"[key]\nname = \"a\"\n", "has no [[key]] entry"},
      {"[[key]]\nname = \"a\n", "line 2, column"},
      {"[[key]]\nname = \xff\n", "not TOML"},
      {"sk-secret-1\nsk-secret-2\n", "list of keys in plain text"},
      {"# keys\n\n  sk-secret-1\n", "sha256sum"}};
  for (const Case& one : cases) {
    const auto ring = KeyRing::parse(one.text, "keys.toml");
    ASSERT_FALSE(ring) << one.text;
    EXPECT_EQ(ring.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(ring.error().message, HasSubstr(one.message)) << one.text;
    EXPECT_EQ(ring.error().message.find('\n'), std::string::npos);
  }
}

// A key written in some wrong place must not get into a log through the error.
TEST(KeyRing, ErrorsDoNotRepeatTheFile) {
  const std::string secret = "tm-secret";
  for (const std::string& text :
       {secret + "\n", secret + " = 1\n", "[[key]]\n" + secret + "\n",
        "[[key]]\n" + secret + " = 1\n", "[[key]]\nname = \"a\"\nsha256 = \"" + secret + "\"\n",
        "[[key]]\nname = \"a\"\nsha256 = " + secret + "\n", entry("a", kAlice) + secret,
        entry(secret + "\\n", kAlice), entry(secret, kAlice) + entry(secret, kBob),
        fmt::format("[{}]\n", secret), fmt::format("[[{}]]\n", secret),
        fmt::format("key = \"{}\"\n", secret)}) {
    const auto ring = KeyRing::parse(text, "keys.toml");
    ASSERT_FALSE(ring) << text;
    EXPECT_THAT(ring.error().message, Not(HasSubstr("secret"))) << text;
  }
}

TEST(KeyRing, LoadsFiles) {
  TempDirectory directory;
  const auto file = directory / "keys.toml";
  EXPECT_EQ(KeyRing::load(file).error().code, ErrorCode::kFileNotFound);
  EXPECT_EQ(KeyRing::load(directory.path()).error().code, ErrorCode::kFileRead);
  std::ofstream(file) << entry("alice", kAlice);
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(KeyRing::load(file));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  for (const unsigned mode : {0640u, 0604u, 0620u}) {
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    testing::internal::CaptureStderr();
    EXPECT_TRUE(KeyRing::load(file));
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("chmod 600"));
  }
}

TEST(KeyRing, TooManyKeys) {
  std::string text;
  for (size_t i = 0; i <= KeyRing::kMaxKeys; ++i) {
    text += entry(fmt::format("c{}", i), fmt::format("{:064x}", i + 1));
  }
  const auto ring = KeyRing::parse(text, "keys.toml");
  ASSERT_FALSE(ring);
  EXPECT_THAT(ring.error().message, HasSubstr("at most 4096"));
}

TEST(KeyRing, OneKeyOfTheEnvironment) {
  const auto ring = KeyRing::from_plain("alice-key");
  ASSERT_TRUE(ring);
  const ApiClient* client = ring->find("alice-key");
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(client->name, "default");
  EXPECT_TRUE(client->admin);
  EXPECT_EQ(ring->find("bob-key"), nullptr);
  EXPECT_EQ(ring->find(""), nullptr);
  for (const char* bad : {"", "a b", "a\n", "\x7f"}) EXPECT_FALSE(KeyRing::from_plain(bad));
}

TEST(KeyRing, AnonymousWelcomesAll) {
  const KeyRing ring = KeyRing::anonymous();
  EXPECT_TRUE(ring.is_anonymous());
  for (const char* key : {"", "any"}) {
    ASSERT_NE(ring.find(key), nullptr);
    EXPECT_EQ(ring.find(key)->name, "anonymous");
    EXPECT_FALSE(ring.find(key)->admin);
  }
}

TEST(Keys, NewKeysWork) {
  std::set<std::string> keys;
  std::string file;
  for (int i = 0; i < 100; ++i) {
    const auto key = new_key();
    ASSERT_TRUE(key);
    EXPECT_EQ(key->size(), 46u);
    EXPECT_EQ(key->substr(0, 3), "tm-");
    EXPECT_EQ(key->find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                     "0123456789-_"),
              std::string::npos);
    keys.insert(*key);
    file += key_entry(fmt::format("n{}", i), *key) + "\n";
    EXPECT_THAT(file, Not(HasSubstr(*key)));
  }
  EXPECT_EQ(keys.size(), 100u);
  const KeyRing ring = ring_of(file);
  for (const std::string& key : keys) EXPECT_NE(ring.find(key), nullptr);
}

TEST(Keys, EntryQuotesTheName) {
  const KeyRing ring = ring_of(key_entry("o\"dd\\ \xC3\xA9", "alice-key"));
  ASSERT_NE(ring.find("alice-key"), nullptr);
  EXPECT_EQ(ring.find("alice-key")->name, "o\"dd\\ \xC3\xA9");
  EXPECT_THAT(key_entry("x", "alice-key"), HasSubstr(kAlice));
  EXPECT_THAT(key_entry("a\nb", "k"), HasSubstr("\"a\\u000ab\""));
}

TEST(Keys, PresentedKey) {
  struct Case {
    std::vector<HttpHeader> headers;
    std::string key;
  };
  const std::vector<Case> cases = {{{}, ""},
                                   {{{"Authorization", "Bearer k1"}}, "k1"},
                                   {{{"authorization", "bearer  k1 "}}, "k1"},
                                   {{{"Authorization", "BEARER k1"}}, "k1"},
                                   {{{"X-Api-Key", "k2"}}, "k2"},
                                   {{{"x-api-key", " k2"}}, "k2"},
                                   {{{"x-api-key", "k2"}, {"Authorization", "Bearer k1"}}, "k1"},
                                   {{{"x-api-key", "k2"}, {"Authorization", "Basic abc"}}, "k2"},
                                   {{{"Authorization", "Basic abc"}}, ""},
                                   {{{"Authorization", "Bearer"}}, ""},
                                   {{{"Authorization", "Bearer "}}, ""},
                                   {{{"Authorization", "Bearerk1"}}, ""},
                                   {{{"Authorization", "k1"}}, ""}};
  for (const Case& one : cases) EXPECT_EQ(presented_key(head_with(one.headers)), one.key);
}

}  // namespace
}  // namespace tidemill
