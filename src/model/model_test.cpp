#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "base/formats.h"
#include "model/bind_weights.h"
#include "model/test_checkpoint.h"

namespace tidemill {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Le;

constexpr const char* kMini = TIDEMILL_SOURCE_DIR "/models/mini";
constexpr const char* kMicro = TIDEMILL_SOURCE_DIR "/tests/vectors/micro";

// Decoded value as a kernel would see it, slowly.
float at(const Matrix& m, int64_t row, int64_t col) {
  const auto* bytes = static_cast<const uint8_t*>(m.data) + row * m.row_bytes();
  if (m.format == WeightFormat::kFp4Row) {
    const int nibble = col % 2 == 0 ? bytes[col / 2] & 15 : bytes[col / 2] >> 4;
    return e2m1_to_float(static_cast<uint8_t>(nibble)) *
           e8m0_to_float(m.scales[row * m.scale_columns() + col / 32]);
  }
  const int64_t scale_row = m.format == WeightFormat::kFp8Block ? row / 32 : row;
  return e4m3_to_float(bytes[col]) *
         e8m0_to_float(m.scales[scale_row * m.scale_columns() + col / 32]);
}

std::vector<float> first(const Matrix& m, int64_t count) {
  std::vector<float> values;
  for (int64_t col = 0; col < count; ++col) values.push_back(at(m, 0, col));
  return values;
}

// Of bf16 or f32.
std::vector<float> first_values(const TensorView& tensor, size_t count) {
  std::vector<float> values(count);
  const std::byte* from = tensor.data.data();
  for (float& value : values) {
    if (tensor.type == TensorType::kF32) {
      std::memcpy(&value, from, 4);
      from += 4;
    } else {
      uint16_t word;
      std::memcpy(&word, from, 2);
      value = bf16_to_float(word);
      from += 2;
    }
  }
  return values;
}

TEST(Model, LoadsTheBundledModel) {
  std::vector<double> progress;
  const auto model =
      Model::load(kMini, {.progress = [&](double f) { progress.push_back(f); }, .prefault = true});
  ASSERT_TRUE(model) << model.error().message;
  const Model& m = **model;
  const auto& config = m.config();
  EXPECT_EQ(m.topology().decoder_begin, 6);
  EXPECT_EQ(m.weights().layers.size(), 12u);
  EXPECT_EQ(std::ssize(m.weights().layers[3].moe.experts), config.n_routed_experts);
  EXPECT_NE(m.weights().layers[3].moe.bias_vl.data, nullptr);
  EXPECT_EQ(m.weights().layers[1].engram.table.rows, config.engram_num_embeddings[0]);
  EXPECT_EQ(m.weights().layers[4].engram.table.format, WeightFormat::kFp8Row);
  EXPECT_EQ(m.weights().layers[2].compressor.wgate.cols, config.hidden_size);
  EXPECT_EQ(m.weights().layers[6].compressor.wgate.data, nullptr);
  EXPECT_EQ(m.weights().layers[7].compressor.wkv.data, nullptr);
  EXPECT_NE(m.weights().layers[8].indexer.wq_b.data, nullptr);
  EXPECT_EQ(m.weights().draft.stages.size(), 3u);
  EXPECT_THAT(m.generation().eos_token_ids, ElementsAre(1));
  EXPECT_GT(progress.size(), 10u);
  EXPECT_EQ(progress.front(), 0);
  EXPECT_EQ(progress.back(), 1);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
}

// Speed is measured on weights that no file has: every part with traffic of its own.
TEST(Model, RandomWeightsStandForThoseOfADirectoryWithout) {
  const TestDirectory directory;
  for (const char* name : {"config.json", "tokenizer.json"}) {
    std::filesystem::copy(std::string(kMini) + "/" + name, directory.path() / name);
  }
  constexpr int64_t kBytes = 24 << 20;  // less than half of what the shapes take
  const auto model =
      Model::load(directory.path(), {.progress = {}, .prefault = true, .alias_bytes = kBytes});
  ASSERT_TRUE(model) << model.error().message;
  const Model& m = **model;
  EXPECT_LE(m.checkpoint().file_bytes(), kBytes + 4096);
  EXPECT_GT(m.checkpoint().file_bytes(), kBytes * 9 / 10);
  const LayerWeights& one = m.weights().layers[3];
  const LayerWeights& next = m.weights().layers[4];
  EXPECT_NE(one.moe.experts[0].w1.data, one.moe.experts[1].w1.data);
  EXPECT_NE(one.moe.experts[0].w1.data, next.moe.experts[0].w1.data);
  EXPECT_NE(one.attention.wq_b.data, next.attention.wq_b.data);
  for (const float value : first(one.moe.experts[5].w2, 64)) EXPECT_LE(std::abs(value), 0.05f);
  for (const float value : first(next.attention.wo_b, 64)) EXPECT_LT(std::abs(value), 2.0f / 128);
  EXPECT_NE(first(one.moe.experts[5].w2, 64), std::vector<float>(64));
  EXPECT_NE(first(next.attention.wo_b, 64), std::vector<float>(64));
  // Values that are no codes: small ones, not all the same.
  for (const char* name : {"norm.weight", "layers.3.ffn.gate.weight", "layers.3.ffn.gate.bias"}) {
    const TensorView* tensor = m.checkpoint().find(name);
    ASSERT_NE(tensor, nullptr) << name;
    const auto values = first_values(*tensor, 16);
    EXPECT_THAT(values, Each(AllOf(Ge(-0.1f), Le(0.1f)))) << name;
    EXPECT_NE(values[0], values[1]) << name;
  }

  const auto little =
      Model::load(directory.path(), {.progress = {}, .prefault = true, .alias_bytes = 1 << 20});
  ASSERT_FALSE(little);
  EXPECT_EQ(little.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(little.error().message, HasSubstr("engram_vocab_size"));
}

// A device has room for all of it, the host only for what is different.
TEST(Model, RandomWeightsMayRepeatThemselves) {
  const TestDirectory directory;
  for (const char* name : {"config.json", "tokenizer.json"}) {
    std::filesystem::copy(std::string(kMini) + "/" + name, directory.path() / name);
  }
  constexpr int64_t kPeriod = 1 << 20;
  const auto model = Model::load(
      directory.path(), {.progress = {}, .alias_bytes = 24 << 20, .alias_period = kPeriod});
  ASSERT_TRUE(model) << model.error().message;
  const TensorView& head = *(*model)->checkpoint().find("head.weight");
  ASSERT_GT(head.data.size(), static_cast<size_t>(kPeriod));
  const size_t rest = head.data.size() - kPeriod;
  EXPECT_EQ(std::memcmp(head.data.data(), head.data.data() + kPeriod, rest), 0);
  EXPECT_THAT(first_values(head, 16), Each(AllOf(Ge(-0.1f), Le(0.1f))));
  for (const float v : first((*model)->weights().layers[11].moe.experts[5].w2, 64)) {
    EXPECT_LE(std::abs(v), 0.05f);
  }
}

TEST(Model, LoadsWithoutBiasForImages) {
  const auto model = Model::load(kMicro);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ((*model)->weights().layers[0].moe.bias_vl.data, nullptr);
  EXPECT_EQ((*model)->engram().look_back(), 2);
}

class ChangedModel : public testing::Test {
 protected:
  Result<std::unique_ptr<Model>> load(int shards = 1) {
    checkpoint_.write(directory_.path(), shards);
    return Model::load(directory_.path());
  }
  TestCheckpoint checkpoint_ = TestCheckpoint::micro();
  TestDirectory directory_;
};

TEST_F(ChangedModel, ManyShards) {
  const auto model = load(7);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ((*model)->checkpoint().files().size(), 7u);
}

// Rows of the released checkpoint, as published.
TEST_F(ChangedModel, DecodesReleasedBytes) {
  auto& tensors = checkpoint_.tensors;
  tensors.at("layers.0.attn.wkv.weight").data.replace(0, 8, "\xd8\x71\xf2\x79\x70\x69\xf0\xe5");
  tensors.at("layers.0.attn.wkv.scale").data[0] = 115;
  tensors.at("layers.0.ffn.experts.0.w1.weight")
      .data.replace(0, 8, "\xa0\xa8\xec\x4a\xad\xaf\x42\xaa");
  tensors.at("layers.0.ffn.experts.0.w1.scale").data[0] = 120;
  const auto model = load();
  ASSERT_TRUE(model) << model.error().message;
  const LayerWeights& layer = (*model)->weights().layers[0];
  EXPECT_THAT(first(layer.attention.wkv, 8),
              ElementsAre(-0.00390625f, 0.03515625f, -0.0390625f, 0.0703125f, 0.03125f,
                          0.017578125f, -0.03125f, -0.0126953125f));
  EXPECT_THAT(first(layer.moe.experts[0].w1, 16),
              ElementsAre(0, -0.0078125f, 0, -0.0078125f, -0.015625f, -0.03125f, -0.0078125f,
                          0.015625f, -0.0234375f, -0.0078125f, -0.046875f, -0.0078125f, 0.0078125f,
                          0.015625f, -0.0078125f, -0.0078125f));
}

// The same values as fp4 with a scale per row and, in the other checkpoint, as fp8 with a scale per
// 32 x 32 block: the scales are exponents in both.
TEST_F(ChangedModel, Fp4AndFp8Experts) {
  const std::string scales("\x00\x01\x77\x78\x7f\xfe", 6);
  auto& tensors = checkpoint_.tensors;
  auto& fp4_weight = tensors.at("layers.0.ffn.experts.0.w1.weight");  // [64, 128]
  auto& fp4_scale = tensors.at("layers.0.ffn.experts.0.w1.scale");
  fp4_weight.data.assign(fp4_weight.data.size(), '\x22');  // 1.0
  for (size_t row = 0; row < 64; ++row) {
    for (size_t block = 0; block < 4; ++block) {
      fp4_scale.data[row * 4 + block] = scales[(row / 32 * 4 + block) % scales.size()];
    }
  }
  auto fp4 = load();
  ASSERT_TRUE(fp4) << fp4.error().message;

  checkpoint_.config["quantization_config"]["expert_dtype"] = "fp8";
  for (auto& [name, tensor] : tensors) {
    if (tensor.dtype != "I8") continue;
    const int64_t rows = tensor.shape[0], cols = tensor.shape[1] * 2;
    tensor = {"F8_E4M3", {rows, cols}, std::string(static_cast<size_t>(rows * cols), '\x38')};
    const auto blocks = static_cast<size_t>(rows / 32 * (cols / 32));
    std::string block_scales(blocks, '\x7f');
    for (size_t i = 0; i < blocks; ++i) block_scales[i] = scales[i % scales.size()];
    tensors.at(name.substr(0, name.size() - 6) + "scale") = {
        "F8_E8M0", {rows / 32, cols / 32}, block_scales};
  }
  const TestDirectory other;
  checkpoint_.write(other.path());
  auto fp8 = Model::load(other.path());
  ASSERT_TRUE(fp8) << fp8.error().message;

  const Matrix& a = (*fp4)->weights().layers[0].moe.experts[0].w1;
  const Matrix& b = (*fp8)->weights().layers[0].moe.experts[0].w1;
  EXPECT_EQ(a.format, WeightFormat::kFp4Row);
  EXPECT_EQ(b.format, WeightFormat::kFp8Block);
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t col = 0; col < a.cols; ++col) ASSERT_EQ(at(a, row, col), at(b, row, col));
  }
  EXPECT_EQ(at(a, 0, 0), 0x1p-127f);
  EXPECT_EQ(at(a, 0, 96), 0x1p-7f);
  EXPECT_EQ(at(a, 32, 32), 0x1p127f);
}

TEST_F(ChangedModel, VisionTensorsAreSkippedAndOthersCounted) {
  const TestTensor any = {"BF16", {1}, "ab"};
  for (const char* name : {"vision.norm.weight", "aligner.w1.bias", "image_start", "image_end",
                           "image_newline", "layers.99.odd", "mtp.9.odd"}) {
    checkpoint_.tensors[name] = any;
  }
  checkpoint_.config["vision_config"] = {{"hidden_size", 8}};
  const auto model = load();
  ASSERT_TRUE(model) << model.error().message;
  const auto bound = bind_weights((*model)->checkpoint(), (*model)->config(), (*model)->topology());
  ASSERT_TRUE(bound) << bound.error().message;
  EXPECT_THAT(bound->unexpected, ElementsAre("layers.99.odd", "mtp.9.odd"));
}

TEST_F(ChangedModel, WithoutDrafter) {
  auto& text = checkpoint_.config["text_config"];
  text["num_nextn_predict_layers"] = 0;
  text["compress_ratios"].erase(7);
  text["compress_ratios"].erase(7);
  text["compress_ratios"].erase(7);
  text["dspark_target_layer_ids"] = nlohmann::json::array();
  std::erase_if(checkpoint_.tensors, [](auto& tensor) { return tensor.first.starts_with("mtp."); });
  const auto model = load();
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_THAT((*model)->weights().draft.stages, IsEmpty());
}

// A header of odd length puts every tensor at an odd address.
TEST_F(ChangedModel, OddAddressesAreAligned) {
  const auto plain = load();
  ASSERT_TRUE(plain) << plain.error().message;
  const TestDirectory other;
  checkpoint_.write(other.path());
  std::string file = read_file(other.path() / "model.safetensors");
  const auto length = static_cast<size_t>(static_cast<uint8_t>(file[0])) |
                      static_cast<size_t>(static_cast<uint8_t>(file[1])) << 8 |
                      static_cast<size_t>(static_cast<uint8_t>(file[2])) << 16;
  const std::string header = file.substr(8, length) + (length % 2 == 0 ? " " : "");
  write_file(other.path() / "model.safetensors", safetensors_file(header, file.substr(8 + length)));
  const auto odd = Model::load(other.path());
  ASSERT_TRUE(odd) << odd.error().message;
  const auto& a = (*plain)->weights().layers[2];
  const auto& b = (*odd)->weights().layers[2];
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.moe.bias.data) % alignof(float), 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.attn_norm.data) % alignof(uint16_t), 0u);
  EXPECT_TRUE(std::equal(a.moe.bias.data, a.moe.bias.data + a.moe.bias.size, b.moe.bias.data));
  EXPECT_EQ(std::memcmp(a.moe.gate.data, b.moe.gate.data,
                        static_cast<size_t>(a.moe.gate.rows * a.moe.gate.row_bytes())),
            0);
}

TEST_F(ChangedModel, BadInputIsNamed) {
  struct Case {
    ErrorCode code;
    std::string error;
    std::function<void(TestCheckpoint&)> change;
  };
  const Case cases[] = {
      {ErrorCode::kTensorMissing, "tensor layers.3.attn.indexer.wk.weight is missing",
       [](TestCheckpoint& c) { c.tensors.erase("layers.3.attn.indexer.wk.weight"); }},
      {ErrorCode::kTensorMissing, "tensor layers.0.ffn.experts.7.w2.scale is missing",
       [](TestCheckpoint& c) { c.tensors.erase("layers.0.ffn.experts.7.w2.scale"); }},
      {ErrorCode::kTensorMissing, "tensor mtp.2.markov_head.head.weight is missing",
       [](TestCheckpoint& c) { c.tensors.erase("mtp.2.markov_head.head.weight"); }},
      {ErrorCode::kTensorMissing, "tensor layers.0.ffn.experts.12.w1.weight is missing",
       [](TestCheckpoint& c) {
         c.config["text_config"]["n_routed_experts"] = 13;
         for (auto& [name, tensor] : c.tensors) {
           if (!name.starts_with("layers.") || name.find("ffn.gate.") == std::string::npos)
             continue;
           tensor.data += std::string(tensor.data.size() / 12, '\0');
           tensor.shape[0] = 13;
         }
       }},
      {ErrorCode::kTensorMismatch,
       "tensor norm.weight is F16 [128], but config.json asks for BF16 [128]",
       [](TestCheckpoint& c) { c.tensors.at("norm.weight").dtype = "F16"; }},
      {ErrorCode::kTensorMismatch,
       "tensor embed.weight is BF16 [128, 320], but config.json asks for BF16 [320, 128]",
       [](TestCheckpoint& c) {
         c.tensors.at("embed.weight").shape = {128, 320};
       }},
      {ErrorCode::kTensorMismatch, "I8 [64, 64], but config.json asks for F8_E4M3 [64, 128]",
       [](TestCheckpoint& c) { c.config["quantization_config"]["expert_dtype"] = "fp8"; }},
      {ErrorCode::kTensorMismatch, "tensor layers.0.ffn.gate.bias_vl is F32 [11]",
       [](TestCheckpoint& c) {
         c.tensors["layers.0.ffn.gate.bias_vl"] = {"F32", {11}, std::string(44, '\0')};
       }},
      {ErrorCode::kTensorValue, "tensor layers.5.engram.embed.scale: scale byte 77 of 1172 is 255",
       [](TestCheckpoint& c) { c.tensors.at("layers.5.engram.embed.scale").data[77] = '\xff'; }},
      {ErrorCode::kTensorValue,
       "tensor layers.6.ffn.experts.3.w1.scale: scale byte 0 of 256 is 255",
       [](TestCheckpoint& c) { c.tensors.at("layers.6.ffn.experts.3.w1.scale").data[0] = '\xff'; }},
      {ErrorCode::kConfig, "engram_num_embeddings[0] is 991",
       [](TestCheckpoint& c) { c.config["text_config"]["engram_num_embeddings"][0] = 991; }},
      {ErrorCode::kConfig, "layer 1 (ratio 2) reads a cache that no layer before it owns",
       [](TestCheckpoint& c) {
         c.config["text_config"]["kv_source_layer_ids"] = {3, 4};
       }},
      {ErrorCode::kEngramMap, "engram_compressed_vocab_size is 264",
       [](TestCheckpoint& c) { c.config["text_config"]["engram_compressed_vocab_size"] = 264; }},
      {ErrorCode::kTokenizer, "tokenizer.json has ids up to 319, but vocab_size is 319",
       [](TestCheckpoint& c) {
         c.config["text_config"]["vocab_size"] = 319;
         c.config["image_token_id"] = 318;
       }},
  };
  const TestCheckpoint good = checkpoint_;
  for (const Case& test : cases) {
    checkpoint_ = good;
    test.change(checkpoint_);
    const auto model = load();
    ASSERT_FALSE(model) << test.error;
    EXPECT_EQ(model.error().code, test.code) << model.error().message;
    EXPECT_THAT(model.error().message, HasSubstr(test.error));
    EXPECT_EQ(model.error().message.find('\n'), std::string::npos);
  }
}

TEST_F(ChangedModel, TokenMapFileIsChecked) {
  checkpoint_.write(directory_.path());
  const auto file = directory_.path() / "engram_token_map.i32";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "has 0 bytes; vocab_size = 320 asks for 1280"},
      {std::string(1280, '\xff'), "has ids from -1 to -1"},
      {std::string(1280, '\0'), "has ids from 0 to 0, but engram_compressed_vocab_size is 265"},
  };
  for (const auto& [bytes, error] : cases) {
    write_file(file, bytes);
    const auto model = Model::load(directory_.path());
    ASSERT_FALSE(model) << error;
    EXPECT_EQ(model.error().code, ErrorCode::kEngramMap);
    EXPECT_THAT(model.error().message, HasSubstr(error));
  }
}

// Scales are checked even when the other weights are not read.
TEST_F(ChangedModel, ScalesAreCheckedWithoutPrefault) {
  checkpoint_.tensors.at("mtp.0.main_proj.scale").data[1] = '\xff';
  checkpoint_.write(directory_.path());
  const auto model = Model::load(directory_.path(), {.progress = {}, .prefault = false});
  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().message, HasSubstr("tensor mtp.0.main_proj.scale: scale byte 1 of 48"));
}

TEST(Model, MissingDirectory) {
  const auto model = Model::load("/nonexistent/model");
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kFileNotFound);
}

}  // namespace
}  // namespace tidemill
