#include "base/npy.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/mapped_file.h"
#include "base/temp_directory.h"

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string npy(const std::string& dictionary, const std::string& data) {
  std::string bytes = "\x93NUMPY";
  bytes += {'\x01', '\x00', static_cast<char>(dictionary.size()), '\x00'};
  return bytes + dictionary + data;
}

Result<NpyArray> parse(const std::string& bytes) {
  return parse_npy(std::as_bytes(std::span(bytes)));
}

TEST(NpyWriter, WritesWhatTheReaderReads) {
  const TempDirectory directory;
  NpyWriter writer = NpyWriter::create(directory / "x.npy", 3).value();
  ASSERT_TRUE(writer.append(std::vector<float>{1, 2, 3}));
  ASSERT_TRUE(writer.append(std::vector<float>{4, 5, 6, 7, 8, 9}));
  EXPECT_FALSE(writer.append(std::vector<float>{1, 2}));
  EXPECT_EQ(writer.rows(), 3);
  ASSERT_TRUE(writer.finish());

  const MappedFile file = MappedFile::open(directory / "x.npy").value();
  EXPECT_EQ(file.bytes().size(), 128u + 9 * 4);
  const NpyArray array = parse_npy(file.bytes()).value();
  EXPECT_EQ(array.type, NpyType::kFloat32);
  EXPECT_THAT(array.shape, ElementsAre(3, 3));
  EXPECT_THAT(array.values<float>(), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(NpyWriter, WithoutFinishThereIsNoFile) {
  const TempDirectory directory;
  {
    NpyWriter writer = NpyWriter::create(directory / "x.npy", 1).value();
    ASSERT_TRUE(writer.append(std::vector<float>{1}));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(ParseNpy, ReadsEveryType) {
  const std::string rest = ", 'fortran_order': False, 'shape': (2,), }\n";
  using namespace std::string_literals;
  EXPECT_THAT(parse(npy("{'descr': '<f2'" + rest, "\x00\x3c\x00\xc0"s))->values<float>(),
              ElementsAre(1, -2));
  EXPECT_THAT(parse(npy("{'descr': '<i8'" + rest, std::string(8, '\xff') + std::string(8, '\0')))
                  ->values<int64_t>(),
              ElementsAre(-1, 0));
  EXPECT_THAT(parse(npy("{'descr': '<i4'" + rest, "\x01\0\0\0\xff\xff\xff\xff"s))->values<int>(),
              ElementsAre(1, -1));
  EXPECT_THAT(parse(npy("{'descr': '<i2'" + rest, "\x01\x00\xfe\xff"s))->values<int>(),
              ElementsAre(1, -2));
  EXPECT_THAT(parse(npy("{'descr': '<u2'" + rest, "\x01\x00\xfe\xff"s))->values<int>(),
              ElementsAre(1, 65534));
  EXPECT_THAT(parse(npy("{'descr': '|u1'" + rest, "\x01\xfe"s))->values<int>(),
              ElementsAre(1, 254));
  EXPECT_THAT(parse(npy("{'descr': '|b1'" + rest, "\x01\x00"s))->values<bool>(),
              ElementsAre(true, false));
}

TEST(ParseNpy, ReadsScalarsAndEmptyArraysAtAnyAddress) {
  const std::string bytes = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (), }", "\x07");
  const NpyArray scalar = parse(bytes).value();
  EXPECT_TRUE(scalar.shape.empty());
  EXPECT_THAT(scalar.values<int>(), ElementsAre(7));

  const NpyArray empty =
      parse(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 5), }", "")).value();
  EXPECT_EQ(empty.size(), 0);
  EXPECT_TRUE(empty.values<float>().empty());
}

TEST(ParseNpy, RefusesWhatItCannotRead) {
  const auto message = [](const std::string& bytes) {
    const auto array = parse(bytes);
    return array ? std::string("accepted") : array.error().message;
  };
  const std::string good = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "1234");
  ASSERT_TRUE(parse(good));
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(parse(good.substr(0, length))) << length;
  }
  EXPECT_THAT(message(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "1234")),
              HasSubstr("'>f4'"));
  EXPECT_THAT(message(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (1,1), }", "1234")),
              HasSubstr("Fortran"));
  EXPECT_THAT(message(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "1234")),
              HasSubstr("shape"));
  EXPECT_THAT(message(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "1234")),
              HasSubstr("needs 8 bytes, the file has 4"));
  const std::string huge = "(4611686018427387904, 4611686018427387904)";
  EXPECT_THAT(
      message(npy("{'descr': '<f4', 'fortran_order': False, 'shape': " + huge + "}", "1234")),
      HasSubstr("too many"));
  EXPECT_THAT(message(npy("{'descr': '<f4'}", "1234")), HasSubstr("lacks"));
}

TEST(Float16, ConvertsExactly) {
  EXPECT_EQ(float16_to_float(0x3c01), 1 + 0x1p-10f);
  EXPECT_EQ(float16_to_float(0x7bff), 65504);
  EXPECT_EQ(float16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(float16_to_float(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(float16_to_float(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(float16_to_float(0x7e00)));
  EXPECT_TRUE(std::signbit(float16_to_float(0x8000)));
}

}  // namespace
}  // namespace tidemill
