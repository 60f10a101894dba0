#include "ops/cuda/launch.h"

namespace tidemill::cuda {

void experts(Launch& l, const ExpertsArgs& a) { plain::experts(l, a); }

}  // namespace tidemill::cuda
