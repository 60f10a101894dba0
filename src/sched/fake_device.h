// A device and a state pool that only count, for tests and benchmarks of the scheduler. They carry
// out plans and complain when a plan breaks the scheduler's contract:
//  * no step takes more blocks or slots than are free; what a step in flight reads is not reused
//  * every request's state grows without gap or overlap, through preemptions too, and a token is
//    drawn only from a state that holds exactly the prompt and all earlier outputs
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sched/scheduler.h"

namespace tidemill {

class FakeDevice {
 public:
  struct Stream {
    int64_t prompt = 0;
    int64_t max_tokens = 0;
    int64_t outputs = 0;
    int64_t computed = 0;  // prompt tokens and outputs, recomputation included
  };
  // How many tokens an item keeps (1 .. 1 + drafts), and whether it ends.
  using Outcome = std::function<ItemResult(const PlanItem&)>;

  FakeDevice(int64_t blocks, int64_t slots, int64_t block_tokens, int64_t host_blocks = 0)
      : block_tokens_(block_tokens), free_blocks_(blocks), free_slots_(slots), host_(host_blocks) {}

  void arrive(const Arrival& a) { streams_[a.id] = {a.prompt_tokens, a.max_tokens, 0, 0}; }
  // Prefix tokens that a request finds in the cache when it starts, and how many of their blocks
  // others hold; the rest is taken from the free ones.
  void set_hit(RequestId id, int64_t tokens, int64_t shared_blocks = 0) {
    hits_[id] = {.tokens = tokens,
                 .blocks = blocks_for(tokens),
                 .shared_blocks = std::min(shared_blocks, blocks_for(tokens))};
  }
  Capacity capacity() const {
    Capacity c{free_blocks_, free_slots_, 0, 0, host_, {}};
    for (const Release& r : releases_) {
      c.returning_blocks += r.blocks;
      c.returning_slots += r.slots;
    }
    c.prefix_hit = [this](RequestId id) {
      const auto hit = hits_.find(id);
      return hit == hits_.end() ? PrefixReuse{} : hit->second;
    };
    return c;
  }

  void launch(const StepPlan& plan) {
    for (const Refusal& refusal : plan.refusals) end(refusal.id);
    for (const Preemption& p : plan.preemptions) {
      const auto found = states_.find(p.id);
      if (found == states_.end()) {
        complain("preempted, but not on the device", p.id);
        continue;
      }
      release(*found->second);
      if (p.kind == PreemptionKind::kSnapshot) {
        const int64_t blocks = blocks_for(upper(*found->second));
        if ((host_ -= blocks) < 0) complain("has a snapshot without room in host memory", p.id);
        snapshots_[p.id] = {found->second, blocks};
      }
      states_.erase(found);
    }
    if (plan.items.empty()) return;
    Flight flight{plan.step, {}};
    for (const PlanItem& item : plan.items) {
      if (item.start != Start::kNone) start(item);
      const auto found = states_.find(item.id);
      if (found == states_.end()) {
        complain("runs without having been started", item.id);
        continue;
      }
      State& state = *found->second;
      hold(item.id, state, item.reserve());
      state.in_flight += item.tokens;
      flight.items.push_back({item, found->second});
    }
    last_launched_ = plan.step;
    flights_.push_back(std::move(flight));
  }

  // Ends the oldest step. Requests that finish in it give back what they hold.
  std::vector<ItemResult> finish(const Outcome& outcome) {
    std::vector<ItemResult> results;
    Flight flight = std::move(flights_.front());
    flights_.pop_front();
    last_finished_ = flight.step;
    for (auto& [item, state] : flight.items) results.push_back(finish_item(item, *state, outcome));
    std::erase_if(releases_, [this](const Release& r) {
      if (r.fence > last_finished_) return false;
      free_blocks_ += r.blocks;
      free_slots_ += r.slots;
      return true;
    });
    return results;
  }
  uint64_t oldest_step() const { return flights_.empty() ? 0 : flights_.front().step; }
  size_t in_flight() const { return flights_.size(); }

  // The client is gone, or the request has ended.
  void end(RequestId id) {
    if (const auto found = states_.find(id); found != states_.end()) {
      release(*found->second);
      states_.erase(found);
    }
    drop_snapshot(id);
    streams_.erase(id);
    hits_.erase(id);
  }
  void drop_snapshot(RequestId id) {
    const auto found = snapshots_.find(id);
    if (found == snapshots_.end()) return;
    host_ += found->second.blocks;
    snapshots_.erase(found);
  }

  const Stream* stream(RequestId id) const {
    const auto found = streams_.find(id);
    return found == streams_.end() ? nullptr : &found->second;
  }
  int64_t free_blocks() const { return free_blocks_; }
  int64_t free_slots() const { return free_slots_; }
  int64_t host_blocks() const { return host_; }
  const std::string& complaint() const { return complaint_; }  // the first; empty: none

 private:
  struct State {
    int64_t length = 0;
    int64_t blocks = 0;  // of its own
    int64_t shared = 0;
    bool released = false;
    int64_t in_flight = 0;  // tokens
  };
  struct Snapshot {
    std::shared_ptr<State> state;
    int64_t blocks = 0;
  };
  struct Flight {
    uint64_t step = 0;
    std::vector<std::pair<PlanItem, std::shared_ptr<State>>> items;
  };
  struct Release {
    uint64_t fence = 0;
    int64_t blocks = 0;
    int64_t slots = 0;
  };

  int64_t blocks_for(int64_t tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }
  // The longest the sequence can be once its steps in flight have ended.
  static int64_t upper(const State& s) { return s.length + s.in_flight; }
  void complain(const char* text, RequestId id) {
    if (complaint_.empty()) {
      complaint_ = "request " + std::to_string(id) + ": " + text + " (step " +
                   std::to_string(last_launched_) + ")";
    }
  }

  void give_back(int64_t blocks, int64_t slots) {
    if (last_finished_ >= last_launched_) {
      free_blocks_ += blocks;
      free_slots_ += slots;
    } else if (blocks > 0 || slots > 0) {
      releases_.push_back({last_launched_, blocks, slots});
    }
  }
  void release(State& state) {
    state.released = true;
    give_back(state.blocks, 1);
    state.blocks = 0;
  }
  void hold(RequestId id, State& state, int64_t tokens) {
    const int64_t need = std::max<int64_t>(0, blocks_for(tokens) - state.shared - state.blocks);
    if (need > free_blocks_) complain("planned without free blocks", id);
    free_blocks_ -= need;
    state.blocks += need;
  }

  void start(const PlanItem& item) {
    if (states_.contains(item.id)) complain("started twice", item.id);
    if (--free_slots_ < 0) complain("started without a free slot", item.id);
    auto state = std::make_shared<State>();
    state->length = item.position;
    if (item.start == Start::kRestore) {
      const auto saved = snapshots_.find(item.id);
      if (saved == snapshots_.end() || saved->second.state->length != item.position) {
        complain("restored from a snapshot that does not fit", item.id);
      }
      drop_snapshot(item.id);
    } else {
      const auto hit = hits_.find(item.id);
      const PrefixReuse found = hit == hits_.end() ? PrefixReuse{} : hit->second;
      if (item.position > found.tokens) complain("started behind its prefix hit", item.id);
      state->shared = std::min(found.shared_blocks, blocks_for(item.position));
    }
    states_[item.id] = std::move(state);
  }

  ItemResult finish_item(const PlanItem& item, State& state, const Outcome& outcome) {
    state.in_flight -= item.tokens;
    if (state.length < item.position || state.length > item.position + item.slack) {
      const auto found = streams_.find(item.id);
      if (found != streams_.end()) complain("a position was lost or doubled", item.id);
    }
    const auto found = streams_.find(item.id);
    if (found == streams_.end()) return {0, true};  // its client has gone
    Stream& stream = found->second;
    ItemResult result = item.samples ? outcome(item) : ItemResult{};
    state.length += item.tokens - item.drafts;
    stream.computed += item.tokens - item.drafts;
    if (item.samples) {
      if (state.length != stream.prompt + stream.outputs) {
        complain("a token was drawn from a wrong state", item.id);
      }
      result.outputs = std::min(result.outputs, stream.max_tokens - stream.outputs);
      if (result.outputs < 1 && !result.finished) complain("planned past max_tokens", item.id);
      stream.outputs += result.outputs;
      state.length += result.outputs - 1;
      stream.computed += result.outputs - 1;
    }
    if (!state.released) {  // what drafts reserved in vain goes back
      const int64_t keep = blocks_for(upper(state)) - state.shared;
      if (state.blocks > keep) {
        give_back(state.blocks - keep, 0);
        state.blocks = keep;
      }
    }
    if (result.finished || stream.outputs >= stream.max_tokens) end(item.id);
    return result;
  }

  int64_t block_tokens_;
  int64_t free_blocks_;
  int64_t free_slots_;
  int64_t host_;
  uint64_t last_launched_ = 0;
  uint64_t last_finished_ = 0;
  std::map<RequestId, Stream> streams_;  // of requests that have not ended
  std::map<RequestId, std::shared_ptr<State>> states_;
  std::map<RequestId, Snapshot> snapshots_;
  std::map<RequestId, PrefixReuse> hits_;
  std::vector<Release> releases_;
  std::deque<Flight> flights_;
  std::string complaint_;
};

}  // namespace tidemill
