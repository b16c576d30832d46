// Vector clocks: which work is known to be done before other work begins (Lamport's happens-before; Mattern 1989).
#ifndef SLUICE_TEST_DIFFERENTIAL_ORDER_H_
#define SLUICE_TEST_DIFFERENTIAL_ORDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

namespace differential {

// The at-th piece of work of a stream's line; `line` -1: none.
struct Stamp {
  int line = -1;
  uint32_t at = 0;
  bool awaited = false;  // a copy for which cuMemFree of the block waits, whichever context holds it
};

class Clock {
 public:
  bool Has(Stamp stamp) const {
    return stamp.line < 0 || (static_cast<size_t>(stamp.line) < seen_.size() && seen_[Index(stamp)] >= stamp.at);
  }
  void Add(Stamp stamp) {
    if (seen_.size() <= Index(stamp)) seen_.resize(Index(stamp) + 1);
    seen_[Index(stamp)] = std::max(seen_[Index(stamp)], stamp.at);
  }
  void Join(const Clock& other) {
    if (seen_.size() < other.seen_.size()) seen_.resize(other.seen_.size());
    for (size_t i = 0; i < other.seen_.size(); ++i) seen_[i] = std::max(seen_[i], other.seen_[i]);
  }

 private:
  static size_t Index(Stamp stamp) { return static_cast<size_t>(stamp.line); }
  std::vector<uint32_t> seen_;
};

// A vector that copies share until one writes: an operation is tried on a copy of the whole world. Elements that are
// named through a non-const table count as written.
template <class T>
class Table {
 public:
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = const T*;
    using reference = const T&;
    Iterator(const Table* table, size_t at) : table_(table), at_(at) {}
    const T& operator*() const { return table_->At(at_); }
    const T* operator->() const { return &table_->At(at_); }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;
    size_t index() const { return at_; }

   private:
    const Table* table_;
    size_t at_;
  };

  Table() = default;
  explicit Table(size_t size) : size_(size) {
    for (size_t i = 0; i < size; i += kPart) parts_.push_back(std::make_shared<Part>(kPart));
  }
  size_t size() const { return size_; }
  const T& At(size_t i) const { return (*parts_[i / kPart])[i % kPart]; }
  const T& operator[](size_t i) const { return At(i); }
  T& operator[](size_t i) {
    std::shared_ptr<Part>& part = parts_[i / kPart];
    if (part.use_count() > 1) part = std::make_shared<Part>(*part);
    return (*part)[i % kPart];
  }
  T& back() { return (*this)[size_ - 1]; }
  void push_back(T value) {
    if (size_ % kPart == 0) parts_.push_back(std::make_shared<Part>(kPart));
    (*this)[size_++] = std::move(value);
  }
  // Changes the elements for which `is` holds.
  template <class Is, class Change>
  void ChangeIf(Is is, Change change) {
    for (size_t i = 0; i < size_; ++i) {
      if (is(At(i))) change((*this)[i]);
    }
  }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size_}; }

 private:
  static constexpr size_t kPart = 16;
  using Part = std::vector<T>;
  std::vector<std::shared_ptr<Part>> parts_;
  size_t size_ = 0;
};

}  // namespace differential

#endif  // SLUICE_TEST_DIFFERENTIAL_ORDER_H_
