// The cuda backend: memory, transfers and the table of operations on one device and one stream.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "ops/backend.h"
#include "ops/cuda/launch.h"

namespace tidemill {
namespace cuda {

Scratch::~Scratch() { cudaFree(memory_); }

void* Scratch::take(int64_t bytes, cudaStream_t stream) {
  if (bytes <= bytes_) return memory_;
  cudaStreamSynchronize(stream);  // whoever still reads the old memory
  cudaFree(memory_);
  bytes_ = 0;
  const int64_t wanted = bytes + bytes / 4;
  if (cudaMalloc(&memory_, static_cast<size_t>(wanted)) != cudaSuccess) {
    memory_ = nullptr;
    return nullptr;
  }
  bytes_ = wanted;
  return memory_;
}

namespace {

Error device_error(cudaError_t error, std::string_view what) {
  return {ErrorCode::kDevice,
          fmt::format("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error))};
}

// Pinned memory of the host, from which staged arrays are sent in one transfer, and the device's.
class StagingArea {
 public:
  ~StagingArea() {
    cudaFreeHost(host_);
    cudaFree(device_);
  }
  cudaError_t reserve(int64_t bytes, cudaStream_t stream) {
    if (bytes <= bytes_) return cudaSuccess;
    cudaStreamSynchronize(stream);
    cudaFreeHost(host_);
    cudaFree(device_);
    host_ = device_ = nullptr;
    bytes_ = 0;
    const int64_t wanted = 2 * bytes;
    if (const auto e = cudaMallocHost(&host_, static_cast<size_t>(wanted)); e != cudaSuccess)
      return e;
    if (const auto e = cudaMalloc(&device_, static_cast<size_t>(wanted)); e != cudaSuccess)
      return e;
    bytes_ = wanted;
    return cudaSuccess;
  }
  std::byte* host() const { return static_cast<std::byte*>(host_); }
  std::byte* device() const { return static_cast<std::byte*>(device_); }

 private:
  void* host_ = nullptr;
  void* device_ = nullptr;
  int64_t bytes_ = 0;
};

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(int device) : device_(device) {}
  ~CudaBackend() override {
    for (const auto& [host, table] : launch_.experts) cudaFree(table);
    if (launch_.stream != nullptr) cudaStreamDestroy(launch_.stream);
  }

  Status open() {
    cudaError_t error = cudaSetDevice(device_);
    if (error == cudaSuccess) {
      error = cudaStreamCreateWithFlags(&launch_.stream, cudaStreamNonBlocking);
    }
    if (error != cudaSuccess) return tl::unexpected(device_error(error, "the CUDA device"));
    return {};
  }

  std::string_view name() const override { return "cuda"; }

  Result<Buffer> allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    void* memory = nullptr;
    if (const auto error = cudaMalloc(&memory, size); error != cudaSuccess) {
      cudaGetLastError();  // not sticky: the next call is not to see it
      return fail(ErrorCode::kOutOfMemory,
                  "the CUDA device has no {} bytes left ({}); lower the context or the number of "
                  "sequences",
                  bytes, cudaGetErrorName(error));
    }
    cudaMemsetAsync(memory, 0, size, launch_.stream);
    return Buffer(static_cast<std::byte*>(memory), [](std::byte* p) { cudaFree(p); });
  }
  bool host_memory() const override { return false; }

  // Addresses tell on which side they are.
  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes <= 0) return;
    cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, launch_.stream);
    cudaStreamSynchronize(launch_.stream);
  }

  void stage(std::span<const StagedArray> arrays) override {
    constexpr int64_t kAlignment = 64;
    int64_t total = 0;
    for (const StagedArray& array : arrays)
      total += (array.bytes + kAlignment - 1) / kAlignment * kAlignment;
    StagingArea& area = areas_[next_area_];
    next_area_ = (next_area_ + 1) % areas_.size();
    // The transfer before the last one has left this area's host memory.
    cudaStreamSynchronize(launch_.stream);
    if (area.reserve(total, launch_.stream) != cudaSuccess) return;
    int64_t at = 0;
    for (const StagedArray& array : arrays) {
      if (array.bytes > 0)
        std::memcpy(area.host() + at, array.data, static_cast<size_t>(array.bytes));
      *array.device = area.device() + at;
      at += (array.bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    cudaMemcpyAsync(area.device(), area.host(), static_cast<size_t>(total), cudaMemcpyHostToDevice,
                    launch_.stream);
  }

  Status finish() override {
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaStreamSynchronize(launch_.stream);
    if (error != cudaSuccess)
      return tl::unexpected(device_error(error, "an operation on the CUDA device failed"));
    return {};
  }

  void gather(const GatherArgs& a) override { cuda::gather(launch_, a); }
  void linear(const LinearArgs& a) override { cuda::linear(launch_, a); }
  void rms_norm(const RmsNormArgs& a) override { cuda::rms_norm(launch_, a); }
  void rope_table(const RopeTableArgs& a) override { cuda::rope_table(launch_, a); }
  void rope(const RopeArgs& a) override { cuda::rope(launch_, a); }
  void hc_mix(const HcMixArgs& a) override { cuda::hc_mix(launch_, a); }
  void collapse_norm(const CollapseNormArgs& a) override { cuda::collapse_norm(launch_, a); }
  void expand(const ExpandArgs& a) override { cuda::expand(launch_, a); }
  void stream_mean(const StreamMeanArgs& a) override { cuda::stream_mean(launch_, a); }
  void store_rows(const StoreRowsArgs& a) override { cuda::store_rows(launch_, a); }
  void scatter_rows(const ScatterRowsArgs& a) override { cuda::scatter_rows(launch_, a); }
  void round_rows(const RoundRowsArgs& a) override { cuda::round_rows(launch_, a); }
  void select_rows(const SelectRowsArgs& a) override { cuda::select_rows(launch_, a); }
  void repeat_row(const RepeatRowArgs& a) override { cuda::repeat_row(launch_, a); }
  void compress_pairs(const CompressPairsArgs& a) override { cuda::compress_pairs(launch_, a); }
  void index_select(const IndexSelectArgs& a) override { cuda::index_select(launch_, a); }
  void attend(const AttendArgs& a) override { cuda::attend(launch_, a); }
  void route(const RouteArgs& a) override { cuda::route(launch_, a); }
  void experts(const ExpertsArgs& a) override {
    keep_table(a.experts);
    cuda::experts(launch_, a);
  }
  void engram_gate(const EngramGateArgs& a) override { cuda::engram_gate(launch_, a); }

 private:
  // The views of a layer's experts stay where they are as long as the model: sent once.
  void keep_table(std::span<const ExpertWeights> experts) {
    if (launch_.experts.contains(experts.data())) return;
    void* table = nullptr;
    if (cudaMalloc(&table, experts.size_bytes()) != cudaSuccess) return;
    copy(table, experts.data(), static_cast<int64_t>(experts.size_bytes()));
    launch_.experts[experts.data()] = static_cast<ExpertWeights*>(table);
  }

  int device_;
  cuda::Launch launch_;
  std::array<StagingArea, 3> areas_;
  size_t next_area_ = 0;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Backend>> make_cuda_backend(int device) {
  int count = 0;
  if (const auto error = cudaGetDeviceCount(&count); error != cudaSuccess || count <= device) {
    return fail(ErrorCode::kDevice, "there is no CUDA device {}: {} found ({}); use --backend cpu",
                device, count, cudaGetErrorName(error));
  }
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (major != 9) {
    return fail(
        ErrorCode::kDevice,
        "CUDA device {} has compute capability {}.x; this program has code for 9.0 (Hopper)",
        device, major);
  }
  auto backend = std::make_unique<cuda::CudaBackend>(device);
  CHECK_OK(backend->open());
  return backend;
}

}  // namespace tidemill
