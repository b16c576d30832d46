// Memory movement as the driver of this machine offers it: batched calls where it has them, single ones where it has
// not.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_DRIVER_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_DRIVER_H_

#include <vector>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/memory/types.h"

namespace sluice {

// All are queued on `stream`; the first error is returned, and the rest is still tried (a page that did not move is
// slow, never wrong).
CUresult FetchRuns(const std::vector<memory::Extent>& runs, CUdevice device, CUstream stream);
CUresult EvictRuns(const std::vector<memory::Extent>& runs, CUstream stream);
// The GPU maps the ranges wherever they lie: host memory is used over the link instead of moved by faults. Not queued:
// done when it returns (31 ms a GiB of host memory; later it waits for transfers under way).
void AdviseAccessedBy(const std::vector<memory::Extent>& runs, CUdevice device);
// They fault again.
void UnadviseAccessedBy(const std::vector<memory::Extent>& runs, CUdevice device);
// Read-mostly advice: from now on what is fetched is a duplicate of the host's copy. Withdrawn: the duplicates are
// gone, and the host's copies are all there is. Not queued: done when it returns. False where the driver refused.
bool AdviseReadMostly(const std::vector<memory::Extent>& runs, CUdevice device);
void WithdrawReadMostly(const std::vector<memory::Extent>& runs, CUdevice device);
// What `peers` use of `owner`'s memory stays with it and is mapped there.
void AdvisePeers(memory::Extent range, CUdevice owner, const std::vector<CUdevice>& peers);
// Contents are dead from here on in the order of `stream`, which must not be the legacy one. False where the driver
// cannot.
bool QueueDiscard(const std::vector<memory::Extent>& runs, CUstream stream);
// Contents are dead and lie in host memory: the fetch that brings the range back will move nothing. Returns when it is
// done. False where the driver cannot (before 580): contents stay.
bool DiscardRuns(const std::vector<memory::Extent>& runs, CUstream stream);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_DRIVER_H_
