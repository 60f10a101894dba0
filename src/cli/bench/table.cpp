#include "cli/bench/table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <utility>

namespace tidemill::cli {

TextTable::TextTable(std::vector<std::string> headings, size_t left) : left_(left) {
  rows_.push_back(std::move(headings));
}

void TextTable::add(std::vector<std::string> row) {
  assert(row.size() == rows_.front().size());
  rows_.push_back(std::move(row));
}

std::string TextTable::text() const {
  std::vector<size_t> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += i < left_ ? fmt::format("{:<{}}", row[i], widths[i])
                        : fmt::format("{:>{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace tidemill::cli
