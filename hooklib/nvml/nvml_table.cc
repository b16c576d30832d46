// The NVML rows of the hook table at run time.
#include <array>
#include <atomic>

#include "common/mutex.h"
#include "hooklib/dispatch/uncancelled.h"
#include "hooklib/nvml/nvml_view.h"

namespace sluice {

constinit NvmlReal g_nvml;

namespace {

struct Slot {
  const char* name;
  void** real;
};

// NOLINTBEGIN(cppcoreguidelines-pro-type-reinterpret-cast): function pointers as dlsym gives them.
const Slot kSlots[] = {
#define SLUICE_NVML(name) {#name, reinterpret_cast<void**>(&g_nvml.name)},
#define SLUICE_NVML_USE(name) {#name, reinterpret_cast<void**>(&g_nvml.name)},
#include "hooklib/hooks.def"
};
void* const kEntries[] = {
#define SLUICE_NVML(name) reinterpret_cast<void*>(&UncancelledEntry<&nvml_entry::name, decltype(::name)>::Call),
#include "hooklib/hooks.def"
};
// NOLINTEND(cppcoreguidelines-pro-type-reinterpret-cast)

// Held by a thread that binds: g_nvml is written under it, and read without it once `bound` is true.
Mutex bind_mutex;
std::atomic<bool> bound{false};
void*& WritableReal(std::size_t slot) SLUICE_REQUIRES(bind_mutex) { return *kSlots[slot].real; }

}  // namespace

std::size_t NvmlHookCount() { return sizeof(kEntries) / sizeof(kEntries[0]); }
const char* NvmlHookName(std::size_t index) { return kSlots[index].name; }
void* NvmlEntryOf(std::size_t index) { return kEntries[index]; }
void* NvmlRealOf(std::size_t index) { return *kSlots[index].real; }
bool NvmlBound() { return bound.load(std::memory_order_acquire); }

void NvmlBind(void* (*lookup)(void* context, const char* name), void* context) {
  constexpr std::size_t kCount = sizeof(kSlots) / sizeof(kSlots[0]);
  std::array<void*, kCount> found{};
  for (std::size_t i = 0; i < kCount; ++i) found[i] = lookup(context, kSlots[i].name);
  const MutexLock lock(bind_mutex);
  if (NvmlBound()) return;
  for (std::size_t i = 0; i < kCount; ++i) WritableReal(i) = found[i];
  bound.store(true, std::memory_order_release);
}

}  // namespace sluice
