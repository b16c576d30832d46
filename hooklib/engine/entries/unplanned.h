// Work of the application's whose extents are not planned.
#ifndef SLUICE_HOOKLIB_ENGINE_ENTRIES_UNPLANNED_H_
#define SLUICE_HOOKLIB_ENGINE_ENTRIES_UNPLANNED_H_

#include <functional>

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// Queues it by `issue`: missing pages are faulted in. It must be known to be queued, so that no range is reused before
// it is done. Thread-safe, as below. An error is the driver's.
CUresult QueueUnplanned(CUstream handle, bool per_thread, const std::function<CUresult()>& issue);
// Whether the stream is captured. Then launches of the graph write (graph_entries.cc), not the call.
bool IsCaptured(CUstream handle, bool per_thread);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_ENTRIES_UNPLANNED_H_
