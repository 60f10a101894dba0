#include "model/read_weights.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace tidemill {

namespace {

using Named = ByName<TensorView>::value_type;

// Data in the order of the files, so that a disk reads forwards.
std::vector<const Named*> in_file_order(const Checkpoint& checkpoint,
                                        const std::function<bool(std::string_view)>& wanted) {
  std::vector<const Named*> tensors;
  for (const Named& tensor : checkpoint.tensors()) {
    if (tensor.second.type == TensorType::kF8E8M0 || wanted(tensor.first)) {
      tensors.push_back(&tensor);
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const Named* a, const Named* b) {
    return a->second.data.data() < b->second.data.data();
  });
  return tensors;
}

// memchr runs at the memory's speed: the released model's 23 GB of scales take seconds, far less
// than reading them from a disk does.
Status check_scales(const Named& tensor, std::span<const std::byte> part) {
  const void* found = std::memchr(part.data(), 0xFF, part.size());
  if (found == nullptr) return {};
  const auto offset = static_cast<const std::byte*>(found) - tensor.second.data.data();
  return fail(ErrorCode::kTensorValue, "tensor {}: scale byte {} of {} is 255 (NaN)", tensor.first,
              offset, tensor.second.data.size());
}

// One byte of a page brings the page in.
void touch(std::span<const std::byte> part) {
  constexpr size_t kPage = 4096;
  for (size_t i = 0; i < part.size(); i += kPage) {
    [[maybe_unused]] const volatile std::byte read = part[i];
  }
}

}  // namespace

Status read_weights(const Checkpoint& checkpoint,
                    const std::function<bool(std::string_view)>& wanted,
                    const std::function<void(double)>& progress) {
  constexpr size_t kPart = size_t{64} << 20;
  const auto tensors = in_file_order(checkpoint, wanted);
  size_t total = 0, done = 0;
  for (const Named* tensor : tensors) total += tensor->second.data.size();

  double reported = 0;
  if (progress) progress(0);
  if (tensors.size() == checkpoint.tensors().size()) {
    for (const MappedFile& file : checkpoint.files()) file.advise(MappedFile::Access::kWillNeed);
  }
  for (const Named* tensor : tensors) {
    const auto data = tensor->second.data;
    for (size_t begin = 0; begin < data.size(); begin += kPart) {
      const auto part = data.subspan(begin, std::min(kPart, data.size() - begin));
      if (tensor->second.type == TensorType::kF8E8M0) {
        CHECK_OK(check_scales(*tensor, part));
      } else {
        touch(part);
      }
      done += part.size();
      const double fraction = static_cast<double>(done) / static_cast<double>(total);
      if (progress && fraction >= reported + 0.01) progress(reported = fraction);
    }
  }
  if (progress) progress(1);
  return {};
}

}  // namespace tidemill
