#include "ops/cuda/launch.h"

namespace tidemill::cuda {

void attend(Launch& l, const AttendArgs& a) { plain::attend(l, a); }

}  // namespace tidemill::cuda
