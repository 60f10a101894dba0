#include "observe/ledger.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/log.h"
#include "base/temp_directory.h"
#include "observe/records_for_tests.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

std::string contents(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

std::unique_ptr<UsageLedger> reopen(std::unique_ptr<UsageLedger> old,
                                    const std::filesystem::path& file) {
  old.reset();
  auto ledger = UsageLedger::open(file);
  EXPECT_TRUE(ledger) << (ledger ? "" : ledger.error().message);
  return ledger ? std::move(*ledger) : nullptr;
}

void expect_equal(const UsageTotals& a, const UsageTotals& b) {
  EXPECT_EQ(a.requests, b.requests);
  EXPECT_EQ(a.by_outcome, b.by_outcome);
  EXPECT_EQ(a.prompt_tokens, b.prompt_tokens);
  EXPECT_EQ(a.cached_tokens, b.cached_tokens);
  EXPECT_EQ(a.output_tokens, b.output_tokens);
  EXPECT_EQ(a.reasoning_tokens, b.reasoning_tokens);
}

TEST(UsageLedger, SumsPerClient) {
  UsageLedger ledger;
  RequestRecord record = sample_record();
  ledger.add(record);
  record.outcome = "abort";
  ledger.add(record);
  record.client = "bob";
  ledger.add(record);
  const UsageTotals alice = ledger.of("alice");
  EXPECT_EQ(alice.requests, 2);
  EXPECT_EQ(alice.by_outcome[outcome_index("stop")], 1);
  EXPECT_EQ(alice.by_outcome[outcome_index("abort")], 1);
  EXPECT_EQ(alice.prompt_tokens, 24);
  EXPECT_EQ(alice.cached_tokens, 8);
  EXPECT_EQ(alice.output_tokens, 14);
  EXPECT_EQ(alice.reasoning_tokens, 6);
  EXPECT_EQ(alice.tokens(), 38);
  EXPECT_EQ(ledger.of("nobody").requests, 0);
  EXPECT_EQ(ledger.all().size(), 2u);
}

TEST(UsageLedger, SurvivesRestarts) {
  TempDirectory directory;
  const auto file = directory / "usage.jsonl";
  std::mt19937_64 random(3);
  UsageLedger expected;
  auto ledger = reopen(nullptr, file);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 100; ++i) {
      RequestRecord record = random_record(random);
      if (i == 50) record.client = "od\"d\n\\name \xC3\xA9";
      ledger->add(record);
      expected.add(record);
    }
    ledger = reopen(std::move(ledger), file);
    ASSERT_EQ(ledger->all().size(), expected.all().size());
    for (const auto& [client, totals] : expected.all()) expect_equal(ledger->of(client), totals);
  }
  EXPECT_EQ(ledger->skipped_lines(), 0);
  struct stat info = {};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

// The last line cut at every byte: nothing else is lost, then or later.
TEST(UsageLedger, TornLastLine) {
  set_log_level(LogLevel::kError);  // a hundred warnings
  TempDirectory directory;
  const auto file = directory / "usage.jsonl";
  auto ledger = reopen(nullptr, file);
  ledger->add(sample_record());
  const size_t first = contents(file).size();
  ledger->add(sample_record());
  ledger.reset();
  const std::string whole = contents(file);
  for (size_t size = first; size <= whole.size(); ++size) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    ledger = reopen(nullptr, file);
    const bool is_complete = size + 1 >= whole.size();  // only its newline may lack
    EXPECT_EQ(ledger->of("alice").requests, is_complete ? 2 : 1) << size;
    EXPECT_EQ(ledger->skipped_lines(), is_complete || size == first ? 0 : 1) << size;
    ledger->add(sample_record());
    ledger = reopen(std::move(ledger), file);
    EXPECT_EQ(ledger->of("alice").requests, is_complete ? 3 : 2) << size;
    ledger.reset();
  }
  set_log_level(LogLevel::kWarning);
}

TEST(UsageLedger, LinesThatAreNoRecords) {
  const std::string good =
      R"({"client":"a","outcome":"stop","prompt_tokens":1,"cached_tokens":0,"output_tokens":2,)"
      R"("reasoning_tokens":0,"new":1})";
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string line = good;
    return line.replace(line.find(from), from.size(), to);
  };
  const std::vector<std::string> bad = {
      "{",
      "null",
      "[]",
      "{}",
      "\xff\xfe",
      std::string(1, '\0'),
      std::string(100'000, '['),
      std::string(300'000, 'x'),
      good + good,
      good + std::string(70'000, ' '),
      with(R"("a")", "7"),
      with(R"("prompt_tokens":1)", R"("prompt_tokens":-1)"),
      with(R"("prompt_tokens":1)", R"("prompt_tokens":1.5)"),
      with(R"("prompt_tokens":1)", R"("prompt_tokens":1e300)"),
      with(R"("prompt_tokens":1)", R"("prompt_tokens":18446744073709551615)"),
      with(R"("prompt_tokens":1,)", "")};
  TempDirectory directory;
  const auto file = directory / "usage.jsonl";
  std::ofstream stream(file, std::ios::binary);
  for (const std::string& line : bad) stream << line << "\n" << good << "\n\n";
  stream.close();
  testing::internal::CaptureStderr();
  auto ledger = reopen(nullptr, file);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("16 lines are no records"));
  EXPECT_EQ(ledger->skipped_lines(), static_cast<int64_t>(bad.size()));
  EXPECT_EQ(ledger->of("a").requests, static_cast<int64_t>(bad.size()));
  EXPECT_EQ(ledger->of("a").output_tokens, 2 * static_cast<int64_t>(bad.size()));
}

TEST(UsageLedger, OpenFails) {
  TempDirectory directory;
  EXPECT_FALSE(UsageLedger::open(directory.path()));
  EXPECT_FALSE(UsageLedger::open(directory / "no" / "such"));
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  const auto pipe = UsageLedger::open(directory / "pipe");
  ASSERT_FALSE(pipe);
  EXPECT_THAT(pipe.error().message, HasSubstr("not a regular file"));

  const auto first = UsageLedger::open(directory / "usage.jsonl");
  ASSERT_TRUE(first);
  const auto second = UsageLedger::open(directory / "usage.jsonl");
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("already open"));
}

// A limit on the file's size stands for a full disk: a write may be cut short, later ones fail.
TEST(UsageLedger, FullDisk) {
  TempDirectory directory;
  const auto file = directory / "usage.jsonl";
  auto ledger = reopen(nullptr, file);
  // The limit holds for all files of the process, so it must be far above what the log needs.
  constexpr int kBefore = 500;
  for (int i = 0; i < kBefore; ++i) ledger->add(sample_record());
  const size_t size = contents(file).size();

  rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = old;
  limit.rlim_cur = size + size / kBefore / 2;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 10; ++i) ledger->add(sample_record());
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);

  EXPECT_EQ(ledger->write_errors(), 10);
  EXPECT_EQ(ledger->of("alice").requests, kBefore + 10);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_THAT(log, HasSubstr("cannot be written"));

  ledger->add(sample_record());  // there is room again
  testing::internal::CaptureStderr();
  ledger = reopen(std::move(ledger), file);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the first is line 501"));
  EXPECT_EQ(ledger->of("alice").requests, kBefore + 1);
  EXPECT_EQ(ledger->skipped_lines(), 1);
}

TEST(UsageLedger, StrangersDoNotGrowTheFile) {
  TempDirectory directory;
  const auto file = directory / "usage.jsonl";
  auto ledger = reopen(nullptr, file);
  RequestRecord record = sample_record();
  ledger->add(record);
  const size_t size = contents(file).size();
  record.client = "unknown";
  record.outcome = "refused";
  record.reason = "auth";
  for (int i = 0; i < 100; ++i) ledger->add(record);
  EXPECT_EQ(contents(file).size(), size);
  EXPECT_EQ(ledger->of("unknown").requests, 100);
  EXPECT_EQ(reopen(std::move(ledger), file)->all().size(), 1u);
}

TEST(UsageLedger, ClientsAreBounded) {
  UsageLedger ledger;
  RequestRecord record = sample_record();
  const size_t count = UsageLedger::kMaxClients + 10;
  for (size_t i = 0; i < count; ++i) {
    record.client = fmt::format("c{}", i);
    ledger.add(record);
  }
  EXPECT_EQ(ledger.all().size(), UsageLedger::kMaxClients + 1);
  EXPECT_EQ(ledger.of("other").requests, 10);
}

TEST(UsageLedger, FromManyThreads) {
  TempDirectory directory;
  auto ledger = reopen(nullptr, directory / "usage.jsonl");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        ledger->add(sample_record());
        ledger->of("alice");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ledger = reopen(std::move(ledger), directory / "usage.jsonl");
  EXPECT_EQ(ledger->of("alice").requests, 2000);
  EXPECT_EQ(ledger->skipped_lines(), 0);
}

}  // namespace
}  // namespace tidemill
