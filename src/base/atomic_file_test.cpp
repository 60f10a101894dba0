#include "base/atomic_file.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <fstream>
#include <iterator>
#include <string>

#include "base/temp_directory.h"

namespace tidemill {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int64_t entries(const fs::path& directory) {
  return std::distance(fs::directory_iterator(directory), {});
}

TEST(AtomicFile, AppearsWithCommit) {
  const TempDirectory directory;
  AtomicFile file = AtomicFile::create(directory / "out").value();
  ASSERT_TRUE(file.write("0123"));
  ASSERT_TRUE(file.write("4567"));
  ASSERT_TRUE(file.overwrite(3, std::as_bytes(std::span("ab", 2))));
  EXPECT_EQ(file.size(), 8u);
  EXPECT_FALSE(fs::exists(directory / "out"));
  ASSERT_TRUE(file.commit());
  EXPECT_EQ(read(directory / "out"), "012ab567");
  EXPECT_EQ(entries(directory.path()), 1);
}

TEST(AtomicFile, WithoutCommitTheOldFileStays) {
  const TempDirectory directory;
  ASSERT_TRUE(write_file(directory / "out", "old"));
  {
    AtomicFile file = AtomicFile::create(directory / "out").value();
    AtomicFile moved = std::move(file);
    ASSERT_TRUE(moved.write("new"));
  }
  EXPECT_EQ(read(directory / "out"), "old");
  EXPECT_EQ(entries(directory.path()), 1);
}

TEST(AtomicFile, FollowsLinksAndRefusesWhatIsNoFile) {
  const TempDirectory directory;
  ASSERT_TRUE(write_file(directory / "real", "old"));
  fs::create_symlink(directory / "real", directory / "link");
  ASSERT_TRUE(write_file(directory / "link", "new"));
  EXPECT_TRUE(fs::is_symlink(directory / "link"));
  EXPECT_EQ(read(directory / "real"), "new");

  EXPECT_THAT(AtomicFile::create("/dev/null").error().message, HasSubstr("not a regular file"));
  EXPECT_THAT(AtomicFile::create(directory.path()).error().message, HasSubstr("a directory"));
  const auto nowhere = AtomicFile::create(directory / "no" / "out");
  EXPECT_EQ(nowhere.error().code, ErrorCode::kFileWrite);
  EXPECT_THAT(nowhere.error().message, HasSubstr("No such file"));
}

TEST(AtomicFile, OverwriteStaysInside) {
  const TempDirectory directory;
  AtomicFile file = AtomicFile::create(directory / "out").value();
  ASSERT_TRUE(file.write("0123"));
  EXPECT_FALSE(file.overwrite(3, std::as_bytes(std::span("ab", 2))));
  EXPECT_FALSE(file.overwrite(UINT64_MAX, std::as_bytes(std::span("ab", 2))));
}

// A size limit stands in for a full disk: the write is cut, then refused.
TEST(AtomicFile, FullDiskLeavesNothing) {
  const TempDirectory directory;
  auto* const handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = write_file(directory / "out", std::string(5000, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);

  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kFileWrite);
  EXPECT_THAT(status.error().message, HasSubstr((directory / "out").string()));
  EXPECT_THAT(status.error().message, HasSubstr("after 1000 bytes"));
  EXPECT_EQ(entries(directory.path()), 0);
}

}  // namespace
}  // namespace tidemill
