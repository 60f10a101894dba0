#include "model/resident_checkpoint.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <random>
#include <sstream>
#include <vector>

#include "base/cpu_quota.h"
#include "base/file_descriptor.h"
#include "base/huge_memory.h"
#include "model/model.h"
#include "model/test_checkpoint.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

constexpr const char* kMicro = TIDEMILL_SOURCE_DIR "/tests/vectors/micro";
constexpr int64_t kMi = int64_t{1} << 20;
constexpr int64_t kNoLimit = INT64_MAX;

std::string random_bytes(size_t count) {
  std::mt19937 random(11);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

void expect_same_tensors(const Checkpoint& a, const Checkpoint& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, tensor] : a.tensors()) {
    const TensorView* other = b.find(name);
    ASSERT_NE(other, nullptr) << name;
    EXPECT_EQ(tensor.type, other->type) << name;
    EXPECT_EQ(tensor.shape, other->shape) << name;
    EXPECT_TRUE(std::ranges::equal(tensor.data, other->data)) << name;
  }
}

// kB of huge pages behind an address, by the kernel's own account.
int64_t huge_kb(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream in(line);
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (in >> std::hex >> begin >> dash >> end && dash == '-') {
      inside = begin <= wanted && wanted < end;
    }
    if (inside && line.starts_with("AnonHugePages:")) return std::stoll(line.substr(14));
  }
  return -1;
}

TEST(HugePages, AutoWeighsWhatThereIs) {
  struct Case {
    bool offered;
    int64_t weights, available, limit;
    std::string_view why;  // a part of it; empty: huge pages
  };
  const Case kCases[] = {
      {true, 8000 * kMi, 16000 * kMi, kNoLimit, ""},
      {true, 8000 * kMi, 16000 * kMi, 16000 * kMi, ""},
      {false, 8000 * kMi, 16000 * kMi, kNoLimit, "are off"},
      {true, 256 * kMi, 1000 * kMi, kNoLimit, ""},
      {true, 256 * kMi - 1, 1000 * kMi, kNoLimit, "below 256 MiB"},
      {true, 0, 1000 * kMi, kNoLimit, "below 256 MiB"},
      {true, 8000 * kMi + 1, 16000 * kMi, kNoLimit, "half of the memory"},
      {true, 8000 * kMi, 0, kNoLimit, "half of the memory"},  // unknown
      {true, 8000 * kMi, 64000 * kMi, 16000 * kMi - 2, "control group"},
      {true, 8000 * kMi, 64000 * kMi, 0, "control group"},
  };
  for (const Case& c : kCases) {
    const std::string_view why = why_mapped(c.offered, c.weights, c.available, c.limit);
    EXPECT_THAT(std::string(why), HasSubstr(std::string(c.why))) << c.weights;
    EXPECT_EQ(why.empty(), c.why.empty()) << why;
  }
}

TEST(HugePages, Names) {
  EXPECT_EQ(parse_huge_pages("auto").value(), HugePages::kAuto);
  EXPECT_EQ(parse_huge_pages("on").value(), HugePages::kOn);
  EXPECT_EQ(parse_huge_pages("off").value(), HugePages::kOff);
  const auto odd = parse_huge_pages("yes");
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(odd.error().message, HasSubstr("auto, on, off"));
}

class Resident : public testing::Test {
 protected:
  void write(const std::string& name, const TestTensors& tensors) {
    write_file(directory_.path() / name, safetensors_file(tensors));
  }
  Checkpoint open() {
    auto checkpoint = Checkpoint::open(directory_.path());
    EXPECT_TRUE(checkpoint) << checkpoint.error().message;
    return *std::move(checkpoint);
  }
  std::string error_of(const Checkpoint& mapped) {
    const auto resident = resident_checkpoint(mapped);
    if (resident) return "no error";
    EXPECT_EQ(resident.error().code, ErrorCode::kFileRead);
    return resident.error().message;
  }

  // More than two blocks, in tensors of odd sizes.
  const TestTensors tensors_ = {
      {"a", {"U8", {3}, "abc"}},   {"b", {"U8", {9000001}, random_bytes(9000001)}},
      {"c", {"BF16", {0, 4}, ""}}, {"d", {"F32", {2, 500}, random_bytes(4000)}},
      {"e", {"U8", {1}, "e"}},
  };
  TestDirectory directory_;
};

TEST_F(Resident, EveryTensorOfTheMicroModel) {
  for (const int shards : {1, 7}) {
    TestCheckpoint::micro().write(directory_.path(), shards);
    const Checkpoint mapped = open();
    const auto resident = resident_checkpoint(mapped);
    ASSERT_TRUE(resident) << resident.error().message;
    expect_same_tensors(mapped, *resident);
    EXPECT_TRUE(resident->files().empty());
    std::filesystem::remove(directory_.path() / "model.safetensors");
  }
}

TEST_F(Resident, TensorsBeginAtCacheLinesAndOutliveTheMapping) {
  write("model.safetensors", tensors_);
  std::vector<double> progress;
  auto mapped = std::make_unique<Checkpoint>(open());
  const auto resident =
      resident_checkpoint(*mapped, [&](double fraction) { progress.push_back(fraction); });
  ASSERT_TRUE(resident) << resident.error().message;
  mapped.reset();
  expect_same_tensors(open(), *resident);
  for (const auto& [name, tensor] : resident->tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data.data()) % 64, 0u) << name;
  }
  EXPECT_EQ(progress.front(), 0);
  EXPECT_EQ(progress.back(), 1);
  EXPECT_TRUE(std::ranges::is_sorted(progress));
}

TEST_F(Resident, ACheckpointWithoutData) {
  write("model.safetensors", {{"c", {"BF16", {0, 4}, ""}}});
  const auto resident = resident_checkpoint(open());
  ASSERT_TRUE(resident) << resident.error().message;
  EXPECT_NE(resident->find("c"), nullptr);
}

TEST_F(Resident, TheKernelGivesHugePages) {
  if (!huge_pages_offered()) GTEST_SKIP() << "transparent huge pages are off";
  write("model.safetensors", tensors_);
  const auto resident = resident_checkpoint(open());
  ASSERT_TRUE(resident);
  // At least one of those that lie whole in the 9 MB; the kernel may be short of more.
  EXPECT_GE(huge_kb(resident->find("b")->data.data()), 2048);
  EXPECT_EQ(how_held(*resident), "8.6 MiB in huge pages");
  EXPECT_EQ(how_held(open()), "8.6 MiB mapped");
}

TEST_F(Resident, AFileThatShrinksIsAnError) {
  write("model.safetensors", tensors_);
  const Checkpoint mapped = open();
  std::filesystem::resize_file(directory_.path() / "model.safetensors", 5'000'000);
  const std::string error = error_of(mapped);
  EXPECT_THAT(error, HasSubstr("model.safetensors ends at byte "));
  EXPECT_THAT(error, HasSubstr("it was changed meanwhile"));
}

TEST_F(Resident, AFileThatCannotBeReadIsAnError) {
  write("model.safetensors", tensors_);
  const Checkpoint mapped = open();
  const std::filesystem::path path = directory_.path() / "model.safetensors";
  std::filesystem::remove(path);
  EXPECT_THAT(error_of(mapped), HasSubstr("cannot open " + path.string() + ": No such file"));
  std::filesystem::create_directory(path);  // can be opened
  EXPECT_THAT(error_of(mapped), HasSubstr("cannot read " + path.string() + " at byte "));
}

// On invented nodes, each with one of this machine's CPUs: who reads a part runs there.
TEST_F(Resident, PartsAreReadWhereTheirNodeIs) {
  write("model.safetensors", tensors_);
  const Checkpoint mapped = open();
  const std::vector<int> cpus = allowed_cpus();
  const NodeShares nodes(2, {{0, {cpus.front()}}, {1, {cpus.back()}}});
  ASSERT_EQ(nodes.parts().size(), 2u);
  // Beside the begin and the end, there is progress only if this thread comes in time to read.
  std::vector<std::vector<int>> on;
  for (int round = 0; on.size() <= 2 && round < 1000; ++round) {
    on.clear();
    const auto resident = resident_checkpoint(
        mapped, [&](double) { on.push_back(allowed_cpus()); }, nodes);
    ASSERT_TRUE(resident) << resident.error().message;
    expect_same_tensors(mapped, *resident);
    EXPECT_EQ(allowed_cpus(), cpus);
  }
  ASSERT_GT(on.size(), 2u);
  EXPECT_EQ(on[1], std::vector(1, cpus.front()));
}

TEST_F(Resident, NodesThatAreNotThereChangeNothing) {
  write("model.safetensors", tensors_);
  const Checkpoint mapped = open();
  const NodeShares nodes(7, {{0, {900}}, {1, {901, 902}}, {7, {903, 904, 905, 906}}});
  ASSERT_EQ(nodes.parts().size(), 3u);
  const auto resident = resident_checkpoint(mapped, {}, nodes);
  ASSERT_TRUE(resident) << resident.error().message;
  expect_same_tensors(mapped, *resident);
  std::filesystem::resize_file(directory_.path() / "model.safetensors", 5'000'000);
  const auto cut = resident_checkpoint(mapped, {}, nodes);
  ASSERT_FALSE(cut);
  EXPECT_THAT(cut.error().message, HasSubstr("ends at byte "));
}

TEST_F(Resident, AModelInHugePages) {
  const auto mapped = Model::load(kMicro);
  std::vector<double> progress;
  const auto resident = Model::load(
      kMicro, {.progress = [&](double f) { progress.push_back(f); }, .huge_pages = HugePages::kOn});
  ASSERT_TRUE(resident) << resident.error().message;
  EXPECT_TRUE((*resident)->checkpoint().files().empty());
  expect_same_tensors((*mapped)->checkpoint(), (*resident)->checkpoint());
  EXPECT_EQ(progress.front(), 0);
  EXPECT_EQ(progress.back(), 1);
  EXPECT_TRUE(std::ranges::is_sorted(progress));
  // Weights are used from there.
  const Checkpoint& checkpoint = (*resident)->checkpoint();
  EXPECT_EQ((*resident)->weights().layers[1].moe.experts[2].w1.data,
            checkpoint.find("layers.1.ffn.experts.2.w1.weight")->data.data());

  const auto small = Model::load(kMicro, {.progress = {}, .huge_pages = HugePages::kAuto});
  ASSERT_TRUE(small);
  EXPECT_FALSE((*small)->checkpoint().files().empty());
}

TEST_F(Resident, ScalesAreCheckedThereToo) {
  TestCheckpoint checkpoint = TestCheckpoint::micro();
  checkpoint.tensors.at("layers.0.attn.wkv.scale").data[1] = '\xff';
  checkpoint.write(directory_.path());
  const auto model = Model::load(directory_.path(), {.progress = {}, .huge_pages = HugePages::kOn});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kTensorValue);
  EXPECT_THAT(model.error().message, HasSubstr("layers.0.attn.wkv.scale: scale byte 1"));
}

TEST_F(Resident, NotWithWeightsThatArePaged) {
  const auto both = Model::load(
      kMicro, {.progress = {}, .memory_bytes = 100 * kMi, .huge_pages = HugePages::kOn});
  ASSERT_FALSE(both);
  EXPECT_EQ(both.error().code, ErrorCode::kConflictingOptions);
  EXPECT_THAT(both.error().message, HasSubstr("memory_bytes"));
  EXPECT_TRUE(Model::load(
      kMicro, {.progress = {}, .memory_bytes = 100 * kMi, .huge_pages = HugePages::kAuto}));
}

}  // namespace
}  // namespace tidemill
