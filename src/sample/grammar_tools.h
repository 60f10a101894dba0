// Tool calls as grammars: the markup that src/text/output_parser.h reads back.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "sample/grammar_expr.h"
#include "text/conversation.h"

namespace tidemill {

struct ToolGrammarOptions {
  // Arguments follow the schema of their tool: the parameters in the order of "properties", each
  // once, strings raw. Otherwise any parameters with any values, as far as they can be read back.
  bool strict = false;
  bool parallel = true;  // more than one call
  int max_depth = 64;    // of a schema
};

// Rule 0 of `rules` is the whole text from the two line ends before the block of calls to the tag
// that closes it. `marker` is the token ｜DSML｜: its spelling in ordinary tokens is not accepted
// in its place, and in raw strings the text that would end them is not either.
//
// Errors: those of SchemaReader, with the tool's name before them; a tool or parameter whose name
// cannot be written in the markup.
Status tool_call_rules(GrammarRules& rules, const std::vector<Tool>& tools, int32_t marker,
                       const ToolGrammarOptions& options);

}  // namespace tidemill
