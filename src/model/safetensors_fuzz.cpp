// libFuzzer: any bytes as a safetensors file. What is accepted must be inside the file.
#include <cstdlib>

#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto header = tidemill::SafetensorsHeader::parse(file);
  if (!header) return 0;
  const auto bytes = static_cast<int64_t>(size) - header->data_offset;
  for (const auto& [name, entry] : header->tensors) {
    if (entry.begin < 0 || entry.begin > entry.end || entry.end > bytes) std::abort();
  }
  return 0;
}
