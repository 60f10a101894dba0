#include "ops/cuda/launch.h"

namespace tidemill::cuda {

void linear(Launch& l, const LinearArgs& a) { plain::linear(l, a); }

}  // namespace tidemill::cuda
