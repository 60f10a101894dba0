#include "cli/load/sse_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "serve/sse_reader_for_tests.h"

namespace tidemill::cli {
namespace {

constexpr size_t kMany = 1 << 20;

class Events {
 public:
  explicit Events(size_t max_bytes = kMany) : reader_(max_bytes) {}

  Status read(std::string_view bytes) {
    return reader_.read(bytes, [this](const StreamEvent& event) {
      texts_.push_back(event.name + "|" + event.data);
      return true;
    });
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  SseReader reader_;
  std::vector<std::string> texts_;
};

const std::string_view kStream =
    "\xef\xbb\xbf"
    ": keep-alive\n\n"
    "data: {\"a\": 1}\n\n"
    "event: ping\r\ndata:two\r\ndata: lines\r\n\r\n"
    "id: 7\rretry: 10\rdata\r\r"
    ":\n:data: no\nevent: lost\n\n"
    "data: h\xc3\xa9\ndata:\ndata:  x\n\n\n\n"
    "data: [DONE]\n\n"
    "data: broken off\n";

std::vector<std::string> whole() {
  std::vector<std::string> texts;
  // The reference does not know the byte order mark.
  for (const StreamEvent& event : read_sse(kStream.substr(3))) {
    texts.push_back(event.name + "|" + event.data);
  }
  return texts;
}

TEST(SseReader, ReadsAsTheStandardSays) {
  Events events;
  ASSERT_TRUE(events.read(kStream));
  EXPECT_THAT(events.texts(), testing::ElementsAre("|{\"a\": 1}", "ping|two\nlines", "|",
                                                   "|h\xc3\xa9\n\n x", "|[DONE]"));
  EXPECT_EQ(events.texts(), whole());
}

TEST(SseReader, EveryCutInTwoGivesTheSame) {
  for (size_t cut = 0; cut <= kStream.size(); ++cut) {
    Events events;
    ASSERT_TRUE(events.read(kStream.substr(0, cut)));
    ASSERT_TRUE(events.read(kStream.substr(cut)));
    EXPECT_EQ(events.texts(), whole()) << cut;
  }
}

TEST(SseReader, PiecesOfEverySizeGiveTheSame) {
  for (size_t size = 1; size < 20; ++size) {
    Events events;
    for (size_t at = 0; at < kStream.size(); at += size) {
      ASSERT_TRUE(events.read(kStream.substr(at, size)));
      ASSERT_TRUE(events.read(""));
    }
    EXPECT_EQ(events.texts(), whole()) << size;
  }
}

TEST(SseReader, AnEventIsThereWithItsLastByte) {
  Events events;
  ASSERT_TRUE(events.read("data: x\n"));
  EXPECT_TRUE(events.texts().empty());
  ASSERT_TRUE(events.read("\n"));
  EXPECT_EQ(events.texts().size(), 1u);
  // A CR ends the line at once; the LF that may follow belongs to it.
  ASSERT_TRUE(events.read("data: y\r\r"));
  EXPECT_EQ(events.texts().size(), 2u);
  ASSERT_TRUE(events.read("\ndata: z\n\n"));
  EXPECT_EQ(events.texts().size(), 3u);
}

TEST(SseReader, StopsWhenToldTo) {
  SseReader reader(kMany);
  int seen = 0;
  ASSERT_TRUE(reader.read("data: 1\n\ndata: 2\n\ndata: 3\n\n",
                          [&](const StreamEvent&) { return ++seen < 2; }));
  EXPECT_EQ(seen, 2);
}

TEST(SseReader, BoundsAnEvent) {
  const std::string line = "data: " + std::string(94, 'x');  // 100 bytes
  Events one(100);
  EXPECT_TRUE(one.read(line + "\n\n" + line + "\n\n"));
  EXPECT_EQ(one.texts().size(), 2u);
  Events longer(99);
  EXPECT_FALSE(longer.read(line + "\n\n"));
  // Also when it comes in pieces, of several lines, or as a comment without an end.
  Events pieces(99);
  Status status;
  for (size_t i = 0; i < 100 && status; ++i) status = pieces.read("x");
  EXPECT_FALSE(status);
  Events lines(99);
  EXPECT_FALSE(lines.read("data: " + std::string(60, 'x') + "\ndata: " + std::string(60, 'x')));
  Events comments(99);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(comments.read(": keep-alive\n\n"));
}

}  // namespace
}  // namespace tidemill::cli
