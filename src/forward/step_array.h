// Values of one step: made on the host, read by ops.
#pragma once

#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "ops/backend.h"

namespace tidemill {

// A vector for the host. Ops read device(), which is valid from Backend::stage of staged() on until
// the next stage(), or until the values change.
template <typename T>
class StepArray {
 public:
  StepArray() = default;
  explicit StepArray(std::vector<T> values) : values_(std::move(values)) {}

  void push_back(T value) { values_.push_back(value); }
  template <typename Iterator>
  void append(Iterator begin, Iterator end) {
    values_.insert(values_.end(), begin, end);
  }
  void assign(std::span<const T> values) { values_.assign(values.begin(), values.end()); }
  void resize(size_t size, T value = {}) { values_.resize(size, value); }
  void clear() { values_.clear(); }

  size_t size() const { return values_.size(); }
  int64_t count() const { return static_cast<int64_t>(values_.size()); }
  bool empty() const { return values_.empty(); }
  T& operator[](size_t i) { return values_[i]; }
  const T& operator[](size_t i) const { return values_[i]; }
  T& back() { return values_.back(); }
  T* data() { return values_.data(); }
  const T* data() const { return values_.data(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  const std::vector<T>& values() const { return values_; }
  bool operator==(const StepArray& other) const { return values_ == other.values_; }

  const T* device() const { return static_cast<const T*>(device_); }
  StagedArray staged() {
    return {values_.data(), count() * static_cast<int64_t>(sizeof(T)), &device_};
  }

 private:
  std::vector<T> values_;
  const void* device_ = nullptr;
};

}  // namespace tidemill
