#include "hooklib/engine/device/pools.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <unordered_map>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
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
std::map<CUdevice, CUmemoryPool>& Defaults() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::map<CUdevice, CUmemoryPool>();
  return map;
}
struct Served {
  uint64_t bytes;
  CUmemoryPool pool;
  CUcontext home;
};
std::unordered_map<CUdeviceptr, Served>& Blocks() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::unordered_map<CUdeviceptr, Served>();
  return map;
}
std::map<CUmemoryPool, PoolUse>& Uses() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::map<CUmemoryPool, PoolUse>();
  return map;
}

// The driver's handle of a device's default pool, which never changes.
CUmemoryPool DefaultPool(CUdevice device) {
  {
    MutexLock lock(g_mutex);
    const auto known = Defaults().find(device);
    if (known != Defaults().end()) return known->second;
  }
  CUmemoryPool pool = nullptr;
  if (!g_real.cuDeviceGetDefaultMemPool || g_real.cuDeviceGetDefaultMemPool(&pool, device) != CUDA_SUCCESS)
    return nullptr;
  MutexLock lock(g_mutex);
  return Defaults()[device] = pool;
}

// Bytes as the driver counts them in a pool.
uint64_t InPool(uint64_t bytes) {
  constexpr uint64_t kUnit = 512;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

}  // namespace

PoolTraits TraitsOf(const CUmemLocation& location, CUmemAllocationType type) {
  const std::optional<CUdevice> device = DeviceOf(location);
  if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) return {device.value_or(-1), true, true};
  if (!device) return {};
  // Memory of one locality domain stays the driver's.
  return {*device, type == CU_MEM_ALLOCATION_TYPE_PINNED && location.type == CU_MEM_LOCATION_TYPE_DEVICE};
}

PoolTraits TraitsOf(const CUmemPoolProps& properties) {
  PoolTraits traits = TraitsOf(properties.location, properties.allocType);
  // A use, as decompression by hardware, is of the driver's own memory alone.
  traits.is_served &= properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE && properties.usage == 0;
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
  const auto use = Uses().find(pool);
  if (use != Uses().end() && use->second.current == 0) Uses().erase(use);
  std::erase_if(Current(), [pool](const auto& entry) { return entry.second == pool; });
}

PoolTraits FindPool(CUmemoryPool pool) {
  MutexLock lock(g_mutex);
  const auto it = Pools().find(pool);
  PoolTraits traits = it == Pools().end() ? PoolTraits{} : it->second;
  traits.handle = pool;
  return traits;
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
      PoolTraits traits = it == Pools().end() ? PoolTraits{} : it->second;
      traits.handle = current->second;
      return traits;
    }
  }
  return {device, true};
}

void NoteServed(CUdeviceptr block, uint64_t bytes, const PoolTraits& pool, CUcontext home) {
  const CUmemoryPool handle = pool.handle ? pool.handle : DefaultPool(pool.device);
  MutexLock lock(g_mutex);
  Blocks()[block] = {InPool(bytes), handle, home};
  PoolUse& use = Uses()[handle];
  use.current += InPool(bytes);
  use.used_high = std::max(use.used_high, use.current);
  use.reserved_high = std::max(use.reserved_high, use.current);
}

void ForgetServed(CUdeviceptr block) {
  MutexLock lock(g_mutex);
  const auto it = Blocks().find(block);
  if (it == Blocks().end()) return;
  const auto use = Uses().find(it->second.pool);
  use->second.current -= it->second.bytes;
  const bool is_gone = use->second.current == 0 && !Pools().contains(use->first);
  if (is_gone &&
      std::none_of(Defaults().begin(), Defaults().end(), [&](const auto& entry) { return entry.second == use->first; }))
    Uses().erase(use);  // the last block of a pool that was destroyed
  Blocks().erase(it);
}

CUmemoryPool PoolOf(CUdeviceptr block) {
  MutexLock lock(g_mutex);
  const auto it = Blocks().find(block);
  return it == Blocks().end() ? nullptr : it->second.pool;
}

bool AnyServedIn(CUcontext home) {
  MutexLock lock(g_mutex);
  return std::any_of(Blocks().begin(), Blocks().end(), [home](const auto& entry) { return entry.second.home == home; });
}

PoolUse UseOf(CUmemoryPool pool) {
  MutexLock lock(g_mutex);
  const auto it = Uses().find(pool);
  return it == Uses().end() ? PoolUse{} : it->second;
}

void ResetHighUse(CUmemoryPool pool, CUmemPool_attribute mark) {
  MutexLock lock(g_mutex);
  const auto it = Uses().find(pool);
  if (it == Uses().end()) return;
  PoolUse& use = it->second;
  (mark == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? use.used_high : use.reserved_high) = use.current;
}

}  // namespace sluice
