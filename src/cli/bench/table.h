// Columns of text under their headings.
#pragma once

#include <string>
#include <vector>

namespace tidemill::cli {

// The first `left` columns are aligned to the left, all others to the right. Columns are as wide as
// their widest cell; two spaces between them.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> headings, size_t left = 1);
  // As many cells as headings.
  void add(std::vector<std::string> row);
  std::string text() const;
  bool empty() const { return rows_.size() < 2; }

 private:
  size_t left_;
  std::vector<std::vector<std::string>> rows_;  // the headings first
};

}  // namespace tidemill::cli
