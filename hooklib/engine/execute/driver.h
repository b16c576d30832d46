// Memory movement as the driver of this machine offers it: batched calls where it has them, else single ones.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_DRIVER_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_DRIVER_H_

#include <span>
#include <vector>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/memory/types.h"

namespace sluice {

// Memory of a context whose end is under way (`key`: any one pointer a context) is left out by all calls below, and by
// eviction_threads: the driver frees it at some moment, and may give the addresses out again. Thread-safe.
void BarRanges(const void* key, const std::vector<memory::Extent>& ranges);
void UnbarRanges(const void* key);
bool AnyBarred();
void AwaitUnbarred(memory::Extent range);  // for two seconds at most
// The parts of the runs that are not barred.
class AllowedRuns {
 public:
  explicit AllowedRuns(std::span<const memory::Extent> runs);
  std::span<const memory::Extent> operator*() const { return runs_; }

 private:
  std::span<const memory::Extent> runs_;
  std::vector<memory::Extent> kept_;
};

// Both queue all runs on `stream`. The first error is returned, and the other runs are still tried: a page that did not
// move is slow, never wrong.
CUresult FetchRuns(std::span<const memory::Extent> runs, CUdevice device, CUstream stream);
CUresult EvictRuns(std::span<const memory::Extent> runs, CUstream stream);
// The GPU maps the ranges wherever their pages are: host memory is used over the link instead of moved by faults. Not
// queued: done when it returns (31 ms a GiB of host memory; with transfers under way it waits for these).
void AdviseAccessedBy(const std::vector<memory::Extent>& runs, CUdevice device);
// The ranges fault again.
void UnadviseAccessedBy(const std::vector<memory::Extent>& runs, CUdevice device);
// Read-mostly advice: from now on a fetched page is a duplicate of the host's copy. Withdrawn: the duplicates are
// dropped, and the host's copies remain. Not queued: done when it returns. False where the driver refused.
bool AdviseReadMostly(const std::vector<memory::Extent>& runs, CUdevice device);
void WithdrawReadMostly(const std::vector<memory::Extent>& runs, CUdevice device);
// Advice that an application gave, so that it can be taken back.
struct GivenAdvice {
  memory::Extent range;
  CUmem_advise advice;
  CUmemLocation location;
};
// Whether the advice is of a kind that stays until it is unset.
bool StaysUntilUnset(CUmem_advise advice);
void Unset(const GivenAdvice& given);
// Pages of the range stay with `owner` and are mapped by `peers`.
void AdvisePeers(memory::Extent range, CUdevice owner, const std::vector<CUdevice>& peers);
// Contents are undefined from some time after `stream` comes to it on, which must not be the legacy one: see
// discards.h. False where the driver cannot discard (before 580).
bool QueueDiscard(std::span<const memory::Extent> runs, CUstream stream);
// The ranges are populated empty on the GPU, in the order of `stream`, which must not be the legacy one.
CUresult RepopulateRuns(std::span<const memory::Extent> runs, CUdevice device, CUstream stream);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_DRIVER_H_
