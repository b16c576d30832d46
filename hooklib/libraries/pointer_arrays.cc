// Contents of the pointer arrays that were copied from the host, by device address.
#include "hooklib/libraries/pointer_arrays.h"

#include <sys/uio.h>
#include <unistd.h>

#include <map>

#include "common/mutex.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice {

namespace {

constexpr uint64_t kMaxArrayBytes = 64 << 10;  // 8,192 pointers
constexpr std::size_t kMaxArrays = 1024;       // kept at once; the one at the lowest address is dropped first
struct SeenArrays {
  Mutex mutex;                                                                // no other lock is taken inside
  std::map<uint64_t, std::vector<uint64_t>> arrays SLUICE_GUARDED_BY(mutex);  // by address; disjoint
};
SeenArrays& All() {
  static auto& all = *new SeenArrays();
  return all;
}
std::atomic<std::size_t> g_count{0};

// A program may give the driver a device's address as the host's. This read fails there, and does not fault.
bool ReadHost(const void* from, void* to, uint64_t bytes) {
  const iovec local{to, bytes}, remote{const_cast<void*>(from), bytes};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
}

void Drop(SeenArrays& all, uint64_t address, uint64_t bytes) SLUICE_REQUIRES(all.mutex) {
  auto it = all.arrays.upper_bound(address);
  if (it != all.arrays.begin() && std::prev(it)->first + std::prev(it)->second.size() * 8 > address) --it;
  while (it != all.arrays.end() && it->first < address + bytes) it = all.arrays.erase(it);
}

}  // namespace

void NoteHostCopy(uint64_t destination, const void* host, uint64_t bytes) {
  if (!g_library_calls_wanted.load(std::memory_order_relaxed)) return ForgetHostCopies(destination, bytes);
  const bool array = host && bytes >= 8 && bytes <= kMaxArrayBytes && bytes % 8 == 0 && destination % 8 == 0;
  if (!array) return ForgetHostCopies(destination, bytes);
  // Device addresses are multiples of the element, below 2^57, and never small. Other data seldom begins with such a
  // number.
  uint64_t first;
  if (!ReadHost(host, &first, 8) || first < 1 << 20 || first >> 57) return ForgetHostCopies(destination, bytes);
  std::vector<uint64_t> words(bytes / 8);
  if (!ReadHost(host, words.data(), bytes)) return ForgetHostCopies(destination, bytes);
  SeenArrays& all = All();
  MutexLock lock(all.mutex);
  Drop(all, destination, bytes);
  if (all.arrays.size() >= kMaxArrays) all.arrays.erase(all.arrays.begin());
  all.arrays[destination] = std::move(words);
  g_count.store(all.arrays.size(), std::memory_order_relaxed);
}

void ForgetHostCopies(uint64_t address, uint64_t bytes) {
  if (g_count.load(std::memory_order_relaxed) == 0) return;
  SeenArrays& all = All();
  MutexLock lock(all.mutex);
  Drop(all, address, bytes);
  g_count.store(all.arrays.size(), std::memory_order_relaxed);
}

namespace libraries {

bool SeenPointers(uint64_t address, uint64_t count, std::vector<uint64_t>* out) {
  if (g_count.load(std::memory_order_relaxed) == 0 || count > kMaxArrayBytes / 8) return false;
  SeenArrays& all = All();
  MutexLock lock(all.mutex);
  auto it = all.arrays.upper_bound(address);
  if (it == all.arrays.begin()) return false;
  --it;
  const uint64_t skip = (address - it->first) / 8;
  if ((address - it->first) % 8 || skip + count > it->second.size()) return false;
  const auto begin = it->second.begin() + static_cast<std::ptrdiff_t>(skip);
  out->assign(begin, begin + static_cast<std::ptrdiff_t>(count));
  return true;
}

}  // namespace libraries
}  // namespace sluice
