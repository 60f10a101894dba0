#include "base/mapped_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "base/temp_directory.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheBytesAndKeepsThemWhenMoved) {
  const TempDirectory directory;
  std::ofstream(directory / "a") << "first";
  std::ofstream(directory / "b") << "second";
  MappedFile a = MappedFile::open(directory / "a").value();
  MappedFile b = MappedFile::open(directory / "b").value();
  EXPECT_EQ(text_of(a), "first");
  const auto* address = b.bytes().data();
  a = std::move(b);
  EXPECT_EQ(text_of(a), "second");
  EXPECT_EQ(a.bytes().data(), address);
  EXPECT_EQ(a.path(), directory / "b");
}

TEST(MappedFile, EmptyFileIsEmpty) {
  const TempDirectory directory;
  std::ofstream(directory / "empty");
  const MappedFile file = MappedFile::open(directory / "empty").value();
  EXPECT_TRUE(file.bytes().empty());
  file.advise(MappedFile::Access::kWillNeed);
}

TEST(MappedFile, AdviseTakesAnyRange) {
  const TempDirectory directory;
  std::ofstream(directory / "a") << std::string(10'000, 'x');
  const MappedFile file = MappedFile::open(directory / "a").value();
  file.advise(MappedFile::Access::kSequential);
  file.advise(MappedFile::Access::kRandom, 5'000, 1);
  file.advise(MappedFile::Access::kWillNeed, 9'999, UINT64_MAX);
  file.advise(MappedFile::Access::kWillNeed, UINT64_MAX, UINT64_MAX);
  EXPECT_EQ(text_of(file), std::string(10'000, 'x'));
}

TEST(MappedFile, ErrorsNameThePathAndTheReason) {
  const TempDirectory directory;
  const auto missing = MappedFile::open(directory / "none");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kFileNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr((directory / "none").string()));
  EXPECT_THAT(missing.error().message, HasSubstr("No such file"));

  const auto folder = MappedFile::open(directory.path());
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code, ErrorCode::kFileRead);
  EXPECT_THAT(folder.error().message, HasSubstr("is a directory"));

  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_FALSE(MappedFile::open(directory / "pipe"));  // and does not wait for a writer
}

}  // namespace
}  // namespace tidemill
