// Large tables of which a program may use little.
#ifndef SLUICE_HOOKLIB_MEMORY_ZERO_PAGES_H_
#define SLUICE_HOOKLIB_MEMORY_ZERO_PAGES_H_

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace sluice::memory {

// An array of zeros in pages of its own, none of them huge. Linux commits a page when it is first written, so that a
// large table costs host memory and time only where it is used. std::vector writes all of its elements at once. Not
// thread-safe.
template <typename T>
class ZeroPages {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  ZeroPages() = default;
  ZeroPages(ZeroPages&& other) noexcept { *this = std::move(other); }
  ZeroPages& operator=(ZeroPages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~ZeroPages() {
    if (data_) ::munmap(data_, size_ * sizeof(T));
  }

  // Only of an empty array. Throws std::bad_alloc as std::vector does.
  void Allocate(size_t size) {
    void* const pages =
        ::mmap(nullptr, size * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    ::madvise(pages, size * sizeof(T), MADV_NOHUGEPAGE);
    data_ = static_cast<T*>(pages);
    size_ = size;
  }

  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_ZERO_PAGES_H_
