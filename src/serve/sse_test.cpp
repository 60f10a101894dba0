#include "serve/sse.h"

#include <gtest/gtest.h>

#include "serve/sse_reader_for_tests.h"

namespace tidemill {
namespace {

std::string bytes(const StreamEvent& event) {
  std::string out;
  append_sse(out, event);
  return out;
}

TEST(Sse, Frames) {
  EXPECT_EQ(bytes({.data = "{}"}), "data: {}\n\n");
  EXPECT_EQ(bytes({.name = "ping", .data = "{}"}), "event: ping\ndata: {}\n\n");
  EXPECT_EQ(bytes({.data = ""}), "data: \n\n");
  EXPECT_EQ(bytes({.data = "a\nb\r\nc\rd\n"}), "data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n");
}

TEST(Sse, NothingEndsAnEventOrAddsAField) {
  const std::string data = "\n\nevent: x\n\ndata: [DONE]\r\r: c";
  const auto events = read_sse(bytes({.name = "a\nb\r\x7f", .data = data}) + bytes({.data = "2"}));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].name, "ab");
  EXPECT_EQ(events[0].data, "\n\nevent: x\n\ndata: [DONE]\n\n: c");
  EXPECT_EQ(events[1].data, "2");
}

TEST(Sse, KeepAliveIsNoEvent) {
  const auto events = read_sse(std::string(kKeepAlive) + bytes({.data = "1"}));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].data, "1");
}

}  // namespace
}  // namespace tidemill
