#include <array>

#include "base/formats.h"
#include "ops/reference.h"
#include "ops/rows/cpu_rows.h"

namespace tidemill {
namespace {

constexpr std::array<float, 256> e4m3_values() {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) {
    values[code] = e4m3_to_float(static_cast<uint8_t>(code));
  }
  return values;
}

const std::array<float, 256> kValues = e4m3_values();

}  // namespace

const float* const kE4m3Values = kValues.data();

void unpack_any(const RowFormat& format, const std::byte* row, float* out) {
  reference::unpack_row(format, row, out);
}

}  // namespace tidemill
