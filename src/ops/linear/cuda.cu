#include "ops/cuda/few_tokens.cuh"
#include "ops/cuda/many_tokens.cuh"
#include "ops/linear/cuda_product.cuh"

namespace tidemill::cuda {
namespace {

// Tokens of a tall matrix, which has one segment and always enough tiles: up to so many, several
// tokens' kernel is faster nevertheless.
constexpr int kMostSeveral = 128;

// Whether tiles of cuda_many.cu give work to half of the multiprocessors only.
bool few_tiles(const LinearArgs& a) {
  const int64_t tiles =
      int64_t{blocks_for(a.w->rows, kManyRows)} * blocks_for(a.x.count, kTileTokens);
  return 2 * tiles <= multiprocessors();
}

template <WeightFormat kFormat>
void run(Launch& l, const LinearArgs& a) {
  const auto whole = [&](int rows) { return a.groups == 1 || a.w->rows / a.groups % rows == 0; };
  // bf16 matrices of one segment arrive no faster with several tokens than with many.
  const bool several = segments_of(a.w->rows) > 1
                           ? few_tiles(a)
                           : kFormat != WeightFormat::kBf16 && a.x.count <= kMostSeveral;
  if (a.x.count <= kGroupTokens) {
    linear_few<kFormat>(l, a);
  } else if (several && whole(kSeveralRows)) {
    linear_several<kFormat>(l, a);
  } else if (whole(kManyRows)) {
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
