// What a step of the device knows of its items: device_step.cpp, device_sample.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/device.h"

namespace tidemill {

// A job's item while its step runs.
struct Device::Row {
  JobItem* item = nullptr;
  DeviceRequest* request = nullptr;  // null: nothing to compute
  ItemOutcome* out = nullptr;
  std::vector<int32_t> input;
  int64_t drafts = 0;  // the last tokens of a decode item's input
  bool copies_windows = false;
  // Of a prompt, ascending, besides the last that it crosses: where windows are copied.
  std::vector<int64_t> boundaries;
  // Ends of the parts that the input runs in: cut at boundaries that its end would leave behind the
  // rings' reach.
  std::vector<int64_t> ends;
};

// What the step has computed for an item that samples.
struct Device::Computed {
  int64_t first = 0;  // its first row of logits
  int64_t count = 0;
  // Of the rows; empty: their logits have to be seen.
  std::span<const DrawRow> draws;
  std::span<const Drawn> drawn;
};

inline int64_t rows_of_logits(const StepItem& item) {
  if (item.logits == Logits::kNone) return 0;
  return item.logits == Logits::kLast ? 1 : static_cast<int64_t>(item.tokens.size());
}

}  // namespace tidemill
