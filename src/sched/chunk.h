// How a prompt is cut.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tidemill {

// Tokens of the next chunk of a prompt of which `rest` tokens are left from `position` on, when
// `room` fit into the step; 0: wait for a step with more room.
// A chunk shorter than the rest has at least `shortest` tokens, leaves at least as many, and ends
// at a multiple of `align` unless that made it too short. So room for 2 * shortest tokens is always
// enough for a chunk.
inline int64_t chunk_size(int64_t position, int64_t rest, int64_t room, int64_t shortest,
                          int64_t align) {
  if (rest <= room) return rest;
  int64_t size = std::min(room, rest - shortest);
  const int64_t aligned = (position + size) / align * align - position;
  if (aligned >= shortest) size = aligned;
  return size >= shortest ? size : 0;
}

}  // namespace tidemill
