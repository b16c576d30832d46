#include "hooklib/engine/device/pools.h"

#include <atomic>
#include <map>
#include <optional>

#include "common/mutex.h"
#include "hooklib/engine/device/locations.h"

namespace sluice {

namespace {

std::atomic<bool> g_any_current{false};
Mutex g_mutex;  // no other lock is taken inside
std::map<CUmemoryPool, PoolTraits>& Pools() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::map<CUmemoryPool, PoolTraits>();
  return map;
}
std::map<CUdevice, CUmemoryPool>& Current() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::map<CUdevice, CUmemoryPool>();
  return map;
}

}  // namespace

PoolTraits TraitsOf(const CUmemLocation& location, CUmemAllocationType type) {
  const std::optional<CUdevice> device = DeviceOf(location);
  if (!device) return {};
  // Memory of one locality domain stays the driver's.
  return {*device, type == CU_MEM_ALLOCATION_TYPE_PINNED && location.type == CU_MEM_LOCATION_TYPE_DEVICE};
}

PoolTraits TraitsOf(const CUmemPoolProps& properties) {
  PoolTraits traits = TraitsOf(properties.location, properties.allocType);
  traits.is_served &= properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE;
  return traits;
}

void NotePool(CUmemoryPool pool, PoolTraits traits) {
  MutexLock lock(g_mutex);
  Pools()[pool] = traits;
}

void NoteKnownPool(CUmemoryPool pool, PoolTraits traits) {
  MutexLock lock(g_mutex);
  Pools().emplace(pool, traits);
}

void ForgetPool(CUmemoryPool pool) {
  MutexLock lock(g_mutex);
  Pools().erase(pool);
  std::erase_if(Current(), [pool](const auto& entry) { return entry.second == pool; });
}

PoolTraits FindPool(CUmemoryPool pool) {
  MutexLock lock(g_mutex);
  const auto it = Pools().find(pool);
  return it == Pools().end() ? PoolTraits{} : it->second;
}

void SetCurrentPool(CUdevice device, CUmemoryPool pool) {
  MutexLock lock(g_mutex);
  Current()[device] = pool;
  g_any_current = true;
}

PoolTraits CurrentPool(CUdevice device) {
  if (g_any_current.load(std::memory_order_acquire)) {
    MutexLock lock(g_mutex);
    const auto current = Current().find(device);
    if (current != Current().end()) {
      const auto it = Pools().find(current->second);
      return it == Pools().end() ? PoolTraits{} : it->second;
    }
  }
  return {device, true};
}

}  // namespace sluice
