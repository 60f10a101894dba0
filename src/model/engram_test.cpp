#include "model/engram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "model/numpy_random.h"
#include "model/test_checkpoint.h"

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Config released() {
  return *Config::parse(read_file(TIDEMILL_SOURCE_DIR "/tests/cases/config/released.json"));
}

// Any map with the right sizes: the vectors below are of compressed ids. The padding token's
// compressed id is 2, as in the released map.
std::vector<int32_t> some_map(const Config& config) {
  std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
  for (size_t i = 0; i < map.size(); ++i) {
    map[i] = static_cast<int32_t>(
        std::min<int64_t>(static_cast<int64_t>(i), config.engram_compressed_vocab_size - 1));
  }
  return map;
}

EngramHash released_hash() { return *EngramHash::build(released(), some_map(released())); }

std::vector<int64_t> rows(const EngramHash& hash, int64_t table, std::vector<int64_t> ids) {
  std::vector<int64_t> out(24);
  hash.rows_of_compressed(table, ids, out.data());
  return out;
}

// numpy 2.4: default_rng(seed).integers(0, bound, size=4, dtype=np.int64)
TEST(NumpyRandom, DrawsAsNumpy) {
  struct Case {
    uint64_t seed;
    int64_t bound;
    std::vector<int64_t> drawn;
  };
  const Case cases[] = {
      {10007, 46539438283891, {38316048023122, 2419938046656, 17979836159674, 36993668729195}},
      {140098, 46539438283891, {33858405369630, 25755403400457, 15460673601360, 41309613242795}},
      {0,
       4611686018427387903,
       {2937467307694268567, 1244171615822312903, 188957027462249005, 76220265684581383}},
      {12345, 8589934593, {1952801563, 2720933419, 6849317125, 5808983389}},
      {1099511627781,
       6917529027641081856,
       {2577364664081086760, 4062176605066856300, 6820104093853975477, 2498576885208516941}},
      {20014,
       17402588748782595,
       {14304298472703371, 6936029659013424, 4234291941476224, 13353965473400813}},
  };
  for (const Case& test : cases) {
    NumpyRandom random(test.seed);
    for (const int64_t expected : test.drawn) {
      EXPECT_EQ(random.integer_below(test.bound), expected) << test.seed << " " << test.bound;
    }
  }
}

TEST(EngramHash, ReleasedConstants) {
  const EngramHash hash = released_hash();
  EXPECT_THAT(hash.multipliers(0),
              ElementsAre(76632096046245, 4839876093313, 35959672319349, 73987337458391));
  EXPECT_THAT(hash.multipliers(1),
              ElementsAre(67716810739261, 51510806800915, 30921347202721, 82619226485591));
  EXPECT_THAT(
      hash.primes(0),
      ElementsAre(16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
                  16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321,
                  16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463));
  EXPECT_EQ(hash.primes(1).front(), 16000477);
  EXPECT_EQ(hash.primes(1).back(), 16000889);
  EXPECT_EQ(hash.look_back(), 3);
}

TEST(EngramHash, RowsAtTheStartOfASequence) {
  const EngramHash hash = released_hash();
  EXPECT_THAT(rows(hash, 0, {5}),
              ElementsAre(5412672, 18319159, 35492627, 60880252, 74962984, 95657733, 98005115,
                          127351390, 143494632, 151789366, 171410756, 185435171, 207165545,
                          218031260, 226330336, 247008214, 256353435, 276423911, 295874085,
                          305599364, 322749888, 348475788, 367405771, 372009279));
  EXPECT_THAT(rows(hash, 1, {5}),
              ElementsAre(6939818, 27264717, 45254833, 51915000, 79245924, 86868470, 108849060,
                          119840903, 131576092, 148509516, 175704205, 177570039, 200101533,
                          208499118, 238497982, 243164617, 268363546, 274011563, 290850399,
                          314068096, 324530373, 351836884, 354242998, 382274687));
}

TEST(EngramHash, RowsOfFourIds) {
  const EngramHash hash = released_hash();
  EXPECT_THAT(rows(hash, 0, {99091, 12345, 7, 0}),
              ElementsAre(12153694, 30853388, 42708902, 50121856, 73805582, 94650699, 98501409,
                          114971103, 139995540, 149925905, 168973347, 186451413, 204710018,
                          218692478, 239732463, 249870253, 257184555, 274559773, 298803837,
                          314139151, 330886264, 349791888, 353935975, 376334129));
  EXPECT_THAT(rows(hash, 1, {99091, 12345, 7, 0}),
              ElementsAre(15641512, 25265123, 33588296, 59001297, 64866660, 86588347, 105940733,
                          123088083, 131659947, 148232447, 170163083, 176522817, 204867294,
                          223218253, 229907385, 247129982, 264571769, 279773288, 297081452,
                          309682839, 328094264, 350458126, 355313680, 382489200));
}

TEST(EngramHash, RowsOfRealTokens) {
  const EngramHash hash = released_hash();
  EXPECT_THAT(rows(hash, 0, {42, 604, 42, 0}),
              ElementsAre(7886055, 31750524, 42647395, 49822294, 68585819, 80174005, 101968287,
                          118397884, 135493121, 145415035, 161842731, 190340880, 192918570,
                          210209744, 236149097, 245659420, 271604293, 284153325, 301456459,
                          310108542, 326543722, 351196786, 363337157, 381084936));
  EXPECT_THAT(rows(hash, 1, {42, 604, 42, 0}),
              ElementsAre(3918131, 24385560, 42575488, 49386303, 76797783, 86114975, 109464105,
                          121246166, 131658341, 144150449, 166116321, 191123393, 198671288,
                          215294012, 227149923, 241811316, 269033349, 285922287, 293771848,
                          315435267, 325595997, 343897804, 356478788, 371393751));
}

TEST(EngramHash, RawIdsGoThroughTheMap) {
  const Config config = released();
  std::vector<int32_t> map = some_map(config);
  map[1000] = 604;
  const auto hash = EngramHash::build(config, map);
  ASSERT_TRUE(hash) << hash.error().message;
  std::vector<int64_t> out(24);
  hash->rows(1, std::vector<int32_t>{42, 1000, 42, 0, 999}, out.data());  // the fifth is not read
  EXPECT_EQ(out, rows(*hash, 1, {42, 604, 42, 0}));
}

// An image token reads as padding and hides what stands before it.
TEST(EngramHash, ImageTokensBlock) {
  const EngramHash hash = released_hash();
  EXPECT_EQ(rows(hash, 0, {5, -1, 7, 9}), rows(hash, 0, {5}));
  EXPECT_EQ(rows(hash, 0, {5, 7, -1, 9}), rows(hash, 0, {5, 7}));
  EXPECT_EQ(rows(hash, 0, {-1, 7, 9, 11}), rows(hash, 0, {2, 2, 2, 2}));
  EXPECT_EQ(rows(hash, 0, {}), rows(hash, 0, {2, 2, 2, 2}));
}

TEST(EngramHash, RefusesOtherTableSizes) {
  Config config = released();
  config.engram_num_embeddings[1] += 1;
  const auto hash = EngramHash::build(config, some_map(config));
  ASSERT_FALSE(hash);
  EXPECT_EQ(hash.error().code, ErrorCode::kConfig);
  EXPECT_THAT(hash.error().message,
              HasSubstr("engram_num_embeddings[1] is 384016683, but the 24 primes from "
                        "engram_vocab_size = 16000000 sum to 384016682"));
}

TEST(EngramHash, RefusesAnotherTokenMap) {
  const Config config = released();
  auto short_map = some_map(config);
  short_map.pop_back();
  auto small_map = some_map(config);
  for (int32_t& id : small_map) id = std::min(id, 97811);
  auto negative_map = some_map(config);
  negative_map[3] = -1;
  const std::pair<std::vector<int32_t>, std::string> maps[] = {
      {short_map, "has 129279 ids, but vocab_size is 129280"},
      {small_map, "has ids from 0 to 97811, but engram_compressed_vocab_size is 99092"},
      {negative_map, "has ids from -1 to 99091"},
  };
  for (const auto& [map, error] : maps) {
    const auto hash = EngramHash::build(config, map);
    ASSERT_FALSE(hash);
    EXPECT_EQ(hash.error().code, ErrorCode::kEngramMap);
    EXPECT_THAT(hash.error().message, HasSubstr(error));
  }
}

TEST(EngramHash, NoTables) {
  Config config = released();
  config.engram_layer_ids.clear();
  const auto hash = EngramHash::build(config, {});
  ASSERT_TRUE(hash);
  EXPECT_EQ(hash->look_back(), 0);
}

}  // namespace
}  // namespace tidemill
