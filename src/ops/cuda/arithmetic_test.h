// Functions of arithmetic.cuh on the device, for many arguments at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tidemill::cuda {

enum class Function {
  kRoundBf16,
  kE8m0AtLeast,
  kE4m3FromFloat,
  kE2m1FromFloat,
  kExp,
  kSigmoid,
  kBf16ToFloat,  // of codes from here on
  kE8m0ToFloat,
  kE4m3ToFloat,
  kE2m1ToFloat,
};

// Bits of the result (or the code) for arguments that are bits of a float, or codes. Empty on an
// error of the device, which `error` then names.
std::vector<uint32_t> on_device(Function function, const std::vector<uint32_t>& arguments,
                                std::string& error);

// 32 values each: the scales and codes of a Q8 block, of a Q4 index block, and of two Q4 entry
// blocks.
struct Quantised {
  uint8_t q8_scale, q4_index_scale, q4_entry_scale[2];
  uint8_t q8[32], q4_index[32], q4_entry[32];
};
std::vector<Quantised> quantised_on_device(const std::vector<float>& values, std::string& error);

}  // namespace tidemill::cuda
