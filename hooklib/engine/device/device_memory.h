// The memory of a device: allocations, VMM memory in managed form, and unmanaged memory.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_MEMORY_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_MEMORY_H_

#include <optional>
#include <vector>

#include "hooklib/engine/device/device_transfers.h"

namespace sluice {

// Why an allocation was refused; the caller returns CUDA's out-of-memory code in each case.
enum class Refusal : uint8_t { kNone, kLimit, kHost, kManagedLimit, kDriver };

class DeviceMemory : public DeviceTransfers {
 public:
  // --- allocation (device_allocation.cc). `stream`: in whose order (cuMemAllocAsync, cuMemFreeAsync) ---
  CUresult Allocate(uint64_t bytes, bool app_managed, CUdeviceptr* result,
                    memory::StreamId stream = 0) SLUICE_TAKES_DEVICE_LOCK;
  // Nothing: no allocation of the engine's, the driver's to free. Never waits where `stream` is given.
  // `is_async`: in the order of a stream, which is `stream` if it is this device's, else 0.
  std::optional<CUresult> Free(CUdeviceptr pointer, memory::StreamId stream, bool is_async) SLUICE_TAKES_DEVICE_LOCK;
  // Gives arenas that are wholly free back to the driver, whose cuMemFree waits for all work of the arena's context. So
  // they are those of contexts without work, and of `awaited`, for which the application's own call waits. Without any
  // lock.
  void ReturnArenas(CUcontext awaited = nullptr) SLUICE_TAKES_DEVICE_LOCK;
  // The same, where a pool may keep less than before.
  void ReturnKept() SLUICE_TAKES_DEVICE_LOCK;
  // The application's allocator reports bytes of a block as taken, or (negative) as freed to its cache.
  void Report(CUdeviceptr pointer, int64_t bytes) SLUICE_TAKES_DEVICE_LOCK;
  void MarkCaptured(memory::Va va) SLUICE_TAKES_DEVICE_LOCK;
  // The application gave advice for a range of one allocation: it ends with the allocation.
  void NoteAdvice(memory::Extent range, CUmem_advise advice, CUmemLocation location) SLUICE_TAKES_DEVICE_LOCK;
  bool ExceedsManagedLimit(uint64_t bytes) SLUICE_TAKES_DEVICE_LOCK;  // SLUICE_MANAGED_LIMIT
  bool HoldsManaged() SLUICE_TAKES_DEVICE_LOCK;  // also memory that no allocation uses, but the driver has not back

  // --- VMM memory in managed form (device_mapped.cc). `context` owns the reservation. A range is one mapping, and in
  // whole chunks. ---
  // Charges for physical memory as for an allocation of so many bytes, and releases that.
  Refusal ChargeHandle(uint64_t bytes) SLUICE_TAKES_DEVICE_LOCK;
  void ReleaseHandle(uint64_t bytes) SLUICE_TAKES_DEVICE_LOCK;
  // Managed memory of so many bytes, of which nothing is populated; `*result` is its address. With `context` current.
  Refusal Reserve(CUcontext context, uint64_t bytes, memory::Va* result) SLUICE_TAKES_DEVICE_LOCK;
  // Of a reservation without mappings and contents. Its memory goes back to the driver with other arenas (`at_once`:
  // now, and the call may wait for the GPU). False: the driver refused. `gone`: it went with its context.
  bool Unreserve(memory::Va base, bool at_once, bool gone = false) SLUICE_TAKES_DEVICE_LOCK;
  // `has_contents`: those that Unmap kept at this place. With the owner's context current.
  void Map(memory::Extent range, bool has_contents) SLUICE_TAKES_DEVICE_LOCK;
  void Unmap(memory::Extent range, bool keeps_contents) SLUICE_TAKES_DEVICE_LOCK;
  void EndContents(memory::Extent range) SLUICE_TAKES_DEVICE_LOCK;  // that Unmap kept
  // The parts of the range whose contents may matter: a copy of the others would read discarded memory.
  std::vector<memory::Extent> WrittenParts(memory::Extent range) SLUICE_TAKES_DEVICE_LOCK;
  bool IsOwnedByPrimary(CUcontext context) const;  // whether the context is the device's primary one

  // --- unmanaged memory (device_unmanaged.cc) ---
  // False: the budget has no room for it, and none is on its way.
  bool ReserveUnmanaged(uint64_t bytes) SLUICE_TAKES_DEVICE_LOCK;
  // A graph whose nodes allocate so much at a time is about to be instantiated. False as above.
  bool ReserveGraphMemory(uint64_t bytes, uint64_t left_by_others) SLUICE_TAKES_DEVICE_LOCK;
  void CountGraphMemory() SLUICE_TAKES_DEVICE_LOCK;  // memory that the driver keeps for such graphs now
  // A limit of the context changed by so many bytes of device memory; `reserved` of them are counted already.
  void NoteLimit(CUcontext handle, int64_t change, uint64_t reserved) SLUICE_TAKES_DEVICE_LOCK;

 protected:
  using DeviceTransfers::DeviceTransfers;
  // A range of device memory for a small request, which is never evicted; nothing where it has to be managed memory.
  std::optional<memory::Va> AllocateUnevictable(Context* context, uint64_t bytes,
                                                memory::StreamId stream) SLUICE_DEVICE_LOCKED;
  Refusal Grow(Context* context, uint64_t bytes) SLUICE_DEVICE_LOCKED;
  // Whether so many bytes may be allocated; then they are charged to the container. May wait, without the lock.
  Refusal Admit(uint64_t bytes) SLUICE_DEVICE_LOCKED;
  Reservation* ReservationOf(memory::Va va) SLUICE_DEVICE_LOCKED;
  std::vector<memory::Extent> AddChunks(Reservation* reservation, memory::Extent range) SLUICE_DEVICE_LOCKED;
  bool Populate(Context* context, const std::vector<memory::Extent>& runs) SLUICE_DEVICE_LOCKED;
  void PinMappings(memory::Extent range) SLUICE_DEVICE_LOCKED;
  std::optional<memory::Va> AllocateWhenFreed(Context* context, uint64_t bytes, bool may_block) SLUICE_DEVICE_LOCKED;
  std::optional<memory::Va> AwaitFreed(Context* context, uint64_t bytes) SLUICE_DEVICE_LOCKED;
  void TakeSurplusArenas(Context* context, bool all) SLUICE_DEVICE_LOCKED;
  // All of a context without work; false: it has work. Without the lock for a while.
  bool ReturnFreeArenas(Context* context) SLUICE_DEVICE_LOCKED;
  // Before an arena for the request is made, of the size that it returns: kept memory of other sizes must not take a
  // program over its budget that fits.
  uint64_t ReturnArenasBefore(Context* context, uint64_t bytes) SLUICE_DEVICE_LOCKED;
  // The driver has freed the arena with its context, whose list of arenas the caller changes.
  void ForgetArena(memory::Extent arena) SLUICE_DEVICE_LOCKED;
  void ForgetUnevictableArena(memory::Extent arena) SLUICE_DEVICE_LOCKED;
  // Behind the driver's call that gave the range out. It may lie in arenas of a context, perhaps on another GPU, that
  // the driver has ended and the engine not yet: waits for that, without the lock, for two seconds at most.
  void AwaitEnds(memory::Extent range) SLUICE_DEVICE_LOCKED;
  // One of those that ReturnArenas may free now.
  std::optional<FreeArena> TakeFreeArena(CUcontext awaited) SLUICE_TAKES_DEVICE_LOCK;
  void EndAdvice(memory::Va base) SLUICE_DEVICE_LOCKED;  // of the allocation that begins there
  // Waits, without the lock, until `fits()` holds. This process's share may be on its way: the agent has lent it out,
  // or other processes have not given it up yet. Whether it came.
  // After 3 s it gives up, unless `is_patient()` holds.
  template <typename F, typename G>
  bool AwaitShare(uint64_t bytes, F fits, G is_patient) SLUICE_DEVICE_LOCKED;
  uint64_t HostAllowance() SLUICE_DEVICE_LOCKED;  // bytes of host memory that may still be used
  void LogRefusal(Refusal refusal, uint64_t bytes) SLUICE_DEVICE_LOCKED;
  void SetLive(memory::Extent range, bool alive, memory::Extent owner = {}) SLUICE_DEVICE_LOCKED;  // RemoveLive's owner
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_MEMORY_H_
