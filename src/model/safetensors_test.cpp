#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "model/test_checkpoint.h"

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<SafetensorsHeader> parse(const std::string& file) {
  return SafetensorsHeader::parse(std::as_bytes(std::span(file)));
}

const std::string kData(16, 'x');

TEST(SafetensorsHeader, ReadsTensorsInAnyOrder) {
  const auto header = parse(safetensors_file(
      R"({"b":{"dtype":"F8_E8M0","shape":[2,4],"data_offsets":[8,16]},"__metadata__":{"format":"pt"},)"
      R"("a":{"shape":[],"data_offsets":[4,8],"dtype":"F32"},)"
      R"("c":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
      R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[8,8]}}  )",
      kData));
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 4u);
  const auto& b = header->tensors.at("b");
  EXPECT_EQ(b.type, TensorType::kF8E8M0);
  EXPECT_THAT(b.shape, ElementsAre(2, 4));
  EXPECT_EQ(b.begin, 8);
  EXPECT_EQ(b.end, 16);
  EXPECT_TRUE(header->tensors.at("a").shape.empty());
}

TEST(SafetensorsHeader, NamesWhatIsWrong) {
  const auto with = [](const std::string& fields) {
    return safetensors_file(R"({"w":{)" + fields + "}}", kData);
  };
  const std::string good = R"({"w":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})";
  const std::pair<std::string, std::string> cases[] = {
      {"", "the file has 0 bytes"},
      {"1234567", "the file has 7 bytes"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8),
       "the header claims 18446744073709551615"},
      {std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + "{}",
       "the header claims 100000001 bytes; at most"},
      {safetensors_file(good, kData).substr(0, 30),
       "bytes, but only 22 follow: the file is cut short"},
      {safetensors_file(good, kData.substr(1)),
       "ends at byte 16 of the data, but the file has only 15"},
      {safetensors_file(good, kData + "y"), "1 bytes follow the last tensor"},
      {safetensors_file("{", kData), "not valid JSON"},
      {safetensors_file("[]", kData), "expected an object"},
      {safetensors_file("{\"\xff\":1}", kData), "not valid JSON"},
      {safetensors_file(std::string(1000, '['), kData), "nested more than 16 deep"},
      {safetensors_file(R"({"w":1})", kData), "tensor w: expected an object, found 1"},
      {safetensors_file(good.substr(0, good.size() - 1) + ",\"w\":{}}", kData),
       "the key \"w\" appears twice"},
      {with(R"("shape":[16],"data_offsets":[0,16])"), "tensor w: dtype: missing"},
      {with(R"("dtype":"U8","data_offsets":[0,16])"), "tensor w: shape: missing"},
      {with(R"("dtype":"U8","shape":[16])"), "tensor w: data_offsets: missing"},
      {with(R"("dtype":"F4","shape":[16],"data_offsets":[0,16])"),
       "tensor w: unknown dtype \"F4\""},
      {with(R"("dtype":"U8","shape":[15],"data_offsets":[0,16])"),
       "tensor w: U8 [15] needs 15 bytes, data_offsets give 16"},
      {with(R"("dtype":"F32","shape":[2,4],"data_offsets":[0,16])"), "needs 32 bytes"},
      {with(R"("dtype":"U8","shape":[-16],"data_offsets":[0,16])"), "shape: expected an array"},
      {with(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,16])"),
       "needs more than 2^63 bytes"},
      {with(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,16],"data_offsets":[0,16])"),
       "an array of at most 8 integers"},
      {with(R"("dtype":"U8","shape":[16],"data_offsets":[16,0])"), "must be [begin, end]"},
      {with(R"("dtype":"U8","shape":[16],"data_offsets":[16])"), "must be [begin, end]"},
      {with(R"("dtype":"U8","shape":[16],"data_offsets":[0,99999999999])"), "the file has only 16"},
      {with(R"("dtype":"U8","shape":[12],"data_offsets":[4,16])"),
       "tensor w: begins at byte 4 of the data, but the tensor before it ends at 0"},
      {safetensors_file(R"({"v":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},)"
                        R"("w":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})",
                        kData),
       "tensor w: begins at byte 8 of the data, inside a tensor that ends at 9"},
      {safetensors_file("{\"" + std::string(2000, 'n') + "\":1}", kData), "name has 2000 bytes"},
  };
  for (const auto& [file, error] : cases) {
    const auto header = parse(file);
    ASSERT_FALSE(header) << error;
    EXPECT_EQ(header.error().code, ErrorCode::kSafetensors);
    EXPECT_THAT(header.error().message, HasSubstr(error));
  }
}

class CheckpointTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) {
    write_file(directory_.path() / name, bytes);
  }
  std::string error_of_open(ErrorCode code) {
    const auto checkpoint = Checkpoint::open(directory_.path());
    if (checkpoint) return "no error";
    EXPECT_EQ(checkpoint.error().code, code);
    return checkpoint.error().message;
  }

  const TestTensors a_ = {{"a", {"U8", {2}, "aa"}}};
  const TestTensors b_ = {{"b", {"U8", {3}, "bbb"}}};
  TestDirectory directory_;
};

TEST_F(CheckpointTest, SingleFile) {
  write("model.safetensors", safetensors_file(a_));
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_NE(checkpoint->find("a"), nullptr);
  EXPECT_EQ(checkpoint->find("b"), nullptr);
}

TEST_F(CheckpointTest, Shards) {
  write("1.safetensors", safetensors_file(a_));
  write("2.safetensors", safetensors_file(b_));
  write("model.safetensors.index.json",
        R"({"metadata":{},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  ASSERT_NE(checkpoint->find("b"), nullptr);
  EXPECT_EQ(std::to_integer<char>(checkpoint->find("b")->data[2]), 'b');
  EXPECT_EQ(checkpoint->file_bytes(),
            static_cast<int64_t>(safetensors_file(a_).size() + safetensors_file(b_).size()));

  const std::array<int64_t, 1> three = {3}, four = {4};
  EXPECT_TRUE(checkpoint->get("b", TensorType::kU8, three));
  const auto missing = checkpoint->get("c", TensorType::kU8, three);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kTensorMissing);
  EXPECT_THAT(missing.error().message, HasSubstr("tensor c is missing"));
  const auto shape = checkpoint->get("b", TensorType::kU8, four);
  ASSERT_FALSE(shape);
  EXPECT_EQ(shape.error().code, ErrorCode::kTensorMismatch);
  EXPECT_THAT(shape.error().message,
              HasSubstr("tensor b is U8 [3], but config.json asks for U8 [4]"));
  const auto type = checkpoint->get("b", TensorType::kI8, three);
  ASSERT_FALSE(type);
  EXPECT_THAT(type.error().message,
              HasSubstr("tensor b is U8 [3], but config.json asks for I8 [3]"));
}

TEST_F(CheckpointTest, EmptyDirectory) {
  EXPECT_THAT(error_of_open(ErrorCode::kFileNotFound),
              HasSubstr("holds neither model.safetensors.index.json nor model.safetensors"));
}

TEST_F(CheckpointTest, MissingShard) {
  write("model.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  EXPECT_THAT(error_of_open(ErrorCode::kFileNotFound), HasSubstr("1.safetensors"));
}

TEST_F(CheckpointTest, TensorInTwoShards) {
  write("1.safetensors", safetensors_file(a_));
  TestTensors both = b_;
  both.insert(a_.begin(), a_.end());
  write("2.safetensors", safetensors_file(both));
  write("model.safetensors.index.json",
        R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  EXPECT_THAT(
      error_of_open(ErrorCode::kSafetensors),
      HasSubstr("2.safetensors: tensor a is here, but model.safetensors.index.json places it "
                "in 1.safetensors"));
}

TEST_F(CheckpointTest, TensorOutsideTheIndex) {
  TestTensors both = b_;
  both.insert(a_.begin(), a_.end());
  write("1.safetensors", safetensors_file(both));
  write("model.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  EXPECT_THAT(error_of_open(ErrorCode::kSafetensors),
              HasSubstr("1.safetensors: tensor b is not in model.safetensors.index.json"));
}

TEST_F(CheckpointTest, TensorOnlyInTheIndex) {
  write("1.safetensors", safetensors_file(a_));
  write("model.safetensors.index.json",
        R"({"weight_map":{"a":"1.safetensors","b":"1.safetensors"}})");
  EXPECT_THAT(error_of_open(ErrorCode::kTensorMissing), HasSubstr("tensor b is missing"));
}

TEST_F(CheckpointTest, BadIndex) {
  const std::pair<std::string, std::string> cases[] = {
      {"{", "not valid JSON"},
      {"[]", "weight_map: expected an object"},
      {R"({"weight_map":[]})", "weight_map: expected an object"},
      {R"({"weight_map":{"a":1}})", "a: expected the name of a shard, found 1"},
      {R"({"weight_map":{"a":"../1.safetensors"}})", "expected the name of a shard"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "expected the name of a shard"},
      {R"({"weight_map":{"a":".."}})", "expected the name of a shard"},
      {R"({"weight_map":{"a":""}})", "expected the name of a shard"},
      {R"({"weight_map":{"a":"1","a":"2"}})", "the key \"a\" appears twice"},
  };
  for (const auto& [index, error] : cases) {
    write("model.safetensors.index.json", index);
    EXPECT_THAT(error_of_open(ErrorCode::kSafetensors), HasSubstr(error)) << index;
  }
}

TEST_F(CheckpointTest, BadShardIsNamed) {
  write("model.safetensors", "short");
  EXPECT_THAT(error_of_open(ErrorCode::kSafetensors),
              HasSubstr("model.safetensors: the file has 5 bytes"));
}

}  // namespace
}  // namespace tidemill
