// The median of a set that changes by one value at a time, in O(log n).
#pragma once

#include <cassert>
#include <cstdint>
#include <set>

namespace tidemill {

// Not thread safe. Values may repeat; none may be NaN.
class RunningMedian {
 public:
  void insert(double value) {
    (low_.empty() || value <= *low_.rbegin() ? low_ : high_).insert(value);
    rebalance();
  }

  // Takes out one of the values equal to `value`, of which there must be one.
  void erase(double value) {
    auto& half = !low_.empty() && value <= *low_.rbegin() ? low_ : high_;
    const auto found = half.find(value);
    assert(found != half.end());
    half.erase(found);
    rebalance();
  }

  bool empty() const { return low_.empty(); }
  int64_t size() const { return static_cast<int64_t>(low_.size() + high_.size()); }

  // Of an even number of values the mean of the two in the middle. Not of an empty set.
  double median() const {
    assert(!empty());
    return low_.size() > high_.size() ? *low_.rbegin() : (*low_.rbegin() + *high_.begin()) / 2;
  }

 private:
  // Keeps low_ as large as high_, or one larger. Moving a node allocates nothing.
  void rebalance() {
    if (low_.size() > high_.size() + 1) {
      high_.insert(low_.extract(std::prev(low_.end())));
    } else if (high_.size() > low_.size()) {
      low_.insert(high_.extract(high_.begin()));
    }
  }

  std::multiset<double> low_;   // no value above
  std::multiset<double> high_;  // any of these
};

}  // namespace tidemill
