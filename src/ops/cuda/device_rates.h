// What the device of the cuda backend is, and how fast it can be at best.
#pragma once

#include <string>

namespace tidemill {

// The device's name; empty where there is none, or in a program without CUDA.
std::string cuda_device_name();

struct DeviceRates {
  double read_bytes_per_second = 0;  // of its memory: measured, the best of some passes over 2 GiB
  double flops_per_second = 0;       // nominal: bf16 products of all tensor cores at full clock
};
// Zeros where there is no such device, or no memory to read.
DeviceRates cuda_device_rates();

}  // namespace tidemill
