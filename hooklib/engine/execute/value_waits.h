// Waits of the application's streams for values in memory that the engine moves. The driver refuses managed memory
// there. So the stream waits for a cell of the engine's in host memory. Once the stream has come to the wait, which it
// writes into a cell beside that, a thread of the engine's reads the application's word, and raises the first cell when
// the word holds the awaited value.
//
// The word is read by copies, on a stream of the engine's own: a read by the CPU would move its page. The CPU reads it
// where the copy waits for a lock of the driver's.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_VALUE_WAITS_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_VALUE_WAITS_H_

#include <atomic>
#include <cstdint>

#include "hooklib/engine/device/streams.h"
#include "hooklib/memory/types.h"

namespace sluice::value_waits {

struct Awaited {
  CUdeviceptr address = 0;
  uint64_t value = 0;
  unsigned flags = 0;  // CUstreamWaitValue_flags
  bool is_wide = false;
};

// Queues the wait on `stream`, which is not captured. Thread-safe; takes no lock of the device's. An error is the
// driver's, or CUDA_ERROR_NOT_SUPPORTED: this GPU or process cannot wait so.
CUresult Queue(const Stream& stream, CUstream handle, bool per_thread, const Awaited& awaited);

extern std::atomic<uint32_t> g_pending;  // waits that are not over
bool IsAwaitedIn(memory::Extent range);
// Whether some stream waits for a value in the range: its contents may not be discarded.
inline bool MayBeAwaitedIn(memory::Extent range) {
  return g_pending.load(std::memory_order_acquire) != 0 && IsAwaitedIn(range);
}
// The context is gone, and its waits with it.
void ForgetContext(CUcontext context);

}  // namespace sluice::value_waits

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_VALUE_WAITS_H_
