// TIDEMILL_BOTH_SIDES: a function that the kernels of an accelerator call too.
#pragma once

#ifdef __CUDACC__
#define TIDEMILL_BOTH_SIDES __host__ __device__
#else
#define TIDEMILL_BOTH_SIDES
#endif
