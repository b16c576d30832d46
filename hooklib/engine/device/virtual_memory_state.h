// State of virtual_memory.h's two files: handles and reservations.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_VIRTUAL_MEMORY_STATE_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_VIRTUAL_MEMORY_STATE_H_

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/virtual_memory.h"

namespace sluice::virtual_memory {

enum class Form : uint8_t { kNone, kManaged, kUnmanaged };

// Physical memory of a device, as cuMemCreate makes it.
struct Physical {
  Handle value = 0;  // as the application knows it
  Handle real = 0;   // the driver's; 0: none. Holds one of the driver's references for each of `references`.
  uint64_t bytes = 0;
  Device* device = nullptr;
  CUmemAllocationProp properties{};
  Form form = Form::kNone;
  bool is_charged = true;
  int references = 1;  // the application's, by cuMemCreate and cuMemRetainAllocationHandle
  int mappings = 0;    // memory stays allocated while it is mapped, also after the handle's release
  // Of managed form: where its contents are, mapped or kept. They are `copy` while `at` is 0.
  memory::Va at = 0;
  uint64_t contents_bytes = 0;
  std::unique_ptr<char[]> copy;
};

struct Mapping {
  Physical* physical;
  uint64_t bytes;
  std::vector<std::pair<CUdevice, CUmemAccess_flags>> access;
};

// A reservation in managed form.
struct Reserved {
  memory::Extent range;
  Device* device = nullptr;
  CUcontext context = nullptr;
  std::map<memory::Va, Mapping> mappings;
  std::map<memory::Va, Physical*> kept;  // contents of handles that are not mapped now
  bool is_free = false;                  // the application freed it: it is kept for contents, or for the next one
  bool is_gone = false;                  // its memory went with its context
};

struct UnmanagedReservation {
  uint64_t bytes;
  const char* reason;       // null: not known
  uint64_t reserved_bytes;  // as the driver knows it
};

// The driver reserves less than 26 MiB at no address where managed memory was (an H100, driver 580). A reservation that
// becomes unmanaged keeps its address, so it has so many bytes of addresses in either form.
inline uint64_t AddressBytes(uint64_t bytes) { return std::max(bytes, uint64_t{32} << 20); }

extern std::atomic<memory::Va> g_lowest, g_highest;  // all addresses that were ever reserved in managed form
// Guards the state. Taken before the devices' locks, and released (MutexUnlock) where a call waits for the GPU: other
// threads' copies ask for mappings and rights, and the GPU's work may wait for these threads.
extern Mutex g_mutex;
// Held by a call that changes the state, from its begin to its end, also while it waits for the GPU.
// Guards no data: g_mutex guards the state, and is released in such a wait.
extern Mutex g_changes SLUICE_ACQUIRED_BEFORE(g_mutex);
struct State {
  std::unordered_map<Handle, std::unique_ptr<Physical>> handles;  // by value
  std::unordered_map<Handle, Physical*> by_real;
  std::map<memory::Va, Reserved> reservations;
  std::map<memory::Va, UnmanagedReservation> unmanaged;
  std::map<memory::Va, Physical*> unmanaged_mappings;
  std::deque<memory::Va> idle;  // free reservations that the next of their size takes; oldest first
  uint64_t idle_bytes = 0;
};
State& TheState() SLUICE_REQUIRES(g_mutex);

// Primary contexts that are released, and arenas that are returned, once the lock is released.
class Settlement {
 public:
  Settlement() = default;
  ~Settlement();
  Settlement(const Settlement&) = delete;
  Settlement& operator=(const Settlement&) = delete;
  std::vector<Device*> released;
};

// Whether nothing uses the application's memory, and nothing will before the calling thread goes on. Waits for queued
// work, for two seconds at most: it may wait for this thread. `beside_threads`: others queue nothing more.
bool IsQuiet(bool beside_threads = false) SLUICE_REQUIRES(g_mutex);
// A reservation of the driver's that is not at its hint goes there, if the address is free. Returns the size that the
// driver knows; 0: the reservation was lost on the way.
uint64_t MoveToHint(CUdeviceptr* pointer, uint64_t bytes, CUdeviceptr hint);
// Gives idle reservations there back to the driver now, so that it can give out their addresses; not where it would
// wait for the GPU.
void FreeIdleIn(memory::Extent range) SLUICE_REQUIRES(g_mutex);
Physical* FindPhysical(Handle handle) SLUICE_REQUIRES(g_mutex);
// One of the engine's own values whose memory is gone: driver 580 crashes in calls with a value that it never gave.
bool IsEnded(Handle handle) SLUICE_REQUIRES(g_mutex);
Reserved* ReservedAt(memory::Va va) SLUICE_REQUIRES(g_mutex);         // null: none in managed form
bool HasReservations(const Device* device) SLUICE_REQUIRES(g_mutex);  // so its primary context is retained
// One line a reason.
void LogUnmanaged(const Device& device, const char* reason);
CUresult Refuse(const char* reason);
CUresult MakeUnmanaged(Physical* physical, const char* reason) SLUICE_REQUIRES(g_mutex);
// Frees the physical memory if nothing refers to it any more.
void DestroyIfUnused(Physical* physical, Settlement* settlement) SLUICE_REQUIRES(g_mutex);
void DropContents(Physical* physical, Settlement* settlement) SLUICE_REQUIRES(g_mutex);
// The application has freed it, and no contents are in it.
void Retire(Reserved* reserved, Settlement* settlement) SLUICE_REQUIRES(g_mutex);
// Of the managed reservation, at the address that the application knows. False: it holds something, or the driver has
// not given the address again, and the reservation is gone.
bool TurnUnmanaged(Reserved* reserved, const char* reason, Settlement* settlement) SLUICE_REQUIRES(g_mutex);
// With everything that is mapped in it (virtual_memory_conversion.cc). Not CUDA_SUCCESS: nothing has changed, unless
// the driver has not given the address again. `reserved` is invalid afterwards.
CUresult ConvertToUnmanaged(Reserved* reserved, const char* reason, Settlement* settlement, bool beside_threads = false)
    SLUICE_REQUIRES(g_mutex);
// A handle of any form, with its contents, and with the reservation that it is mapped in.
CUresult ConvertToUnmanaged(Physical* physical, const char* reason, Settlement* settlement) SLUICE_REQUIRES(g_mutex);
CUresult MoveToHost(Reserved* reserved, Physical* physical)
    SLUICE_REQUIRES(g_mutex);  // of contents that are kept there

}  // namespace sluice::virtual_memory

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_VIRTUAL_MEMORY_STATE_H_
