#include "ops/cuda/few_tokens.cuh"
#include "ops/cuda/many_tokens.cuh"
#include "ops/linear/cuda_product.cuh"

namespace tidemill::cuda {
namespace {

// With so many at most: clusters of blocks take longer to add up their segments. Where rows have
// one segment, many_tokens.cuh is as fast from nine tokens on.
constexpr int kMostFew = 32;

template <WeightFormat kFormat>
void run(Launch& l, const LinearArgs& a) {
  const int64_t most_few = segments_of(a.w->rows) > 1 ? kMostFew : kGroupTokens;
  const bool whole_tiles = a.groups == 1 || a.w->rows / a.groups % 256 == 0;
  if (a.x.count > most_few && whole_tiles) {
    linear_many<kFormat>(l, a);
  } else {
    linear_few<kFormat>(l, a);
  }
}

bool aligned(const Rows& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride * bytes_of(x.element) % 16 == 0;
}

}  // namespace

void linear(Launch& l, const LinearArgs& a) {
  if (l.plain || !has_fragments(*a.w) || a.w->rows / a.groups % kFewRows != 0 || !aligned(a.x) ||
      !aligned(a.y)) {
    plain::linear(l, a);
  } else if (a.x.count == 0) {
    return;
  } else if (a.w->format == WeightFormat::kBf16) {
    run<WeightFormat::kBf16>(l, a);
  } else if (a.w->format == WeightFormat::kFp8Block) {
    run<WeightFormat::kFp8Block>(l, a);
  } else {
    plain::linear(l, a);  // no released model's dense weights are FP4
  }
}

}  // namespace tidemill::cuda
