// Helpers of the client's own files.
#ifndef SLUICE_HOOKLIB_CLIENT_INTERNALS_H_
#define SLUICE_HOOKLIB_CLIENT_INTERNALS_H_

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <ctime>

#include "sluice/wire.h"

namespace sluice::client {

inline uint64_t NowNs() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

using Clock = std::chrono::steady_clock;

inline Clock::time_point DeadlineAfter(int ms) { return Clock::now() + std::chrono::milliseconds(ms < 0 ? 0 : ms); }

inline void CopyText(char* to, size_t size, const char* from) {
  const size_t n = strnlen(from, size - 1);
  memcpy(to, from, n);
  memset(to + n, 0, size - n);
}

// Maps `fd`, or private memory where fd is -1, over `at` (anywhere where at is null).
inline sluice_page* MapPage(void* at, int fd) {
  const int flags = (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | (at != nullptr ? MAP_FIXED : 0);
  void* p = mmap(at, SLUICE_PAGE_BYTES, PROT_READ | PROT_WRITE, flags, fd, 0);
  return p == MAP_FAILED ? nullptr : static_cast<sluice_page*>(p);
}

inline void InitPage(sluice_page* page) {
  page->magic = SLUICE_WIRE_MAGIC;
  page->major = SLUICE_WIRE_MAJOR;
  page->minor = SLUICE_WIRE_MINOR;
}

}  // namespace sluice::client

#endif  // SLUICE_HOOKLIB_CLIENT_INTERNALS_H_
