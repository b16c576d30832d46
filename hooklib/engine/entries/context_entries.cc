// Contexts: peers, limits, and their ends, where handles may be given again.
#include <map>
#include <optional>
#include <set>

#include "common/mutex.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/captures.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/ending_contexts.h"
#include "hooklib/engine/device/green_contexts.h"
#include "hooklib/engine/device/peer_copies.h"
#include "hooklib/engine/device/unmanaged.h"
#include "hooklib/engine/device/virtual_memory.h"
#include "hooklib/engine/execute/value_cells.h"
#include "hooklib/engine/execute/value_waits.h"
#include "hooklib/engine/observe/params.h"

namespace sluice {

namespace {

// Bytes of device memory that one more of a limit's unit costs; 0: not known.
uint64_t BytesPerUnit(CUlimit limit, const Device& device) {
  int multiprocessors = 0, threads = 0;
  switch (limit) {
    case CU_LIMIT_MALLOC_HEAP_SIZE:
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      return 1;
    case CU_LIMIT_STACK_SIZE:  // of each thread that the GPU may run at once
      g_real.cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device.ordinal);
      g_real.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device.ordinal);
      return static_cast<uint64_t>(multiprocessors) * static_cast<uint64_t>(threads);
    default:
      return 0;
  }
}

// Before the driver's call: another thread may be given its handles again behind it.
void EndTransfersOf(CUcontext context, bool ends) {
  ForgetFunctionsOf(context);
  peer_copies::EndContext(context);
  for (const auto& device : Devices()) device->EndTransfersOf(context, ends);
}

void ContextEnds(CUcontext context) {
  EndTransfersOf(context, true);
  for (const auto& device : Devices()) device->ContextEnds(context);
}

// The driver refused, or others hold it.
void ContextStays(CUcontext context) {
  for (const auto& device : Devices()) device->ContextStays(context);
}

void ContextGone(CUcontext context) {
  peer_copies::ForgetContext(context);
  ForgetCapturesOf(context);
  ForgetUnmanagedOf(context);
  ForgetFunctionsOf(context);
  value_waits::ForgetContext(context);
  value_cells::ForgetContext(context);
  virtual_memory::ForgetReservationsOf(context);
  for (const auto& device : Devices()) device->DropContext(context);
  ForgetStreamCache();  // its handle may come again, on another GPU
}

// How often the application has attached to the context beside its making, after `change`.
int CountAttached(CUcontext context, int change) {
  static Mutex mutex;
  static auto* const counts SLUICE_PT_GUARDED_BY(mutex) = new std::map<CUcontext, int>();
  MutexLock lock(mutex);
  const int count = (*counts)[context] += change;
  if (count == 0) counts->erase(context);
  return count;
}

// The holders of a device's primary context.
struct Holders {
  int retained = 0;  // by the application, and once for the engine's reservations
  int most_retained = 0;
  std::set<CUgreenCtx> greens;
  bool had_greens = false;
};
Mutex g_holders;  // guards the map; no other lock is taken inside
std::map<CUdevice, Holders>& AllHolders() SLUICE_REQUIRES(g_holders) {
  static auto& all = *new std::map<CUdevice, Holders>();
  return all;
}

// How often the application, or a reservation of the engine's, has retained the primary context, after `change`.
int CountRetained(CUdevice ordinal, int change) {
  MutexLock lock(g_holders);
  Holders& holders = AllHolders()[ordinal];
  holders.retained = std::max(0, holders.retained + change);
  holders.most_retained = std::max(holders.most_retained, holders.retained);
  return holders.retained;
}

void NoteGreen(CUdevice ordinal, CUgreenCtx green) {
  MutexLock lock(g_holders);
  AllHolders()[ordinal].greens.insert(green);
  AllHolders()[ordinal].had_greens = true;
}
std::optional<CUdevice> DeviceOfGreen(CUgreenCtx green) {
  MutexLock lock(g_holders);
  for (auto& [ordinal, holders] : AllHolders()) {
    if (holders.greens.contains(green)) return ordinal;
  }
  return std::nullopt;
}
// Its device, if it was known.
std::optional<CUdevice> ForgetGreen(CUgreenCtx green) {
  MutexLock lock(g_holders);
  for (auto& [ordinal, holders] : AllHolders()) {
    if (holders.greens.erase(green)) return ordinal;
  }
  return std::nullopt;
}

// Whether the application has released the primary context as often as it retained it. Of one that it never held here,
// nothing is known.
bool HasReleasedAll(const Device& device) {
  const int own = virtual_memory::HoldsPrimary(&device) ? 1 : 0;
  MutexLock lock(g_holders);
  const Holders& holders = AllHolders()[device.ordinal];
  return holders.retained <= own && (holders.most_retained > own || holders.had_greens);
}

bool HasGreen(CUdevice ordinal) {
  MutexLock lock(g_holders);
  return !AllHolders()[ordinal].greens.empty();
}

// The device's primary context; null: it is not active. Retaining it shows which of the device's contexts it is.
CUcontext ActivePrimary(CUdevice ordinal) {
  const PrimaryScope scope(ordinal);
  RelaxedCapture relaxed;
  unsigned flags = 0;
  int active = 0;
  CUcontext context = nullptr;
  if (g_real.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) != CUDA_SUCCESS || !active ||
      g_real.cuDevicePrimaryCtxRetain(&context, ordinal) != CUDA_SUCCESS)
    return nullptr;
  if (g_real.cuDevicePrimaryCtxRelease_v2) g_real.cuDevicePrimaryCtxRelease_v2(ordinal);
  return context;
}

// `reset`: everything in it is destroyed, however often it is still retained.
template <typename Destroy>
CUresult DestroyPrimary(CUdevice ordinal, bool reset, Destroy destroy) {
  Device* const device = DeviceByOrdinal(ordinal);
  std::optional<PrimaryScope> alone;
  if (device) alone.emplace(ordinal);
  if (device && reset) virtual_memory::OutliveReset(device);
  const CUcontext context = device ? ActivePrimary(ordinal) : nullptr;
  const int retained = CountRetained(ordinal, 0);
  const bool has_none = device && !reset && HasReleasedAll(*device);
  if (context && reset) ContextEnds(context);
  if (context && has_none) EndTransfersOf(context, false);
  // The engine's reference goes first. It is the last one where the program has none.
  const bool is_kept = device && (device->ReleasePrimary(reset) || virtual_memory::HoldsPrimary(device));
  // The driver would take the engine's reference for the program's.
  if (has_none && is_kept) return CUDA_ERROR_INVALID_CONTEXT;
  // A green context may outlive the last release, and so may the memory. So evictions and discards are left out then,
  // but work behind them goes on waiting.
  if (context && !reset && !has_none && retained <= 1)
    EndTransfersOf(context, retained == 1 && !is_kept && !HasGreen(ordinal));
  const CUresult result = destroy();
  if (result == CUDA_SUCCESS && !reset) CountRetained(ordinal, -1);
  if (!context) return result;
  if ((reset && result == CUDA_SUCCESS) || !ActivePrimary(ordinal)) {
    ContextGone(context);
    return result;
  }
  ContextStays(context);
  if (result == CUDA_SUCCESS && HasReleasedAll(*device) && !HasGreen(ordinal)) {
    // Memory of pools keeps the context behind the program's last release. Its other memory ends here.
    const ContextScope scope(context);
    for (const CUdeviceptr block : device->BlocksOf(context)) entry::cuMemFree_v2(block);
  }
  return result;
}

// The end of a green context is kept by this handle (ending_contexts.h), which may be given again as a context's.
CUcontext HandleOf(CUgreenCtx green) { return reinterpret_cast<CUcontext>(green); }

// Of the current context to memory of the peer.
void NoteAccess(Device* user, CUcontext peer, Device* owner, bool is_enabled) {
  CUcontext current = nullptr;
  if (!owner || g_real.cuCtxGetCurrent(&current) != CUDA_SUCCESS) return;
  peer_copies::NoteAccess(user->MemoryContext(current), owner->MemoryContext(peer), is_enabled);
}

// Behind the call that gave out the context.
CUresult Created(const CUcontext* context, CUresult result) {
  if (result == CUDA_SUCCESS && context) AwaitContextEnd(*context);
  return result;
}

}  // namespace

namespace entry {

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  const CUresult result = g_real.cuCtxEnablePeerAccess(peer, flags);
  const bool is_enabled = result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  Device* user = is_enabled ? CurrentDevice() : nullptr;
  if (user && g_real.cuCtxPushCurrent_v2(peer) == CUDA_SUCCESS) {
    Device* owner = CurrentDevice();
    CUcontext popped = nullptr;
    g_real.cuCtxPopCurrent_v2(&popped);
    if (owner) owner->AddPeer(user->ordinal);
    NoteAccess(user, peer, owner, true);
  }
  return result;
}
CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  const CUresult result = g_real.cuCtxDisablePeerAccess(peer);
  Device* const user = result == CUDA_SUCCESS ? CurrentDevice() : nullptr;
  if (user) NoteAccess(user, peer, user, false);
  return result;
}
CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  CUcontext context = nullptr;
  Device* const device = CurrentDevice(&context);
  const uint64_t each = device && g_real.cuCtxGetLimit ? BytesPerUnit(limit, *device) : 0;
  if (!each) return g_real.cuCtxSetLimit(limit, value);
  const auto now = [&] {
    size_t units = 0;
    return g_real.cuCtxGetLimit(&units, limit) == CUDA_SUCCESS ? uint64_t{units} : 0;
  };
  const uint64_t before = now();
  uint64_t more = 0;
  if (value > before && __builtin_mul_overflow(value - before, each, &more)) more = UINT64_MAX;
  if (more && !device->ReserveUnmanaged(more)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = g_real.cuCtxSetLimit(limit, value);
  device->NoteLimit(context, static_cast<int64_t>((now() - before) * each), more);  // as the driver rounds it
  return result;
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  const ContextEnd end(context);
  ContextEnds(context);
  const CUresult result = g_real.cuCtxDestroy_v2(context);
  result == CUDA_SUCCESS ? ContextGone(context) : ContextStays(context);
  return result;
}
CUresult cuCtxDestroy(CUcontext context) {
  const ContextEnd end(context);
  ContextEnds(context);
  const CUresult result = g_real.cuCtxDestroy(context);
  result == CUDA_SUCCESS ? ContextGone(context) : ContextStays(context);
  return result;
}
CUresult cuCtxCreate(CUcontext* context, unsigned flags, CUdevice gpu) {
  return Created(context, g_real.cuCtxCreate(context, flags, gpu));
}
CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice gpu) {
  return Created(context, g_real.cuCtxCreate_v2(context, flags, gpu));
}
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count, unsigned flags, CUdevice gpu) {
  return Created(context, g_real.cuCtxCreate_v3(context, affinity, count, flags, gpu));
}
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned flags, CUdevice gpu) {
  return Created(context, g_real.cuCtxCreate_v4(context, params, flags, gpu));
}
// An attached context is destroyed by its last detach.
CUresult cuCtxAttach(CUcontext* context, unsigned flags) {
  const CUresult result = g_real.cuCtxAttach(context, flags);
  if (result == CUDA_SUCCESS && context) CountAttached(*context, 1);
  return result;
}
CUresult cuCtxDetach(CUcontext context) {
  const ContextEnd end(context);
  const bool is_last = CountAttached(context, 0) == 0;
  if (is_last) ContextEnds(context);
  const CUresult result = g_real.cuCtxDetach(context);
  if (result != CUDA_SUCCESS && is_last) ContextStays(context);
  if (result != CUDA_SUCCESS) return result;
  if (is_last) {
    ContextGone(context);
  } else {
    CountAttached(context, -1);
  }
  return result;
}
CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  const CUresult result = Created(context, g_real.cuCtxFromGreenCtx(context, green));
  if (result == CUDA_SUCCESS && context) NoteGreenContext(*context, green);
  return result;
}
CUresult cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc description, CUdevice ordinal, unsigned flags) {
  CUresult result;
  {
    std::optional<PrimaryScope> alone;  // it makes the primary context where that is not active
    if (DeviceByOrdinal(ordinal)) alone.emplace(ordinal);
    result = g_real.cuGreenCtxCreate(green, description, ordinal, flags);
  }
  if (result == CUDA_SUCCESS) {
    AwaitContextEnd(HandleOf(*green));
    NoteGreen(ordinal, *green);
  }
  return result;
}
CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  const std::optional<CUdevice> gpu = DeviceOfGreen(green);
  std::optional<PrimaryScope> alone;
  if (gpu && DeviceByOrdinal(*gpu)) alone.emplace(*gpu);
  const CUcontext context = ContextOfGreen(green);
  const ContextEnd end(context), green_end(HandleOf(green));
  if (context) {
    for (const auto& device : Devices()) device->EndGreenContext(context);
  }
  // A primary context that no caller retains ends with its last green one.
  std::map<CUdevice, CUcontext> primaries;
  for (const auto& device : Devices()) {
    if (gpu && device->ordinal != *gpu) continue;
    const CUcontext primary = CountRetained(device->ordinal, 0) == 0 ? ActivePrimary(device->ordinal) : nullptr;
    if (primary) primaries[device->ordinal] = primary;
  }
  const std::optional<CUdevice> known = ForgetGreen(green);  // the handle may be given again behind the call
  for (const auto& [ordinal, primary] : primaries)
    EndTransfersOf(primary, gpu && !HasGreen(ordinal) && !DeviceByOrdinal(ordinal)->RetainsPrimary());
  const CUresult result = g_real.cuGreenCtxDestroy(green);
  if (result != CUDA_SUCCESS) {
    if (known) NoteGreen(*known, green);
    for (const auto& [ordinal, primary] : primaries) ContextStays(primary);
    return result;
  }
  if (context) {
    ForgetCapturesOf(context);
    ForgetGreenContext(green);
    ForgetStreamCache();
  }
  for (const auto& [ordinal, primary] : primaries)
    ActivePrimary(ordinal) ? ContextStays(primary) : ContextGone(primary);
  return result;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice ordinal) {
  std::optional<PrimaryScope> alone;  // it may be made anew while another thread's release ends it
  if (DeviceByOrdinal(ordinal)) alone.emplace(ordinal);
  const CUresult result = g_real.cuDevicePrimaryCtxRetain(context, ordinal);
  if (result == CUDA_SUCCESS) CountRetained(ordinal, 1);
  return result;
}
// The engine keeps it beyond the application's last release, for memory of pools and reservations.
CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  const CUresult result = g_real.cuDevicePrimaryCtxGetState(ordinal, flags, active);
  if (result != CUDA_SUCCESS || !active || !*active) return result;
  const Device* const device = DeviceByOrdinal(ordinal);
  if (device && HasReleasedAll(*device) && !HasGreen(ordinal)) *active = 0;
  return result;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): the application has found it in this driver
  return DestroyPrimary(ordinal, false, [&] { return g_real.cuDevicePrimaryCtxRelease_v2(ordinal); });
}
CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) {
  return DestroyPrimary(ordinal, false, [&] { return g_real.cuDevicePrimaryCtxRelease(ordinal); });
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  return DestroyPrimary(ordinal, true, [&] { return g_real.cuDevicePrimaryCtxReset_v2(ordinal); });
}
CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) {
  return DestroyPrimary(ordinal, true, [&] { return g_real.cuDevicePrimaryCtxReset(ordinal); });
}

}  // namespace entry
}  // namespace sluice
