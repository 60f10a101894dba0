#include "state/content_key.h"

#include <gtest/gtest.h>

#include <set>

#include "state/test_state.h"

namespace tidemill {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

TEST(Sha256, StandardVector) {
  const std::string abc = "abc";
  EXPECT_EQ(hex(sha256(std::as_bytes(std::span(abc)))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// User case 73: keys are the same in every process and on every machine. These were computed by
// another program from the description in the header.
TEST(KeyChain, KeysNeverChange) {
  const KeyChain chain({.weights = "w", .text = "t", .layout = "l", .tenant = "salt"});
  EXPECT_EQ(chain.root().hex(), "71ccba7e33852d922035acb432697e10");
  std::vector<int32_t> tokens(kBlockTokens);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 1001);
  const ContentKey first = chain.next(chain.root(), tokens, {});
  EXPECT_EQ(first.hex(), "f9b1dfd9cffc4bcb0d2bcaf2d2db2c53");
  ImageSpan image{.begin = -3, .tokens = 5};
  image.digest[0] = 9;
  EXPECT_EQ(chain.next(first, tokens, {&image, 1}).hex(), "3fdc05f5dac6ef53bd71aaa87f8e48c5");
}

TEST(KeyChain, EveryPartOfTheIdentityCounts) {
  std::set<std::string> roots;
  StateIdentity identity{.weights = "a", .text = "b", .layout = "c", .tenant = "d"};
  roots.insert(KeyChain(identity).root().hex());
  for (std::string* field :
       {&identity.weights, &identity.text, &identity.layout, &identity.tenant}) {
    *field += "x";
    roots.insert(KeyChain(identity).root().hex());
  }
  identity.approximate = true;
  roots.insert(KeyChain(identity).root().hex());
  // Moving a letter from one field to the next makes another identity.
  roots.insert(KeyChain({.weights = "ab", .text = "", .layout = "c"}).root().hex());
  roots.insert(KeyChain({.weights = "a", .text = "b", .layout = "c"}).root().hex());
  EXPECT_EQ(roots.size(), 8u);
}

TEST(KeyChain, TokensPlaceAndImagesCount) {
  const KeyChain chain = shared_chain();
  const auto tokens = random_tokens(kBlockTokens, 1);
  auto other = tokens;
  other[127] ^= 1;
  std::set<std::string> keys;
  const ContentKey a = chain.next(chain.root(), tokens, {});
  keys.insert(a.hex());
  keys.insert(chain.next(chain.root(), other, {}).hex());
  keys.insert(chain.next(a, tokens, {}).hex());
  ImageSpan image{.begin = 10, .tokens = 4};
  keys.insert(chain.next(chain.root(), tokens, {&image, 1}).hex());
  image.digest[31] = 1;
  keys.insert(chain.next(chain.root(), tokens, {&image, 1}).hex());
  EXPECT_EQ(keys.size(), 5u);
}

TEST(KeyChain, ShortKeysForTests) {
  const KeyChain chain = shared_chain(8);
  const ContentKey key = chain.next(chain.root(), random_tokens(kBlockTokens, 1), {});
  for (size_t i = 1; i < key.bytes.size(); ++i) EXPECT_EQ(key.bytes[i], 0);
  EXPECT_EQ(chain.root(), shared_chain().root());
}

TEST(ImageParts, SameContentSamePart) {
  const std::vector<ImageSpan> images = {{.begin = 100, .tokens = 200},
                                         {.begin = 500, .tokens = 4}};
  EXPECT_TRUE(image_parts(images, 0, 100).empty());
  EXPECT_EQ(image_parts(images, 0, 128), (std::vector<ImageSpan>{{.begin = -100, .tokens = 28}}));
  EXPECT_EQ(image_parts(images, 128, 256), (std::vector<ImageSpan>{{.begin = 28, .tokens = 128}}));
  EXPECT_EQ(image_parts(images, 256, 512),
            (std::vector<ImageSpan>{{.begin = 156, .tokens = 44}, {.begin = -244, .tokens = 4}}));
}

}  // namespace
}  // namespace tidemill
