#include "hooklib/engine/device/pools.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/devices.h"
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
struct Use : PoolUse {
  uint64_t taken = 0;  // of blocks on their way
};
std::map<CUmemoryPool, Use>& Uses() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::map<CUmemoryPool, Use>();
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

CUmemoryPool HandleOf(const PoolTraits& pool) { return pool.handle ? pool.handle : DefaultPool(pool.device); }

// The largest size of a pool, as the driver rounds it. Only newer drivers tell it.
uint64_t MaxBytesOf(CUmemoryPool pool, uint64_t asked) {
  constexpr uint64_t kUnit = 32 << 20;  // an H200, driver 580
  cuuint64_t bytes = 0;
  const bool is_told = g_real.cuMemPoolGetAttribute &&
                       g_real.cuMemPoolGetAttribute(pool, cuda_newer::kMaxPoolSize, &bytes) == CUDA_SUCCESS;
  if (is_told && bytes >= asked) return bytes;
  return asked > UINT64_MAX - kUnit ? 0 : (asked + kUnit - 1) / kUnit * kUnit;
}

// Bytes as the driver counts them in a pool.
uint64_t InPool(uint64_t bytes) {
  constexpr uint64_t kUnit = 512;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

// The pool may have been destroyed meanwhile.
void GiveTaken(Use* use, uint64_t bytes) { use->taken -= std::min(use->taken, InPool(bytes)); }

}  // namespace

PoolTraits TraitsOf(const CUmemLocation& location, CUmemAllocationType type) {
  const std::optional<CUdevice> device = DeviceOf(location);
  if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) return {device.value_or(-1), true, true};
  if (!device) return {};
  // Memory of one locality domain stays the driver's.
  return {*device, type == CU_MEM_ALLOCATION_TYPE_PINNED && location.type == CU_MEM_LOCATION_TYPE_DEVICE};
}

PoolTraits TraitsOf(CUmemoryPool pool, const CUmemPoolProps& properties) {
  PoolTraits traits = TraitsOf(properties.location, properties.allocType);
  // A use, as decompression by hardware, is of the driver's own memory alone.
  traits.is_served &= properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE && properties.usage == 0;
  if (traits.is_served && properties.maxSize) traits.max_bytes = MaxBytesOf(pool, properties.maxSize);
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

KnownPool TakePool(CUmemoryPool pool) {
  KnownPool known;
  MutexLock lock(g_mutex);
  if (const auto it = Pools().find(pool); it != Pools().end()) {
    known.traits = it->second;
    Pools().erase(it);
  }
  if (const auto it = Uses().find(pool); it != Uses().end()) {
    known.use = it->second;
    it->second.release_threshold = 0;
    it->second.most = it->second.current;  // its handle may be given out again
    if (it->second.current == 0) Uses().erase(it);
  }
  std::erase_if(Current(), [&](const auto& entry) {
    if (entry.second != pool) return false;
    known.current_of.push_back(entry.first);
    return true;
  });
  return known;
}

void PutBackPool(CUmemoryPool pool, const KnownPool& known) {
  MutexLock lock(g_mutex);
  if (known.traits) Pools()[pool] = *known.traits;
  if (known.use.used_high || known.use.reserved_high || known.use.release_threshold) {
    Use& use = Uses()[pool];  // blocks may have come and gone meanwhile
    use.device = known.use.device;
    use.most = std::max(use.most, known.use.most);
    use.release_threshold = known.use.release_threshold;
    use.used_high = std::max(use.used_high, known.use.used_high);
    use.reserved_high = std::max(use.reserved_high, known.use.reserved_high);
  }
  for (const CUdevice device : known.current_of) Current()[device] = pool;
}

PoolTraits FindPool(CUmemoryPool pool) {
  std::optional<PoolTraits> known;
  {
    MutexLock lock(g_mutex);
    if (const auto it = Pools().find(pool); it != Pools().end()) known = it->second;
  }
  // The attribute of a pointer names a default pool that no call for pools has named.
  for (const auto& device : known ? std::span<const std::unique_ptr<Device>>() : Devices()) {
    if (pool && DefaultPool(device->ordinal) == pool) known = PoolTraits{device->ordinal, true};
  }
  PoolTraits traits = known.value_or(kUnknownPool);
  traits.handle = pool;
  return traits;
}

void SetCurrentPool(CUdevice device, CUmemoryPool pool) {
  MutexLock lock(g_mutex);
  Current()[device] = pool;
  g_any_current = true;
}

PoolTraits CurrentPool(CUdevice device) {
  if (!g_any_current.load(std::memory_order_acquire)) return {device, true};
  CUmemoryPool pool = nullptr;
  {
    MutexLock lock(g_mutex);
    if (const auto current = Current().find(device); current != Current().end()) pool = current->second;
  }
  return pool ? FindPool(pool) : PoolTraits{device, true};
}

bool TakeFrom(const PoolTraits& pool, uint64_t bytes) {
  if (!pool.max_bytes) return true;
  MutexLock lock(g_mutex);
  Use& use = Uses()[pool.handle];
  const uint64_t held = use.current + use.taken;
  if (held > pool.max_bytes || bytes > pool.max_bytes - held || InPool(bytes) > pool.max_bytes - held) return false;
  use.taken += InPool(bytes);
  return true;
}

void GiveBack(const PoolTraits& pool, uint64_t bytes) {
  if (!pool.max_bytes) return;
  MutexLock lock(g_mutex);
  GiveTaken(&Uses()[pool.handle], bytes);
}

void NoteServed(CUdeviceptr block, uint64_t bytes, const PoolTraits& pool, CUcontext home) {
  const CUmemoryPool handle = HandleOf(pool);
  MutexLock lock(g_mutex);
  Blocks()[block] = {InPool(bytes), handle, home};
  Use& use = Uses()[handle];
  if (pool.max_bytes) GiveTaken(&use, bytes);
  use.current += InPool(bytes);
  use.used_high = std::max(use.used_high, use.current);
  use.reserved_high = std::max(use.reserved_high, use.current);
  use.most = std::max(use.most, use.current);
  use.device = pool.is_managed ? -1 : pool.device;  // a managed pool's memory is on its streams' devices
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
  return it == Uses().end() ? PoolUse{} : PoolUse(it->second);
}

void ResetHighUse(CUmemoryPool pool, CUmemPool_attribute mark) {
  MutexLock lock(g_mutex);
  const auto it = Uses().find(pool);
  if (it == Uses().end()) return;
  Use& use = it->second;
  (mark == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? use.used_high : use.reserved_high) = use.current;
}

void NoteReleaseThreshold(CUmemoryPool pool, uint64_t bytes) {
  MutexLock lock(g_mutex);
  Use& use = Uses()[pool];
  use.most = std::max(use.current, std::min(use.most, use.release_threshold));  // no more was kept until now
  use.release_threshold = bytes;
}

void NoteTrim(CUmemoryPool pool, uint64_t kept) {
  MutexLock lock(g_mutex);
  const auto it = Uses().find(pool);
  if (it != Uses().end()) it->second.most = std::min(it->second.most, std::max(it->second.current, kept));
}

uint64_t KeptByPools(CUdevice device) {
  uint64_t kept = 0;
  MutexLock lock(g_mutex);
  for (const auto& [pool, use] : Uses()) {
    const uint64_t held = std::min(use.most, use.release_threshold);
    if (use.device == device && held > use.current) kept += held - use.current;
  }
  return kept;
}

}  // namespace sluice
