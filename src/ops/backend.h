// A device kind: its memory and its table of operations.
//
// Sizes are checked once, when a Forward is built (check); ops trust their arguments (asserts in
// debug builds). On host backends an op has finished when the call returns; a device backend
// enqueues on its stream. One thread calls a backend at a time; copy() alone may be called beside.
//
// Pointers in the arguments of ops are memory of the backend: allocated by it, or staged. Only what
// describes weights (Matrix, vectors, spans of experts, not their data) is read when the op is
// called.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/thread_team.h"
#include "ops/attend/attend.h"
#include "ops/compress/compress.h"
#include "ops/draw/draw.h"
#include "ops/engram/engram.h"
#include "ops/gather/gather.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/index_select/index_select.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/rows/rows.h"

namespace tidemill {

// Which rounding points of the deployed model are kept. Only the reference backend can drop any:
// without them independent programs agree to 1e-5 and a structural error has nowhere to hide.
struct Rounding {
  bool bf16 = true;         // activations between operations, scores, probabilities
  bool activations = true;  // Q8 before FP8 and FP4 linears
  bool cache = true;        // window rows, entries, index queries and keys

  static Result<Rounding> parse(std::string_view name);  // released | no-bf16 | cache-only | none
};

// An array on the host, and where it is noted at which address ops find its values.
struct StagedArray {
  const void* data = nullptr;
  int64_t bytes = 0;
  const void** device = nullptr;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual Rounding rounding() const { return {}; }
  virtual ProductOrder product_order() const { return ProductOrder::kPairLanes; }
  // How rows are stored fastest that only linear, rope and attend read and write, and that the
  // model keeps in bf16: queries, what attention gives, and the groups of its output product. Where
  // it is kBf16, those ops take either form of x, y, q and out, and give the same values.
  virtual Element narrow_rows() const { return Element::kF32; }

  // Zeroed memory that ops of this backend can use, aligned to 64 bytes at least.
  using Buffer = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;
  virtual Result<Buffer> allocate(int64_t bytes) = 0;
  // Memory of the host, not zeroed, which copy() moves fastest.
  virtual Result<Buffer> allocate_host(int64_t bytes) {
    return Buffer(new std::byte[static_cast<size_t>(bytes)], std::default_delete<std::byte[]>());
  }
  // Whether the host may read and write memory of allocate(), and ops the host's.
  virtual bool host_memory() const = 0;
  // Bytes that may be allocated yet where nobody says how many: of a device all that are free, of
  // the host half of its memory.
  virtual int64_t free_memory() const = 0;
  // What ops of a device allocate for themselves, at most and roughly, in steps of so many tokens.
  virtual int64_t scratch_memory(const Config&, int64_t /*tokens*/) const { return 0; }
  // Between memory of the backend and of the host, any way; after the ops before it. Finished on
  // return; finish() tells whether it failed. Any thread.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  // Makes arrays of the host readable for the ops that follow, until stage() is called again. On a
  // device the addresses depend on the sizes alone, until a larger call than all before. Error
  // kDevice.
  virtual Status stage(std::span<const StagedArray> arrays) = 0;
  // Waits for the ops before it. Error kDevice: one of them failed, and so does whatever follows.
  virtual Status finish() = 0;

  // ---- Ops that come again. A device takes longer to be told of a decode step's 1,500 ops than to
  // run them, unless it has them recorded.
  // How many rows a step of `rows` is filled up to, so that few different ones are met; 0: it is
  // run as it is, outside of repeat().
  virtual int64_t repeated_rows(int64_t) const { return 0; }
  // What `ops` enqueues. It may be called or not: where the key is equal, so must be every argument
  // of every op in it (not the values behind the pointers), and their order.
  virtual void repeat(std::span<const int64_t> /*key*/, const std::function<void()>& ops) { ops(); }

  // ---- Ops that need not wait for each other: of few rows, most leave the larger part of a device
  // without work.
  static constexpr int kLanes = 3;
  // The ops enqueued in `ops`, which is called at once, have `rows` rows at most. They come after
  // all ops before it, and may run at any time until join(lane): nothing enqueued in between, here
  // or on other lanes, writes what they read or write, or reads what they write. Not inside one
  // another. A lane's ops keep their order.
  virtual void beside(int /*lane*/, int64_t /*rows*/, const std::function<void()>& ops) { ops(); }
  // What follows comes after the lane's ops. Every lane is joined before repeat() ends and before
  // stage() and finish().
  virtual void join(int /*lane*/) {}

  // Whether the ops have room for a model of these sizes. Error kConfig.
  virtual Status check(const Config& config) const = 0;

  virtual void gather(const GatherArgs&) = 0;
  virtual void linear(const LinearArgs&) = 0;
  virtual void rms_norm(const RmsNormArgs&) = 0;
  virtual void rope_table(const RopeTableArgs&) = 0;
  virtual void rope(const RopeArgs&) = 0;
  virtual void hc_mix(const HcMixArgs&) = 0;
  virtual void collapse_norm(const CollapseNormArgs&) = 0;
  virtual void expand(const ExpandArgs&) = 0;
  virtual void stream_mean(const StreamMeanArgs&) = 0;
  virtual void store_rows(const StoreRowsArgs&) = 0;
  virtual void scatter_rows(const ScatterRowsArgs&) = 0;
  virtual void round_rows(const RoundRowsArgs&) = 0;
  virtual void select_rows(const SelectRowsArgs&) = 0;
  virtual void repeat_row(const RepeatRowArgs&) = 0;
  virtual void compress_pairs(const CompressPairsArgs&) = 0;
  virtual void index_select(const IndexSelectArgs&) = 0;
  virtual void attend(const AttendArgs&) = 0;
  virtual void route(const RouteArgs&) = 0;
  virtual void experts(const ExpertsArgs&) = 0;
  virtual void engram_gate(const EngramGateArgs&) = 0;
  virtual void draw(const DrawArgs&) = 0;

  // Formats of the three kinds of cache row.
  RowFormat window_format(int64_t width) const {
    return {rounding().cache ? RowKind::kQ8 : RowKind::kF32, width};
  }
  RowFormat entry_format(int64_t width) const {
    return {rounding().cache ? RowKind::kQ4Entry : RowKind::kF32, width};
  }
  RowFormat index_format(int64_t width) const {
    return {rounding().cache ? RowKind::kQ4Index : RowKind::kF32, width};
  }
};

// Scalar and obvious; defines the numbers.
std::unique_ptr<Backend> make_reference_backend(ThreadTeam& team, Rounding rounding = {},
                                                ProductOrder order = ProductOrder::kPairLanes);

enum class CpuIsa { kBest, kAvx2, kAvx512, kAvx512Bf16, kAmx };
// Whether this machine can run the kernels; kBest: any of them. Asking for kAmx asks the system to
// let this process use tile registers, once.
bool cpu_supports(CpuIsa isa);
// Vector kernels; equal to the reference backend of their product order bit for bit (kAmx: tiles,
// all others: pair lanes). Error kInvalidArgument when the machine lacks the instruction set (AVX2
// + FMA + F16C at least).
Result<std::unique_ptr<Backend>> make_cpu_backend(ThreadTeam& team, CpuIsa isa = CpuIsa::kBest);

// The first NVIDIA GPU that CUDA_VISIBLE_DEVICES leaves, of compute capability 9.0 (Hopper).
// Errors: kDevice when there is none, or this program was built without CUDA (CMake option
// TIDEMILL_CUDA). kPlain: one obvious kernel an operation, equal to the reference backend bit for
// bit but for its calls of the host's functions; the others are tested against it.
enum class CudaKernels { kFast, kPlain };
// Whether ops that come again are launched as CUDA graphs, or one by one.
enum class CudaGraphs { kOn, kOff };
Result<std::unique_ptr<Backend>> make_cuda_backend(CudaKernels kernels = CudaKernels::kFast,
                                                   CudaGraphs graphs = CudaGraphs::kOn);

}  // namespace tidemill
