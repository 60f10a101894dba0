#include <cuda_runtime.h>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/arithmetic_test.h"

namespace tidemill::cuda {
namespace {

__device__ uint32_t result_of(Function function, uint32_t argument) {
  const float x = __uint_as_float(argument);
  switch (function) {
    case Function::kRoundBf16:
      return __float_as_uint(round_bf16(x));
    case Function::kE8m0AtLeast:
      return e8m0_at_least(x);
    case Function::kE4m3FromFloat:
      return e4m3_from_float(x);
    case Function::kE2m1FromFloat:
      return e2m1_from_float(x);
    case Function::kExp:
      return __float_as_uint(canonical_exp(x));
    case Function::kSigmoid:
      return __float_as_uint(canonical_sigmoid(x));
    case Function::kBf16ToFloat:
      return __float_as_uint(bf16_to_float(argument));
    case Function::kE8m0ToFloat:
      return __float_as_uint(e8m0_to_float(argument));
    case Function::kE4m3ToFloat:
      return __float_as_uint(e4m3_to_float(argument));
    case Function::kE2m1ToFloat:
      return __float_as_uint(e2m1_to_float(argument));
  }
  return 0;
}

__global__ void function_kernel(Function function, uint32_t* values, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) values[i] = result_of(function, values[i]);
}

__global__ void quantise_kernel(const float* values, Quantised* out, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float* x = values + i * kScaleBlock;
  Quantised& q = out[i];
  q.q8_scale = q8_scale(x);
  q.q4_index_scale = q4_index_scale(x);
  for (int b = 0; b < 2; ++b) q.q4_entry_scale[b] = q4_entry_scale(x + b * kEntryBlock);
  for (int k = 0; k < kScaleBlock; ++k) {
    q.q8[k] = q8_code(x[k], e8m0_to_float(q.q8_scale));
    q.q4_index[k] = q4_code(x[k], e8m0_to_float(q.q4_index_scale));
    q.q4_entry[k] = q4_code(x[k], e4m3_to_float(q.q4_entry_scale[k / kEntryBlock]));
  }
}

// Copies `in` to the device, calls launch(device memory of in, of out) and returns out.
template <typename Out, typename In, typename Launch>
std::vector<Out> run(const std::vector<In>& in, size_t n, const Launch& launch,
                     std::string& error) {
  void* from = nullptr;
  void* to = nullptr;
  std::vector<Out> out(n);
  cudaError_t status = cudaMalloc(&from, in.size() * sizeof(In));
  if (status == cudaSuccess) status = cudaMalloc(&to, n * sizeof(Out));
  if (status == cudaSuccess) {
    status = cudaMemcpy(from, in.data(), in.size() * sizeof(In), cudaMemcpyHostToDevice);
  }
  if (status == cudaSuccess) {
    launch(static_cast<In*>(from), static_cast<Out*>(to));
    status = cudaGetLastError();
  }
  if (status == cudaSuccess) {
    status = cudaMemcpy(out.data(), to, n * sizeof(Out), cudaMemcpyDeviceToHost);
  }
  cudaFree(from);
  cudaFree(to);
  if (status == cudaSuccess) return out;
  error = cudaGetErrorString(status);
  return {};
}

unsigned blocks_of(size_t n) { return static_cast<unsigned>((n + 255) / 256); }

}  // namespace

std::vector<uint32_t> on_device(Function function, const std::vector<uint32_t>& arguments,
                                std::string& error) {
  const size_t n = arguments.size();
  return run<uint32_t>(
      arguments, n,
      [&](uint32_t* in, uint32_t* out) {
        cudaMemcpyAsync(out, in, n * sizeof(uint32_t), cudaMemcpyDeviceToDevice);
        function_kernel<<<blocks_of(n), 256>>>(function, out, static_cast<int64_t>(n));
      },
      error);
}

std::vector<Quantised> quantised_on_device(const std::vector<float>& values, std::string& error) {
  const size_t n = values.size() / kScaleBlock;
  return run<Quantised>(
      values, n,
      [&](float* in, Quantised* out) {
        quantise_kernel<<<blocks_of(n), 256>>>(in, out, static_cast<int64_t>(n));
      },
      error);
}

}  // namespace tidemill::cuda
