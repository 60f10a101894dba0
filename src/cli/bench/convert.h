// From a decode benchmark with one acceptance of drafts to what it would have shown with another.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tidemill::cli {

// tau = 1 + N a: tokens that a request gets from a step that verifies `length` drafts of which the
// share `acceptance` stands.
inline double tokens_per_step(int64_t length, double acceptance) {
  return 1 + static_cast<double>(length) * acceptance;
}

struct ConvertedCell {
  int64_t line = 0;
  int64_t length = 0;  // N
  int64_t concurrency = 0, context = 0;
  double recorded_acceptance = 0, recorded_tau = 0, recorded_rate = 0;  // rate: tokens/s
  double tau = 0, rate = 0;
};

// Reads the decode cells of a records file (bench --records) and converts each to `acceptance`,
// 0 to 1. Only a fixed length allows it: its steps hold the same rows and take the same time
// whatever is accepted, so that tokens/s are in proportion to tau. A dynamic policy would have
// chosen other lengths. `drafts` not empty: only cells of that policy are looked at.
// Errors: kInvalidArgument for a dynamic cell and when no cell is left, kRequest for lines that are
// not records, each with the line; those of read_input.
Result<std::vector<ConvertedCell>> convert_records(const std::filesystem::path& path,
                                                   double acceptance, std::string_view drafts);

}  // namespace tidemill::cli
