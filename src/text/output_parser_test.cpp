#include "text/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "text/utf8.h"

namespace tidemill {
namespace {

using Kind = OutputDelta::Kind;

// What the deltas of one stream amount to, one line per part.
class Summary {
 public:
  void add(const std::vector<OutputDelta>& deltas) {
    for (const OutputDelta& delta : deltas) {
      EXPECT_TRUE(is_valid_utf8(delta.text)) << "a delta cuts a character: " << delta.text;
      switch (delta.kind) {
        case Kind::kReasoning:
          reasoning_ += delta.text;
          break;
        case Kind::kContent:
          content_ += delta.text;
          break;
        case Kind::kToolCallBegin:
          EXPECT_EQ(static_cast<size_t>(delta.index), calls_.size());
          calls_.push_back({delta.text, "", false});
          break;
        case Kind::kToolCallArguments:
          ASSERT_EQ(static_cast<size_t>(delta.index) + 1, calls_.size());
          EXPECT_FALSE(calls_.back().complete);
          calls_.back().arguments += delta.text;
          break;
        case Kind::kToolCallEnd:
          ASSERT_EQ(static_cast<size_t>(delta.index) + 1, calls_.size());
          calls_.back().complete = true;
          break;
      }
    }
  }

  std::string text() const {
    std::string out;
    if (!reasoning_.empty()) out += "reasoning " + python_json(reasoning_) + "\n";
    if (!content_.empty()) out += "content " + python_json(content_) + "\n";
    for (const Call& call : calls_) {
      out += (call.complete ? "call " : "open ") + python_json(call.name);
      if (!call.arguments.empty()) out += " " + call.arguments;
      out += "\n";
    }
    return out;
  }

 private:
  struct Call {
    std::string name, arguments;
    bool complete;
  };
  std::string reasoning_, content_;
  std::vector<Call> calls_;
};

std::string run(const OutputParserOptions& options, const std::vector<std::string_view>& pieces) {
  OutputParser parser(options);
  Summary summary;
  for (const std::string_view piece : pieces) summary.add(parser.push(piece));
  const bool done = parser.done();
  summary.add(parser.finish());
  EXPECT_TRUE(parser.finish().empty());
  std::string text = summary.text();
  if (parser.stopped_by_string()) {
    EXPECT_TRUE(done);
    text += "stopped\n";
  } else if (done) {
    text += "done\n";
  }
  return text;
}

// A case file holds cases that begin with a line "case NAME". Then
//   start reasoning|calls, tools, prefix, stop "..."   the options; the default is content alone
//   in "..."                                           the output of the model, lines joined
// and the expected result, in this order, empty parts left out:
//   reasoning "...", content "..."
//   call "NAME" ARGUMENTS, open "NAME" ARGUMENTS        complete or not; ARGUMENTS as they are
//   stopped, done                                       by a stop string; by the end of the calls
// "..." is a JSON string. Lines that begin with # are comments.
struct Case {
  std::string name;
  OutputParserOptions options;
  std::string input;
  std::string expected;
};

std::vector<Case> read_cases(const std::filesystem::path& path) {
  std::vector<Case> cases;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.find(' ');
    const std::string word = line.substr(0, space);
    const std::string rest = space == line.npos ? "" : line.substr(space + 1);
    if (word == "case") {
      cases.push_back({rest, {}, {}, {}});
      continue;
    }
    if (cases.empty()) {
      ADD_FAILURE() << path << ": no case before: " << line;
      break;
    }
    Case& now = cases.back();
    if (word == "start") {
      now.options.start = rest == "calls" ? Prompt::Start::kToolCalls : Prompt::Start::kReasoning;
    } else if (word == "tools") {
      now.options.tools_declared = true;
    } else if (word == "prefix") {
      now.options.continues_prefix = true;
    } else if (word == "stop" || word == "in") {
      const Result<Json> text = parse_json(rest);
      if (!text || !text->is_string()) {
        ADD_FAILURE() << path << ": not a JSON string: " << line;
      } else if (word == "stop") {
        now.options.stop.push_back(*text);
      } else {
        now.input += text->get_ref<const std::string&>();
      }
    } else {
      now.expected += line + "\n";
    }
  }
  return cases;
}

TEST(OutputParser, CaseFilesAtEverySplit) {
  size_t count = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(TIDEMILL_SOURCE_DIR "/tests/cases/output")) {
    for (const Case& test : read_cases(file.path())) {
      SCOPED_TRACE(file.path().filename().string() + ": " + test.name);
      const std::string_view input = test.input;
      ++count;
      EXPECT_EQ(run(test.options, {input}), test.expected);

      std::vector<std::string_view> bytes;
      for (size_t i = 0; i < input.size(); ++i) bytes.push_back(input.substr(i, 1));
      EXPECT_EQ(run(test.options, bytes), test.expected) << "byte by byte";

      for (size_t i = 1; i < input.size(); ++i) {
        ASSERT_EQ(run(test.options, {input.substr(0, i), input.substr(i)}), test.expected)
            << "split at byte " << i;
      }
    }
  }
  EXPECT_GE(count, 80u);
}

constexpr std::string_view kCall =
    "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"s\" "
    "string=\"true\">";

OutputParserOptions with_tools() {
  OutputParserOptions options;
  options.tools_declared = true;
  return options;
}

TEST(OutputParser, TextIsHandedOutAsSoonAsItIsCertain) {
  OutputParser parser(with_tools());
  const auto text = [&](std::string_view bytes) {
    std::string out;
    for (const OutputDelta& delta : parser.push(bytes)) out += delta.text;
    return out;
  };
  EXPECT_EQ(text("Hello"), "Hello");
  EXPECT_EQ(text(" <"), " ");
  EXPECT_EQ(text("b\n"), "<b");
  EXPECT_EQ(text("\n"), "");
  EXPECT_EQ(text("c"), "\n\nc");
  EXPECT_EQ(text("\xe4\xbd"), "");
  EXPECT_EQ(text("\xa0\xe5"), "\xe4\xbd\xa0");
}

TEST(OutputParser, ArgumentsAreStreamed) {
  OutputParser parser(with_tools());
  std::vector<OutputDelta> deltas = parser.push(kCall);
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[0].kind, Kind::kToolCallBegin);
  EXPECT_EQ(deltas[0].text, "f");
  EXPECT_EQ(deltas[1].text, "{\"s\": \"");

  std::string arguments = deltas[1].text;
  for (int i = 0; i < 1000; ++i) {
    deltas = parser.push("twenty bytes of text");
    ASSERT_EQ(deltas.size(), 1u);
    EXPECT_EQ(deltas[0].text, "twenty bytes of text");
    arguments += deltas[0].text;
  }
  EXPECT_TRUE(parser.tool_call_open());
  for (const OutputDelta& delta : parser.push("</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n")) {
    arguments += delta.text;
  }
  EXPECT_FALSE(parser.tool_call_open());
  EXPECT_EQ(parser.tool_calls(), 1);
  const Result<Json> json = parse_json(arguments);
  ASSERT_TRUE(json);
  EXPECT_EQ((*json)["s"].get<std::string>().size(), 20000u);
}

TEST(OutputParser, AnOpenCallIsNotReportedComplete) {
  OutputParser parser(with_tools());
  parser.push(kCall);
  const std::vector<OutputDelta> rest = parser.finish();
  EXPECT_TRUE(rest.empty());
  EXPECT_TRUE(parser.tool_call_open());
  EXPECT_EQ(parser.tool_calls(), 1);
}

TEST(OutputParser, InputAfterTheEndIsDiscarded) {
  OutputParserOptions options;
  options.stop = {"", "X"};  // an empty stop string never matches
  OutputParser parser(options);
  EXPECT_FALSE(parser.done());
  EXPECT_EQ(parser.push("aXb").size(), 1u);
  EXPECT_TRUE(parser.done());
  EXPECT_TRUE(parser.push("more").empty());
  EXPECT_TRUE(parser.finish().empty());
}

// Bytes that are no UTF-8 pass through; the stream still does not depend on the cuts.
TEST(OutputParser, InvalidBytes) {
  const std::string input = "a\xff\xe4\xbd<\xf0\x9f\x8c</think>\xe4";
  OutputParser parser({});
  std::string content;
  for (const char byte : input) {
    for (const OutputDelta& delta : parser.push({&byte, 1})) content += delta.text;
  }
  for (const OutputDelta& delta : parser.finish()) content += delta.text;
  EXPECT_EQ(content, "a\xff\xe4\xbd<\xf0\x9f\x8c\xe4");
}

TEST(OutputParser, LongHeldRunsCostLinearTime) {
  OutputParserOptions options = with_tools();
  options.stop = {std::string(1000, 'a') + "b"};
  OutputParser parser(options);
  const std::string newlines(1'000'000, '\n');
  const std::string letters(1'000'000, 'a');
  size_t size = 0;
  for (const std::string_view part :
       {std::string_view("x"), std::string_view(newlines), std::string_view(letters)}) {
    for (const OutputDelta& delta : parser.push(part)) size += delta.text.size();
  }
  for (const OutputDelta& delta : parser.finish()) size += delta.text.size();
  EXPECT_EQ(size, 2'000'001u);
}

}  // namespace
}  // namespace tidemill
