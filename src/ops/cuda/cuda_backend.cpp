// The cuda backend: memory, transfers and the table of operations on one device and one stream,
// with others beside it for steps that come again.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "model/config.h"
#include "ops/backend.h"
#include "ops/cuda/cuda_graphs.h"
#include "ops/cuda/launch.h"

namespace tidemill {
namespace cuda {

namespace {

// Staged arrays lie in one piece of the device, so that their addresses do not change from step to
// step; the stream's order keeps a transfer behind those who still read the last one's. They are
// sent from pieces of pinned memory in turn: the host need not wait for the last transfer.
class StagingArea {
 public:
  ~StagingArea() { release(); }

  // A piece of so many bytes that no transfer reads any more.
  cudaError_t next(int64_t bytes, cudaStream_t stream) {
    constexpr int64_t kLeast = 1 << 20;  // growing costs all graphs
    if (bytes > bytes_) {
      const auto error = grow(std::max(2 * bytes, kLeast), stream);
      if (error != cudaSuccess) return error;
    }
    turn_ = (turn_ + 1) % hosts_.size();
    return cudaEventSynchronize(hosts_[turn_].sent);
  }
  std::byte* host() const { return static_cast<std::byte*>(hosts_[turn_].memory); }
  std::byte* device() const { return static_cast<std::byte*>(device_); }
  cudaError_t send(int64_t bytes, cudaStream_t stream) {
    const auto error = cudaMemcpyAsync(device_, hosts_[turn_].memory, static_cast<size_t>(bytes),
                                       cudaMemcpyHostToDevice, stream);
    return error != cudaSuccess ? error : cudaEventRecord(hosts_[turn_].sent, stream);
  }

 private:
  struct Host {
    void* memory = nullptr;
    cudaEvent_t sent = nullptr;
  };

  cudaError_t grow(int64_t bytes, cudaStream_t stream) {
    cudaStreamSynchronize(stream);
    release();
    cudaError_t error = cudaMalloc(&device_, static_cast<size_t>(bytes));
    for (Host& host : hosts_) {
      if (error == cudaSuccess) error = cudaMallocHost(&host.memory, static_cast<size_t>(bytes));
      if (error == cudaSuccess) {
        error = cudaEventCreateWithFlags(&host.sent, cudaEventDisableTiming);
      }
    }
    if (error == cudaSuccess) bytes_ = bytes;
    return error;
  }
  void release() {
    cudaFree(device_);
    device_ = nullptr;
    for (Host& host : hosts_) {
      cudaFreeHost(host.memory);
      if (host.sent != nullptr) cudaEventDestroy(host.sent);
      host = {};
    }
    bytes_ = 0;
  }

  void* device_ = nullptr;
  std::array<Host, 3> hosts_;
  size_t turn_ = 0;
  int64_t bytes_ = 0;
};

class CudaBackend : public Backend {
 public:
  CudaBackend(CudaKernels kernels, CudaGraphs graphs)
      : plain_(kernels == CudaKernels::kPlain), graphs_on_(graphs == CudaGraphs::kOn) {}
  ~CudaBackend() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Status open() {
    note(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    note(lanes_.open(stream_, plain_));
    note(graphs_.open());
    return health();
  }

  Element narrow_rows() const override { return Element::kBf16; }
  std::string_view name() const override { return plain_ ? "cuda plain" : "cuda"; }

  Result<Buffer> allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    void* memory = nullptr;
    if (const auto error = cudaMalloc(&memory, size); error != cudaSuccess) {
      cudaGetLastError();  // too little memory is no fault of the device
      return fail(ErrorCode::kOutOfMemory,
                  "the CUDA device has no {} bytes left ({}); lower the context or the number of "
                  "sequences",
                  bytes, cudaGetErrorName(error));
    }
    note(cudaMemsetAsync(memory, 0, size, stream_));
    return Buffer(static_cast<std::byte*>(memory), [](std::byte* p) { cudaFree(p); });
  }
  Result<Buffer> allocate_host(int64_t bytes) override {
    void* memory = nullptr;
    if (cudaMallocHost(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))) != cudaSuccess) {
      cudaGetLastError();
      return fail(ErrorCode::kOutOfMemory, "the host has no {} bytes to lock for transfers", bytes);
    }
    return Buffer(static_cast<std::byte*>(memory), [](std::byte* p) { cudaFreeHost(p); });
  }
  bool host_memory() const override { return false; }
  int64_t free_memory() const override {
    size_t free = 0;
    size_t total = 0;
    cudaMemGetInfo(&free, &total);
    return static_cast<int64_t>(free);
  }
  // Scratch of Launch, which grows a quarter beyond what is asked for; sums of segments (under 100
  // MB: linear/cuda.cu), staged arrays, scores of selections, graphs and what the driver takes for
  // itself are the rest.
  int64_t scratch_memory(const Config& c, int64_t tokens) const override {
    constexpr int64_t kRest = int64_t{2} << 30;
    const int64_t experts = std::max(c.num_experts_per_tok, c.dspark_num_experts_per_tok) + 1;
    const int64_t widths =
        c.num_attention_heads * c.head_dim + experts * (c.moe_intermediate_size + c.hidden_size);
    // Tiles of experts' assignments end with lines that nobody needs (moe/cuda_assign.cuh).
    const int64_t lines = 32 * std::max(c.n_routed_experts, c.dspark_n_routed_experts) + 144;
    const int64_t element = plain_ ? 4 : 2;
    return kRest + (tokens * widths * element +
                    lines * (c.moe_intermediate_size + c.hidden_size) * int64_t{2}) /
                       4 * 5;
  }

  // Addresses tell on which side they are.
  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes <= 0) return;
    note(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_));
    note(cudaStreamSynchronize(stream_));
  }

  Status stage(std::span<const StagedArray> arrays) override {
    const auto padded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
    int64_t total = padded(1);  // also where all are empty
    for (const StagedArray& array : arrays) total += padded(array.bytes);
    note(area_.next(total, stream_));
    CHECK_OK(health());
    int64_t at = 0;
    for (const StagedArray& array : arrays) {
      if (array.bytes > 0) {
        std::memcpy(area_.host() + at, array.data, static_cast<size_t>(array.bytes));
      }
      *array.device = area_.device() + at;
      at += padded(array.bytes);
    }
    note(area_.send(total, stream_));
    return health();
  }

  Status finish() override {
    note(cudaStreamSynchronize(stream_));
    return health();
  }

  int64_t repeated_rows(int64_t rows) const override {
    return graphs_on_ ? Graphs::rows_for(rows) : 0;
  }
  void repeat(std::span<const int64_t> key, const std::function<void()>& ops) override {
    if (!graphs_on_) return ops();
    lanes_.allow(true);
    note(graphs_.repeat(lanes_, key, ops));
    lanes_.allow(false);
  }
  // Only few rows, and only ops that come again.
  void beside(int lane, int64_t rows, const std::function<void()>& ops) override {
    if (rows > Lanes::kMostRows) return ops();
    lanes_.beside(lane, ops);
    note_launch();
  }
  void join(int lane) override {
    lanes_.join(lane);
    note_launch();
  }

  Status check(const Config& c) const override {
    const auto room = [](std::string_view name, int64_t value, int64_t most) -> Status {
      if (value <= most) return {};
      return fail(ErrorCode::kConfig,
                  "{} is {}; the cuda backend has room for {}: use --backend cpu", name, value,
                  most);
    };
    CHECK_OK(room("hc_mult", c.hc_mult, kMostStreams));
    CHECK_OK(room("n_routed_experts", c.n_routed_experts, kMostExperts));
    CHECK_OK(room("dspark_n_routed_experts", c.dspark_n_routed_experts, kMostExperts));
    CHECK_OK(room("head_dim", c.head_dim, kMostHeadDim));
    CHECK_OK(room("q_lora_rank", c.q_lora_rank, kMostHidden));
    CHECK_OK(room("index_head_dim", c.index_head_dim, kMostHidden));
    return room("hidden_size", c.hidden_size, kMostHidden);
  }

  void gather(const GatherArgs& a) override { run(cuda::gather, a); }
  void linear(const LinearArgs& a) override { run(cuda::linear, a); }
  void rms_norm(const RmsNormArgs& a) override { run(cuda::rms_norm, a); }
  void rope_table(const RopeTableArgs& a) override { run(cuda::rope_table, a); }
  void rope(const RopeArgs& a) override { run(cuda::rope, a); }
  void hc_mix(const HcMixArgs& a) override { run(cuda::hc_mix, a); }
  void collapse_norm(const CollapseNormArgs& a) override { run(cuda::collapse_norm, a); }
  void expand(const ExpandArgs& a) override { run(cuda::expand, a); }
  void stream_mean(const StreamMeanArgs& a) override { run(cuda::stream_mean, a); }
  void store_rows(const StoreRowsArgs& a) override { run(cuda::store_rows, a); }
  void scatter_rows(const ScatterRowsArgs& a) override { run(cuda::scatter_rows, a); }
  void round_rows(const RoundRowsArgs& a) override { run(cuda::round_rows, a); }
  void select_rows(const SelectRowsArgs& a) override { run(cuda::select_rows, a); }
  void repeat_row(const RepeatRowArgs& a) override { run(cuda::repeat_row, a); }
  void compress_pairs(const CompressPairsArgs& a) override { run(cuda::compress_pairs, a); }
  void index_select(const IndexSelectArgs& a) override { run(cuda::index_select, a); }
  void attend(const AttendArgs& a) override { run(cuda::attend, a); }
  void route(const RouteArgs& a) override { run(cuda::route, a); }
  void experts(const ExpertsArgs& a) override { run(cuda::experts, a); }
  void engram_gate(const EngramGateArgs& a) override { run(cuda::engram_gate, a); }
  void draw(const DrawArgs& a) override { run(cuda::draw, a); }

 private:
  template <typename Args>
  void run(void (*op)(Launch&, const Args&), const Args& args) {
    op(lanes_.current(), args);
    note_launch();
  }
  void note_launch() {
    const cudaError_t error = cudaGetLastError();
    graphs_.capturing() ? graphs_.spoil(error) : note(error);
  }
  // The first failure stays: what ran after it computed on junk.
  void note(cudaError_t error) {
    cudaError_t none = cudaSuccess;
    if (error != cudaSuccess) failure_.compare_exchange_strong(none, error);
  }
  Status health() const {
    const cudaError_t error = failure_.load();
    if (error == cudaSuccess) return {};
    return fail(ErrorCode::kDevice, "the CUDA device has failed: {} ({}); start the program again",
                cudaGetErrorString(error), cudaGetErrorName(error));
  }

  const bool plain_;
  const bool graphs_on_;
  cudaStream_t stream_ = nullptr;
  Lanes lanes_;  // beside stream_, unless graphs_ captures
  Graphs graphs_;
  StagingArea area_;
  std::atomic<cudaError_t> failure_ = cudaSuccess;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Backend>> make_cuda_backend(CudaKernels kernels, CudaGraphs graphs) {
  int count = 0;
  if (const auto error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    return fail(ErrorCode::kDevice, "there is no CUDA device ({}); use --backend cpu",
                cudaGetErrorName(error));
  }
  int major = 0;
  int minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  if (major != 9 || minor != 0) {
    return fail(ErrorCode::kDevice,
                "the CUDA device has compute capability {}.{}; this program has code for 9.0 "
                "(Hopper)",
                major, minor);
  }
  auto backend = std::make_unique<cuda::CudaBackend>(kernels, graphs);
  CHECK_OK(backend->open());
  return backend;
}

}  // namespace tidemill
