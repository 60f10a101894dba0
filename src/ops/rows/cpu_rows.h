// Pieces that kernels of every instruction set share, compiled without its flags.
#pragma once

#include <cstddef>

#include "ops/tensor.h"

namespace tidemill {

// The reference's unpack_row, for rows that kernels do not widen themselves.
void unpack_any(const RowFormat& format, const std::byte* row, float* out);

// Values of the 256 E4M3 codes.
extern const float* const kE4m3Values;
inline float e4m3_value(unsigned char code) { return kE4m3Values[code]; }

}  // namespace tidemill
