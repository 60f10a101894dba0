#include "ops/cuda/cuda_lanes.h"

#include <algorithm>
#include <vector>

namespace tidemill::cuda {
namespace {

// Those that take_event() has not been asked about since; mostly none.
thread_local std::vector<cudaStream_t> streams_with_events;

// What is launched on `stream` from now on comes after what `other` has been given so far.
void follow(cudaStream_t stream, cudaStream_t other, cudaEvent_t event) {
  cudaEventRecord(event, other);
  cudaStreamWaitEvent(stream, event);
  take_event(stream);
  streams_with_events.push_back(stream);
}

}  // namespace

bool take_event(cudaStream_t stream) { return std::erase(streams_with_events, stream) > 0; }

Lanes::~Lanes() {
  for (Lane& lane : lanes_) {
    if (lane.forked != nullptr) cudaEventDestroy(lane.forked);
    if (lane.done != nullptr) cudaEventDestroy(lane.done);
    if (lane.launch.stream != nullptr) cudaStreamDestroy(lane.launch.stream);
  }
}

cudaError_t Lanes::open(cudaStream_t stream, bool plain) {
  main_.stream = stream;
  main_.plain = plain;
  cudaError_t error = cudaSuccess;
  const auto keep = [&](cudaError_t e) { error = error == cudaSuccess ? e : error; };
  for (Lane& lane : lanes_) {
    lane.launch.plain = plain;
    keep(cudaStreamCreateWithFlags(&lane.launch.stream, cudaStreamNonBlocking));
    keep(cudaEventCreateWithFlags(&lane.forked, cudaEventDisableTiming));
    keep(cudaEventCreateWithFlags(&lane.done, cudaEventDisableTiming));
  }
  return error;
}

int64_t Lanes::moves() const {
  int64_t all = main_.moves;
  for (const Lane& lane : lanes_) all += lane.launch.moves;
  return all;
}

void Lanes::beside(int number, const std::function<void()>& ops) {
  if (!allowed_) return ops();
  Lane& lane = lanes_[static_cast<size_t>(number)];
  follow(lane.launch.stream, main_.stream, lane.forked);
  lane.running = true;
  current_ = &lane.launch;
  ops();
  current_ = &main_;
}

void Lanes::join(int number) {
  Lane& lane = lanes_[static_cast<size_t>(number)];
  if (!lane.running) return;
  follow(main_.stream, lane.launch.stream, lane.done);
  lane.running = false;
}

}  // namespace tidemill::cuda
