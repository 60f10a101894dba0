#include "recording.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/formats.h"

namespace tidemill {
namespace {

constexpr int64_t kTop = 8;
constexpr int64_t kGreedy = 32;
constexpr int64_t kReplayGreedy = 16;

// Positions of whole rows of logits: both sides of window, lists and pool, and some between.
std::vector<int32_t> positions(int64_t count) {
  std::set<int32_t> chosen{0, static_cast<int32_t>(count - 1)};
  for (const int32_t edge : {1, 64, 126, 127, 128, 129, 256, 257, 512, 1023}) {
    if (edge < count) chosen.insert(edge);
  }
  return {chosen.begin(), chosen.end()};
}

// Ids of the largest logits, the lower id first among equals.
std::vector<int32_t> largest(std::span<const float> row, int64_t count) {
  std::vector<int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](int32_t a, int32_t b) {
    const float x = row[static_cast<size_t>(a)];
    const float y = row[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  ids.resize(static_cast<size_t>(count));
  return ids;
}

float logsumexp(std::span<const float> row) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float x : row) sum += std::exp(x - top);
  return static_cast<float>(top + std::log(sum));
}

template <typename T>
void append(std::vector<T>& to, const auto& from) {
  to.insert(to.end(), from.begin(), from.end());
}

class Recorder {
 public:
  Recorder(Machine& machine, std::span<const int32_t> ids)
      : machine_(machine),
        config_(machine.forward().model().config()),
        ids_(ids),
        count_(static_cast<int64_t>(ids.size())),
        pos_(positions(count_)) {
    const std::set<int32_t> some{0, pos_[pos_.size() / 2], pos_.back()};
    hidden_pos_.assign(some.begin(), some.end());
  }

  NpzArrays take() {
    put("ids", {count_}, std::vector<int32_t>(ids_.begin(), ids_.end()));
    Sequence sequence = machine_.sequence();
    prompt(sequence);
    engram();
    continuation(sequence);
    machine_.pool().release(sequence);
    if (count_ > config_.sliding_window) replay();
    return std::move(arrays_);
  }

 private:
  template <typename T>
  void put(const std::string& name, std::vector<int64_t> shape, std::vector<T> values) {
    arrays_[name] = {std::move(shape), std::move(values)};
  }
  std::span<const float> row(const std::vector<float>& logits, int64_t number) const {
    const auto width = static_cast<size_t>(config_.vocab_size);
    return std::span(logits).subspan(static_cast<size_t>(number) * width, width);
  }

  void see(const Observation& o) {
    if (o.name == "hidden") {
      for (const int32_t p : hidden_pos_) {
        const float* values = o.values.f32(p);
        for (int64_t k = 0; k < config_.hc_mult * config_.hidden_size; ++k) {
          hidden_.push_back(bf16_from_float(values[k]));
        }
      }
    } else if (o.name == "expert_ids") {
      for (int64_t t = 0; t < count_; ++t) {
        std::vector<int32_t> set(o.ids + t * o.ids_width, o.ids + (t + 1) * o.ids_width);
        std::sort(set.begin(), set.end());
        append(experts_, set);
      }
    } else if (o.name == "selected") {
      std::vector<int32_t> rows;
      for (const int32_t p : pos_) {
        std::vector<int32_t> set(o.ids + p * o.ids_width, o.ids + (p + 1) * o.ids_width);
        std::erase(set, -1);
        std::sort(set.begin(), set.end());
        set.resize(static_cast<size_t>(o.ids_width), -1);
        append(rows, set);
      }
      put(fmt::format("L{}.sel", o.layer), {std::ssize(pos_), o.ids_width}, std::move(rows));
    }
  }

  void prompt(Sequence& sequence) {
    machine_.forward().observe([this](const Observation& o) { see(o); });
    const auto logits = machine_.run(sequence, ids_);
    machine_.forward().observe({});
    std::vector<float> whole, top_logits, sums;
    std::vector<int32_t> top_ids;
    for (const int32_t p : pos_) append(whole, row(logits, p));
    for (int64_t t = 0; t < count_; ++t) {
      for (const int32_t id : largest(row(logits, t), kTop)) {
        top_ids.push_back(id);
        top_logits.push_back(row(logits, t)[static_cast<size_t>(id)]);
      }
      sums.push_back(logsumexp(row(logits, t)));
    }
    const int64_t layers = config_.num_hidden_layers;
    put("pos", {std::ssize(pos_)}, pos_);
    put("logits", {std::ssize(pos_), config_.vocab_size}, std::move(whole));
    put("top8_ids", {count_, kTop}, std::move(top_ids));
    put("top8_logits", {count_, kTop}, std::move(top_logits));
    put("logsumexp", {count_}, std::move(sums));
    put("hidden_pos", {std::ssize(hidden_pos_)}, hidden_pos_);
    put("hidden", {layers, std::ssize(hidden_pos_), config_.hc_mult * config_.hidden_size},
        std::move(hidden_));
    put("expert_ids", {layers, count_, config_.num_experts_per_tok}, std::move(experts_));
    last_.assign(row(logits, count_ - 1).begin(), row(logits, count_ - 1).end());
  }

  void engram() {
    const auto& map = machine_.forward().model().engram();
    const auto tables = std::ssize(config_.engram_layer_ids);
    const int64_t columns = config_.engram_columns();
    std::vector<int32_t> all;
    std::vector<int64_t> rows(static_cast<size_t>(columns));
    for (int64_t table = 0; table < tables; ++table) {
      for (int64_t t = 0; t < count_; ++t) {
        std::vector<int32_t> newest_first;
        for (int64_t back = 0; back <= std::min(t, map.look_back()); ++back) {
          newest_first.push_back(ids_[static_cast<size_t>(t - back)]);
        }
        map.rows(table, newest_first, rows.data());
        for (const int64_t r : rows) all.push_back(static_cast<int32_t>(r));
      }
    }
    put("engram_rows", {tables, count_, columns}, std::move(all));
  }

  void continuation(Sequence& sequence) {
    std::vector<int32_t> greedy, drafts;
    std::vector<float> logits, gaps, confidence;
    std::vector<float> next = last_;
    for (int64_t step = 0; step < kGreedy; ++step) {
      const auto best = largest(next, 2);
      greedy.push_back(best[0]);
      logits.push_back(next[static_cast<size_t>(best[0])]);
      gaps.push_back(logits.back() - next[static_cast<size_t>(best[1])]);
      const auto draft = machine_.draft(sequence, best[0]);
      append(drafts, draft.ids);
      append(confidence, draft.confidence);
      next = machine_.run(sequence, {&best[0], 1}, Logits::kLast);
    }
    put("greedy", {kGreedy}, std::move(greedy));
    put("greedy_logits", {kGreedy}, std::move(logits));
    put("greedy_gap", {kGreedy}, std::move(gaps));
    put("drafts", {kGreedy, config_.dspark_block_size}, std::move(drafts));
    put("conf", {kGreedy, config_.dspark_block_size}, std::move(confidence));
  }

  void replay() {
    Sequence sequence = machine_.sequence();
    sequence.decoder_floor = count_ - config_.sliding_window;
    auto next = machine_.run(sequence, ids_, Logits::kLast);
    put("replay_logits", {config_.vocab_size}, next);
    std::vector<int32_t> greedy;
    for (int64_t step = 0; step < kReplayGreedy; ++step) {
      greedy.push_back(argmax(next));
      next = machine_.run(sequence, {&greedy.back(), 1}, Logits::kLast);
    }
    put("replay_greedy", {kReplayGreedy}, std::move(greedy));
    machine_.pool().release(sequence);
  }

  Machine& machine_;
  const Config& config_;
  std::span<const int32_t> ids_;
  int64_t count_;
  std::vector<int32_t> pos_;
  std::vector<int32_t> hidden_pos_;
  std::vector<uint16_t> hidden_;
  std::vector<int32_t> experts_;
  std::vector<float> last_;
  NpzArrays arrays_;
};

}  // namespace

NpzArrays record(Machine& machine, std::span<const int32_t> ids) {
  return Recorder(machine, ids).take();
}

}  // namespace tidemill
