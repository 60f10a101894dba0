#include "ops/cuda/launch.h"

namespace tidemill::cuda {

void index_select(Launch& l, const IndexSelectArgs& a) { plain::index_select(l, a); }

}  // namespace tidemill::cuda
