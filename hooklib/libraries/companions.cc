#include "hooklib/libraries/companions.h"

#include <array>
#include <atomic>
#include <cstdint>

#include "common/mutex.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice::libraries {

namespace {

// Open addressing without removal: readers take no lock. Where the table is full, the loader is asked each time.
struct Slot {
  std::atomic<void*> real{nullptr};
  const char* symbol = nullptr;
  void* found = nullptr;
};
constexpr std::size_t kSlots = 4096, kMaxProbes = 16;
std::array<Slot, kSlots> g_slots;
// Held by a thread that fills a slot. Its `real` publishes it to readers, who take no lock.
Mutex g_mutex;
Slot& WritableSlot(std::size_t index) SLUICE_REQUIRES(g_mutex) { return g_slots[index % kSlots]; }

}  // namespace

void* CompanionOf(void* real, const char* symbol) {
  const std::size_t hash =
      (reinterpret_cast<uintptr_t>(real) * 0x9e3779b97f4a7c15u >> 20) ^ (reinterpret_cast<uintptr_t>(symbol) >> 3);
  for (std::size_t probe = 0; probe < kMaxProbes; ++probe) {
    const Slot& slot = g_slots[(hash + probe) % kSlots];
    void* const at = slot.real.load(std::memory_order_acquire);
    if (!at) break;
    if (at == real && slot.symbol == symbol) return slot.found;
  }
  void* const found = LibrarySymbol(real, symbol);  // takes the loader's lock, so none of ours is held
  MutexLock lock(g_mutex);
  for (std::size_t probe = 0; probe < kMaxProbes; ++probe) {
    Slot& slot = WritableSlot(hash + probe);
    if (slot.real.load(std::memory_order_relaxed)) continue;
    slot.symbol = symbol;
    slot.found = found;
    slot.real.store(real, std::memory_order_release);
    break;
  }
  return found;
}

}  // namespace sluice::libraries
