#include "model/weight_pager.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "base/huge_memory.h"
#include "base/log.h"

namespace tidemill {
namespace {

// Calls after which a use counts half: with a call per layer, some hundred tokens.
constexpr double kHalfLife = 4096;
constexpr std::chrono::seconds kLongRead{60};

int64_t scale_bytes(const Matrix& m) {
  const int64_t rows = m.format == WeightFormat::kFp8Block ? (m.rows + 31) / 32 : m.rows;
  return rows * m.scale_columns();
}
int64_t code_bytes(const Matrix& m) { return m.rows * m.row_bytes(); }
int64_t bytes_of(const Matrix& m) { return code_bytes(m) + scale_bytes(m); }
int64_t bytes_of(const ExpertWeights& e) {
  return bytes_of(e.w1) + bytes_of(e.w3) + bytes_of(e.w2);
}

struct Piece {  // codes or scales of one matrix of an expert
  size_t file = 0;
  int64_t offset = 0;  // in the file
  int64_t bytes = 0;
  int64_t at = 0;  // in a slot
};

enum class Where : uint8_t { kFile, kReading, kMemory };

struct Expert {
  int64_t layer = 0;
  int32_t id = 0;
  Piece pieces[6];
  Where where = Where::kFile;
  bool predicted = false;
  int32_t slot = -1;
  // log2 of a sum of uses of which each doubles every kHalfLife calls: the same order at any time
  // as of uses that fade, and nothing has to be done to those that are not used.
  double heat = -1e300;
  int unread = 0;       // pieces; under the mutex
  bool failed = false;  // under the mutex
};

struct Job {
  Expert* expert = nullptr;  // a piece of it, or
  int piece = 0;
  std::vector<const std::byte*> pages = {};  // pages to be touched
};

}  // namespace

WeightResidency WeightResidency::of(const Model& model) {
  WeightResidency r;
  r.experts_per_layer = model.config().num_experts_per_tok;
  for (const LayerWeights& layer : model.weights().layers) {
    for (const ExpertWeights& e : layer.moe.experts) {
      r.experts += bytes_of(e);
      r.largest_expert = std::max(r.largest_expert, bytes_of(e));
    }
    if (layer.engram.table.data != nullptr) r.tables += bytes_of(layer.engram.table);
  }
  r.always = model.checkpoint().file_bytes() - r.experts - r.tables;
  return r;
}

class WeightPager::Impl {
 public:
  explicit Impl(const Model& model) : model_(model) {}

  Status open(int64_t memory_bytes, int readers) {
    const WeightResidency r = WeightResidency::of(model_);
    slot_bytes_ = r.slot_bytes();
    if (memory_bytes < r.least_bytes()) {
      return fail(ErrorCode::kInvalidArgument,
                  "{} bytes of memory for weights: {} are needed outside experts, and {} for those "
                  "that two tokens use in a layer; give at least {}",
                  memory_bytes, r.always, r.least_bytes() - r.always, r.least_bytes());
    }
    const int64_t slots = (memory_bytes - r.always) / slot_bytes_;
    CHECK_OK(open_files());
    const auto& layers = model_.weights().layers;
    experts_.resize(layers.size());
    views_.resize(layers.size());
    last_.resize(layers.size());
    int64_t count = 0;
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      views_[layer] = layers[layer].moe.experts;
      for (const ExpertWeights& weights : views_[layer]) {
        Expert& e = experts_[layer].emplace_back();
        e.layer = static_cast<int64_t>(layer);
        e.id = static_cast<int32_t>(experts_[layer].size() - 1);
        CHECK_OK(locate(weights, e));
        ++count;
      }
    }
    slots_.resize(static_cast<size_t>(std::min(slots, count)));
    memory_ = map_huge_memory(slots_.size() * static_cast<size_t>(slot_bytes_));
    if (memory_ == nullptr) {
      return fail(ErrorCode::kOutOfMemory, "no memory for {} experts of {} bytes", slots_.size(),
                  slot_bytes_);
    }
    for (int i = 0; i < readers; ++i) readers_.emplace_back([this] { read_in_background(); });
    return {};
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wanted_.notify_all();
    for (std::thread& reader : readers_) reader.join();
  }

  std::span<const ExpertWeights> acquire(int64_t layer, std::span<const int32_t> ids) {
    ++call_;
    std::vector<int32_t>& used = last_[static_cast<size_t>(layer)];
    used.assign(ids.begin(), ids.end());
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    // First what is there, so that nobody's slot goes to another expert of this call.
    for (const int32_t id : used) {
      Expert& e = at(layer, id);
      warm(e);
      if (e.where != Where::kFile) slots_[static_cast<size_t>(e.slot)].pinned = call_;
    }
    for (const int32_t id : used) {
      Expert& e = at(layer, id);
      const bool there = e.where == Where::kMemory || (e.where == Where::kReading && is_read(e));
      if (there) {
        ++counters_.hits;
        counters_.predicted += e.predicted;
      } else if (e.where == Where::kReading || begin_reading(e, INFINITY)) {
        ++counters_.misses;
      } else {
        ++counters_.mapped;
        read_ahead(e);
      }
      e.predicted = false;
    }
    for (const int32_t id : used) finish(at(layer, id));
    predict(layer + 1);
    return views_[static_cast<size_t>(layer)];
  }

  void prefetch_rows(const Matrix& table, std::span<const int64_t> rows) {
    Job job;
    for (const int64_t row : rows) {
      if (row < 0) continue;
      job.pages.push_back(static_cast<const std::byte*>(table.data) + row * table.row_bytes());
      job.pages.push_back(reinterpret_cast<const std::byte*>(table.scales) +
                          row * table.scale_columns());
    }
    push(std::move(job), false);
  }

  int64_t slots() const { return static_cast<int64_t>(slots_.size()); }
  const Counters& counters() const { return counters_; }

 private:
  struct Slot {
    Expert* owner = nullptr;
    uint64_t pinned = 0;  // the call that needs it
  };

  Status open_files() {
    for (const MappedFile& file : model_.checkpoint().files()) {
      files_.emplace_back(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC));
      if (!files_.back().valid()) {
        return fail(ErrorCode::kFileRead, "cannot open {}: {}", file.path().string(),
                    std::strerror(errno));
      }
    }
    return {};
  }

  // Where an expert's parts are in the files and in a slot.
  Status locate(const ExpertWeights& weights, Expert& e) const {
    const Matrix* matrices[] = {&weights.w1, &weights.w3, &weights.w2};
    int64_t at = 0;
    for (int i = 0; i < 6; ++i) {
      const Matrix& m = *matrices[i / 2];
      const void* data = i % 2 == 0 ? m.data : m.scales;
      Piece& piece = e.pieces[i];
      piece.bytes = i % 2 == 0 ? code_bytes(m) : scale_bytes(m);
      piece.at = at;
      at += piece.bytes;
      bool found = false;
      const auto& files = model_.checkpoint().files();
      for (size_t file = 0; file < files.size() && !found; ++file) {
        const auto bytes = files[file].bytes();
        const auto* byte = static_cast<const std::byte*>(data);
        found = byte >= bytes.data() && byte < bytes.data() + bytes.size();
        if (found) piece.file = file, piece.offset = byte - bytes.data();
      }
      if (!found) return fail(ErrorCode::kInternal, "weights of an expert are in no file");
    }
    return {};
  }

  Expert& at(int64_t layer, int32_t id) {
    return experts_[static_cast<size_t>(layer)][static_cast<size_t>(id)];
  }

  void warm(Expert& e) {
    const double now = static_cast<double>(call_) / kHalfLife;
    e.heat = now + std::log2(std::exp2(e.heat - now) + 1);
  }

  // Gives the expert the coldest slot that this call does not need and that is colder than
  // `below`, and has it read. False if there is none.
  bool begin_reading(Expert& e, double below) {
    Slot* best = nullptr;
    double coldest = below;
    for (Slot& slot : slots_) {
      if (slot.owner == nullptr) {
        best = &slot;
        break;
      }
      const bool busy =
          slot.pinned == call_ || (slot.owner->where == Where::kReading && !is_read(*slot.owner));
      if (busy || !(slot.owner->heat < coldest)) continue;
      best = &slot;
      coldest = slot.owner->heat;
    }
    if (best == nullptr) return false;
    if (best->owner != nullptr) give_up(*best->owner);
    *best = {&e, below == INFINITY ? call_ : 0};
    e.slot = static_cast<int32_t>(best - slots_.data());
    e.where = Where::kReading;
    {
      const std::lock_guard lock(mutex_);
      e.unread = 6;
      e.failed = false;
    }
    for (int piece = 0; piece < 6; ++piece) push({.expert = &e, .piece = piece}, below == INFINITY);
    return true;
  }

  // The expert is in its file again.
  void give_up(Expert& e) {
    e.where = Where::kFile;
    e.slot = -1;
    const auto layer = static_cast<size_t>(e.layer), id = static_cast<size_t>(e.id);
    views_[layer][id] = model_.weights().layers[layer].moe.experts[id];
  }

  void read_ahead(const Expert& e) const {
    for (const Piece& piece : e.pieces) {
      model_.checkpoint().files()[piece.file].advise(MappedFile::Access::kWillNeed,
                                                     static_cast<uint64_t>(piece.offset),
                                                     static_cast<uint64_t>(piece.bytes));
    }
  }

  bool is_read(Expert& e) {
    const std::lock_guard lock(mutex_);
    return e.unread == 0;
  }

  // Waits for the expert, reading along, and points its view to its slot.
  void finish(Expert& e) {
    if (e.where != Where::kReading) return;
    std::unique_lock lock(mutex_);
    while (e.unread > 0) {
      if (!jobs_.empty() && jobs_.front().expert != nullptr) {
        run_first(lock);
      } else if (!read_.wait_for(lock, kLongRead, [&] { return e.unread == 0; })) {
        log_warning("still reading an expert after {} s: is the disk that holds the weights well?",
                    kLongRead.count());
      }
    }
    const bool failed = e.failed;
    lock.unlock();
    if (failed) {
      slots_[static_cast<size_t>(e.slot)] = {};
      give_up(e);
      return;
    }
    e.where = Where::kMemory;
    std::byte* slot = memory_.get() + e.slot * slot_bytes_;
    ExpertWeights& view = views_[static_cast<size_t>(e.layer)][static_cast<size_t>(e.id)];
    Matrix* matrices[] = {&view.w1, &view.w3, &view.w2};
    for (int i = 0; i < 3; ++i) {
      matrices[i]->data = slot + e.pieces[2 * i].at;
      matrices[i]->scales = reinterpret_cast<const uint8_t*>(slot + e.pieces[2 * i + 1].at);
    }
  }

  void predict(int64_t layer) {
    if (layer >= static_cast<int64_t>(last_.size())) layer = 0;
    for (const int32_t id : last_[static_cast<size_t>(layer)]) {
      Expert& e = at(layer, id);
      if (e.where == Where::kFile && begin_reading(e, e.heat)) e.predicted = true;
    }
  }

  void push(Job job, bool first) {
    {
      const std::lock_guard lock(mutex_);
      first ? jobs_.push_front(std::move(job)) : jobs_.push_back(std::move(job));
    }
    wanted_.notify_one();
  }

  void run_first(std::unique_lock<std::mutex>& lock) {
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    bool good = true;
    if (job.expert != nullptr) {
      good = read_piece(job.expert->pieces[job.piece], job.expert->slot);
    }
    for (const std::byte* page : job.pages) {
      [[maybe_unused]] const volatile std::byte touched = *page;
    }
    lock.lock();
    if (job.expert == nullptr) return;
    job.expert->failed |= !good;
    if (--job.expert->unread == 0) read_.notify_all();
  }

  bool read_piece(const Piece& piece, int32_t slot) {
    std::byte* to = memory_.get() + slot * slot_bytes_ + piece.at;
    const int fd = files_[piece.file].get();
    for (int64_t done = 0; done < piece.bytes;) {
      const ssize_t n =
          ::pread(fd, to + done, static_cast<size_t>(piece.bytes - done), piece.offset + done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        log_warning("an expert could not be read ({}); its pages in the mapped file are used",
                    n < 0 ? std::strerror(errno) : "end of file");
        return false;
      }
      done += n;
    }
    // The copy is here: the kernel need not keep another.
    ::posix_fadvise(fd, piece.offset, piece.bytes, POSIX_FADV_DONTNEED);
    return true;
  }

  void read_in_background() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wanted_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      run_first(lock);
    }
  }

  const Model& model_;
  std::vector<FileDescriptor> files_;
  std::vector<std::vector<Expert>> experts_;       // [layer][expert]; addresses stay
  std::vector<std::vector<ExpertWeights>> views_;  // the same, where they are now
  std::vector<std::vector<int32_t>> last_;         // per layer, what its last call used
  std::shared_ptr<std::byte> memory_;              // slots
  int64_t slot_bytes_ = 0;
  std::vector<Slot> slots_;
  uint64_t call_ = 0;
  Counters counters_;

  std::mutex mutex_;
  std::condition_variable wanted_, read_;
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> readers_;
};

WeightPager::WeightPager(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WeightPager::~WeightPager() = default;

Result<std::unique_ptr<WeightPager>> WeightPager::create(const Model& model, int64_t memory_bytes,
                                                         int readers) {
  auto impl = std::make_unique<Impl>(model);
  CHECK_OK(impl->open(memory_bytes, readers));
  return std::unique_ptr<WeightPager>(new WeightPager(std::move(impl)));
}

std::span<const ExpertWeights> WeightPager::acquire(int64_t layer, std::span<const int32_t> ids) {
  return impl_->acquire(layer, ids);
}
void WeightPager::prefetch_rows(const Matrix& table, std::span<const int64_t> rows) {
  impl_->prefetch_rows(table, rows);
}
int64_t WeightPager::slots() const { return impl_->slots(); }
const WeightPager::Counters& WeightPager::counters() const { return impl_->counters(); }

}  // namespace tidemill
