#include "engine/identity.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/mapped_file.h"
#include "state/content_key.h"

namespace tidemill {

Result<std::string> checkpoint_digest(const Model& model, const std::filesystem::path& directory) {
  // Digests of the parts, then one of them all: nothing large is copied.
  std::vector<std::byte> parts;
  const auto add = [&](std::span<const std::byte> data) {
    const Digest digest = sha256(data);
    const auto bytes = std::as_bytes(std::span(digest));
    parts.insert(parts.end(), bytes.begin(), bytes.end());
  };
  for (const char* name : {"config.json", "tokenizer.json"}) {
    TRY(const MappedFile file, MappedFile::open(directory / name));
    add(file.bytes());
  }
  for (const auto& [name, tensor] : model.checkpoint().tensors()) {
    std::string head = fmt::format("{} {}", name, to_string(tensor.type));
    for (const int64_t extent : tensor.shape) head += fmt::format(" {}", extent);
    add(std::as_bytes(std::span(head)));
    const size_t sample = std::min(kDigestSample, tensor.data.size());
    add(tensor.data.first(sample));
    add(tensor.data.last(sample));
  }
  std::string hex;
  for (const uint8_t byte : sha256(parts)) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace tidemill
