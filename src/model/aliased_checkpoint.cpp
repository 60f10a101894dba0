#include "model/aliased_checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/formats.h"
#include "base/huge_memory.h"
#include "model/bind_weights.h"

namespace tidemill {
namespace {

// Tensors whose bytes mean the same thing share a part of the memory.
enum Kind { kCodes, kScales, kBf16, kF32, kKinds };

Kind kind_of(TensorType type) {
  switch (type) {
    case TensorType::kF8E8M0:
      return kScales;
    case TensorType::kBf16:
      return kBf16;
    case TensorType::kF32:
      return kF32;
    default:
      return kCodes;
  }
}

constexpr size_t kAlignment = 64;
size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Part {
  size_t wanted = 0;   // by all tensors
  size_t largest = 0;  // of them
  size_t size = 0;
  size_t used = 0;
  std::shared_ptr<std::byte> memory;

  // The next tensor's place, from the beginning again where it would not fit; it does fit a part.
  std::span<std::byte> place(size_t bytes) {
    if (used + bytes > size) used = 0;
    std::byte* at = memory.get() + used;
    used += aligned(bytes);
    return {at, bytes};
  }
};

uint64_t next_random(uint64_t& state) {  // xorshift64
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

// Rows of FP8 codes from 2^-3 to 2 in magnitude and FP4 codes with a scale of 2^-7 have about unit
// products at the usual widths. One FP8 code in 8,192 is subnormal, as of normally distributed
// weights: kernels may be slower there.
void fill_codes(std::span<std::byte> part) {
  constexpr uint64_t kSignAndMantissa = 0x8787878787878787u;
  constexpr uint64_t kExponent = 0x2020202020202020u;  // and two random bits
  uint64_t state = 88172645463325252u;
  for (size_t i = 0; i + 8 <= part.size(); i += 8) {
    uint64_t codes = (next_random(state) & (kSignAndMantissa | kExponent >> 1 | kExponent >> 2));
    codes |= kExponent;
    if (next_random(state) % 1024 == 0) codes &= ~uint64_t{0x78};
    std::memcpy(part.data() + i, &codes, 8);
  }
}

// Values between -0.1 and 0.1: near enough to norms, gates and embeddings.
template <typename Value, typename Convert>
void fill_values(std::span<std::byte> part, const Convert& convert) {
  uint64_t state = 362436069u;
  for (size_t i = 0; i + sizeof(Value) <= part.size(); i += sizeof(Value)) {
    const auto unit = static_cast<float>(static_cast<int64_t>(next_random(state))) * 0x1p-63f;
    const Value value = convert(0.1f * unit);
    std::memcpy(part.data() + i, &value, sizeof value);
  }
}

void fill(Kind kind, std::span<std::byte> part) {
  switch (kind) {
    case kCodes:
      return fill_codes(part);
    case kScales:
      std::memset(part.data(), 127 - 7, part.size());
      return;
    case kBf16:
      return fill_values<uint16_t>(part, [](float x) { return bf16_from_float(x); });
    default:
      return fill_values<float>(part, [](float x) { return x; });
  }
}

}  // namespace

Result<Checkpoint> aliased_checkpoint(const Config& config, const Topology& topology, int64_t bytes,
                                      int64_t period) {
  const std::vector<ExpectedTensor> tensors = expected_tensors(config, topology);
  std::array<Part, kKinds> parts;
  for (const ExpectedTensor& t : tensors) {
    const size_t size = aligned(static_cast<size_t>(t.bytes()));
    Part& part = parts[kind_of(t.type)];
    part.wanted += size;
    part.largest = std::max(part.largest, size);
  }
  // The same share of each kind, but room for every tensor; codes, nearly everything, get the rest.
  size_t wanted = 0;
  for (const Part& part : parts) wanted += part.wanted;
  const double share = std::min(1.0, static_cast<double>(bytes) / static_cast<double>(wanted));
  size_t others = 0;
  for (size_t kind = kCodes + 1; kind < parts.size(); ++kind) {
    Part& part = parts[kind];
    const auto fair = static_cast<size_t>(share * static_cast<double>(part.wanted));
    part.size = std::max(aligned(fair), part.largest);
    others += part.size;
  }
  Part& codes = parts[kCodes];
  const size_t rest = static_cast<size_t>(bytes) - std::min(others, static_cast<size_t>(bytes));
  codes.size = std::min(aligned(rest), codes.wanted);
  if (codes.size < codes.largest) {
    return fail(ErrorCode::kInvalidArgument,
                "the largest tensor has {} bytes, and of {} for all weights {} are left for it; "
                "give more, or for Engram tables a smaller engram_vocab_size",
                codes.largest, bytes, codes.size);
  }

  size_t total = 0;
  const auto memory = std::make_shared<std::vector<std::shared_ptr<std::byte>>>();
  for (size_t kind = 0; kind < parts.size(); ++kind) {
    Part& part = parts[kind];
    if (part.size == 0) continue;
    const size_t distinct = period > 0 ? static_cast<size_t>(period) : part.size;
    part.memory =
        period > 0 ? map_repeated_memory(part.size, distinct) : map_huge_memory(part.size);
    if (part.memory == nullptr) {
      return fail(ErrorCode::kOutOfMemory, "no {} bytes for weights; give fewer", part.size);
    }
    fill(static_cast<Kind>(kind), {part.memory.get(), std::min(distinct, part.size)});
    total += part.size;
    memory->push_back(part.memory);
  }
  ByName<TensorView> views;
  for (const ExpectedTensor& t : tensors) {
    const auto size = static_cast<size_t>(t.bytes());
    views[t.name] = {t.type, t.shape, parts[kind_of(t.type)].place(size)};
  }
  return Checkpoint::in_memory(std::move(views), memory, static_cast<int64_t>(total));
}

}  // namespace tidemill
