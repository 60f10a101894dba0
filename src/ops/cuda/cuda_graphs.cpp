#include "ops/cuda/cuda_graphs.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace tidemill::cuda {
namespace {

constexpr size_t kMostWorks = 64;
constexpr int kMostFailures = 3;

int64_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  cudaMemGetInfo(&free, &total);
  return static_cast<int64_t>(free);
}

// Launches go to another stream for a while.
class Redirected {
 public:
  Redirected(cudaStream_t& stream, cudaStream_t other, bool& flag)
      : stream_(stream), own_(std::exchange(stream, other)), flag_(flag) {
    flag_ = true;
  }
  ~Redirected() {
    stream_ = own_;
    flag_ = false;
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  cudaStream_t& stream_;
  cudaStream_t own_;
  bool& flag_;
};

}  // namespace

Graphs::~Graphs() {
  for (Work& work : works_) {
    if (work.graph != nullptr) cudaGraphExecDestroy(work.graph);
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

cudaError_t Graphs::open() { return cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }

int64_t Graphs::rows_for(int64_t rows) {
  if (rows > 384) return 0;  // 64 sequences with five drafts each
  const int64_t step = rows <= 4     ? 1
                       : rows <= 16  ? 2
                       : rows <= 32  ? 4
                       : rows <= 64  ? 8
                       : rows <= 256 ? 16
                                     : 32;
  return (rows + step - 1) / step * step;
}

cudaError_t Graphs::repeat(Lanes& lanes, std::span<const int64_t> key,
                           const std::function<void()>& ops) {
  const cudaStream_t stream = lanes.main().stream;
  Work* work = find(key);
  const bool first = work == nullptr;
  if (first) work = &add(key, stream);
  work->last_used = ++calls_;
  if (work->graph != nullptr && work->moves != lanes.moves()) drop(*work, stream);
  if (work->graph == nullptr && (first || !capture(*work, lanes, ops))) {
    ops();
    return cudaSuccess;
  }
  return cudaGraphLaunch(work->graph, stream);
}

Graphs::Work* Graphs::find(std::span<const int64_t> key) {
  const auto found = std::ranges::find_if(
      works_, [&](const Work& work) { return std::ranges::equal(work.key, key); });
  return found != works_.end() ? &*found : nullptr;
}

Graphs::Work& Graphs::add(std::span<const int64_t> key, cudaStream_t stream) {
  if (works_.size() == kMostWorks) {
    const auto oldest = std::ranges::min_element(works_, {}, &Work::last_used);
    drop(*oldest, stream);
    works_.erase(oldest);
  }
  Work& work = works_.emplace_back();
  work.key.assign(key.begin(), key.end());
  return work;
}

bool Graphs::capture(Work& work, Lanes& lanes, const std::function<void()>& ops) {
  if (work.failures == kMostFailures) return false;
  const int64_t moves = lanes.moves();
  cudaStream_t& stream = lanes.main().stream;
  spoiled_ = cudaSuccess;
  // Other threads may go on allocating and copying.
  cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
  if (error == cudaSuccess) {
    {
      const Redirected redirected(stream, stream_, capturing_);
      ops();
    }
    cudaGraph_t graph = nullptr;
    error = cudaStreamEndCapture(stream_, &graph);
    if (error == cudaSuccess) error = spoiled_;
    if (error == cudaSuccess && lanes.moves() != moves) error = cudaErrorStreamCaptureInvalidated;
    if (error == cudaSuccess) error = instantiate(work, graph, stream);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
  cudaGetLastError();  // a capture that failed is no fault of the device
  if (error != cudaSuccess) {
    const bool again = ++work.failures < kMostFailures;
    log(again ? LogLevel::kDebug : LogLevel::kWarning,
        "cuda: a step cannot be captured as a graph ({}); its kernels are launched one by one{}",
        cudaGetErrorName(error), again ? " for now" : "");
    return false;
  }
  work.moves = moves;
  work.failures = 0;
  return true;
}

cudaError_t Graphs::instantiate(Work& work, cudaGraph_t graph, cudaStream_t stream) {
  size_t nodes = 0;
  cudaGraphGetNodes(graph, nullptr, &nodes);
  const int64_t before = free_bytes();
  cudaGraphExec_t made = nullptr;
  if (const auto error = cudaGraphInstantiate(&made, graph, 0); error != cudaSuccess) return error;
  if (const auto error = cudaGraphUpload(made, stream); error != cudaSuccess) {
    cudaGraphExecDestroy(made);
    return error;
  }
  work.graph = made;
  work.bytes = std::max<int64_t>(before - free_bytes(), 0);
  int64_t graphs = 0;
  int64_t bytes = 0;
  for (const Work& other : works_) {
    graphs += other.graph != nullptr;
    bytes += other.bytes;
  }
  log_debug("cuda: captured a step of {} kernels in {} bytes; {} graphs have {} bytes", nodes,
            work.bytes, graphs, bytes);
  return cudaSuccess;
}

// A graph that is still running is waited for: seldom.
void Graphs::drop(Work& work, cudaStream_t stream) {
  if (work.graph == nullptr) return;
  cudaStreamSynchronize(stream);
  cudaGraphExecDestroy(work.graph);
  work.graph = nullptr;
  work.bytes = 0;
}

}  // namespace tidemill::cuda
