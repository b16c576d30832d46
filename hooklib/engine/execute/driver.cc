#include "hooklib/engine/execute/driver.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <utility>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"

namespace sluice {

namespace {

std::atomic<bool> g_any_barred{false};
Mutex g_barred_mutex;  // no other lock is taken inside
Condition& Unbarred() {
  static auto& condition = *new Condition;
  return condition;
}
std::map<const void*, std::vector<memory::Extent>>& Barred() SLUICE_REQUIRES(g_barred_mutex) {
  static auto& barred = *new std::map<const void*, std::vector<memory::Extent>>();
  return barred;
}

bool IsBarred(memory::Extent range) SLUICE_REQUIRES(g_barred_mutex) {
  for (const auto& [key, ranges] : Barred()) {
    for (const memory::Extent& barred : ranges) {
      if (range.base < barred.end() && barred.base < range.end()) return true;
    }
  }
  return false;
}

struct Batch {
  explicit Batch(std::span<const memory::Extent> runs) {
    for (const memory::Extent& run : runs) {
      pointers.push_back(run.base);
      sizes.push_back(run.bytes);
    }
  }
  std::vector<CUdeviceptr> pointers;
  std::vector<size_t> sizes;
};

CUresult PrefetchRuns(std::span<const memory::Extent> all, CUmemLocation location, CUstream stream) {
  const AllowedRuns allowed(all);
  const std::span<const memory::Extent> runs = *allowed;
  if (runs.empty()) return CUDA_SUCCESS;
  if (runs.size() > 1 && g_real.cuMemPrefetchBatchAsync) {
    Batch batch(runs);
    size_t first = 0;
    return g_real.cuMemPrefetchBatchAsync(batch.pointers.data(), batch.sizes.data(), runs.size(), &location, &first, 1,
                                          0, stream);
  }
  CUresult result = CUDA_SUCCESS;
  for (const memory::Extent& run : runs) {
    CUresult one = CUDA_ERROR_NOT_SUPPORTED;
    if (g_real.cuMemPrefetchAsync_v2) {
      one = g_real.cuMemPrefetchAsync_v2(run.base, run.bytes, location, 0, stream);
    } else if (g_real.cuMemPrefetchAsync) {  // before 12.2
      one = g_real.cuMemPrefetchAsync(
          run.base, run.bytes, location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU, stream);
    }
    if (result == CUDA_SUCCESS) result = one;
  }
  return result;
}

bool AdviseWhole(memory::Extent range, CUmem_advise advice, CUdevice device) {
  if (g_real.cuMemAdvise_v2) {
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
    return g_real.cuMemAdvise_v2(range.base, range.bytes, advice, location) == CUDA_SUCCESS;
  }
  return g_real.cuMemAdvise && g_real.cuMemAdvise(range.base, range.bytes, advice, device) == CUDA_SUCCESS;
}

bool Advise(memory::Extent range, CUmem_advise advice, CUdevice device) {
  if (!AnyBarred()) return AdviseWhole(range, advice, device);
  const AllowedRuns allowed({&range, 1});
  bool all = true;
  for (const memory::Extent& part : *allowed) all &= AdviseWhole(part, advice, device);
  return all;
}

CUmemLocation HostLocation() {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_HOST;
  return location;
}

}  // namespace

void BarRanges(const void* key, const std::vector<memory::Extent>& ranges) {
  MutexLock lock(g_barred_mutex);
  Barred()[key] = ranges;
  g_any_barred.store(true, std::memory_order_release);
}
void UnbarRanges(const void* key) {
  MutexLock lock(g_barred_mutex);
  Barred().erase(key);
  g_any_barred.store(!Barred().empty(), std::memory_order_release);
  Unbarred().NotifyAll();
}

bool AnyBarred() { return g_any_barred.load(std::memory_order_acquire); }

void AwaitUnbarred(memory::Extent range) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  MutexLock lock(g_barred_mutex);
  while (IsBarred(range) && std::chrono::steady_clock::now() < end) Unbarred().WaitUntil(g_barred_mutex, end);
}

AllowedRuns::AllowedRuns(std::span<const memory::Extent> runs) : runs_(runs) {
  if (!AnyBarred()) return;
  kept_.assign(runs.begin(), runs.end());
  MutexLock lock(g_barred_mutex);
  for (const auto& [key, ranges] : Barred()) {
    for (const memory::Extent& barred : ranges) {
      std::vector<memory::Extent> outside;  // a run may reach over the arenas of several contexts
      for (const memory::Extent& run : kept_) {
        if (run.base < barred.base) outside.push_back({run.base, std::min(run.end(), barred.base) - run.base});
        if (barred.end() < run.end()) {
          const memory::Va begin = std::max(run.base, barred.end());
          outside.push_back({begin, run.end() - begin});
        }
      }
      kept_ = std::move(outside);
    }
  }
  runs_ = kept_;
}

CUresult FetchRuns(std::span<const memory::Extent> runs, CUdevice device, CUstream stream) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return PrefetchRuns(runs, location, stream);
}

CUresult EvictRuns(std::span<const memory::Extent> runs, CUstream stream) {
  return PrefetchRuns(runs, HostLocation(), stream);
}

void AdviseAccessedBy(const std::vector<memory::Extent>& runs, CUdevice device) {
  for (const memory::Extent& run : runs) Advise(run, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
}

void UnadviseAccessedBy(const std::vector<memory::Extent>& runs, CUdevice device) {
  for (const memory::Extent& run : runs) Advise(run, CU_MEM_ADVISE_UNSET_ACCESSED_BY, device);
}

bool AdviseReadMostly(const std::vector<memory::Extent>& runs, CUdevice device) {
  bool all = true;
  for (const memory::Extent& run : runs) all &= Advise(run, CU_MEM_ADVISE_SET_READ_MOSTLY, device);
  return all;
}

void WithdrawReadMostly(const std::vector<memory::Extent>& runs, CUdevice device) {
  for (const memory::Extent& run : runs) Advise(run, CU_MEM_ADVISE_UNSET_READ_MOSTLY, device);
}

void AdvisePeers(memory::Extent range, CUdevice owner, const std::vector<CUdevice>& peers) {
  Advise(range, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, owner);
  for (const CUdevice peer : peers) Advise(range, CU_MEM_ADVISE_SET_ACCESSED_BY, peer);
}

bool StaysUntilUnset(CUmem_advise advice) {
  return advice == CU_MEM_ADVISE_SET_READ_MOSTLY || advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
         advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
}

void Unset(const GivenAdvice& given) {
  const auto opposite = static_cast<CUmem_advise>(given.advice + 1);  // cuda.h numbers them in pairs
  static_assert(CU_MEM_ADVISE_UNSET_READ_MOSTLY == CU_MEM_ADVISE_SET_READ_MOSTLY + 1 &&
                CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION == CU_MEM_ADVISE_SET_PREFERRED_LOCATION + 1 &&
                CU_MEM_ADVISE_UNSET_ACCESSED_BY == CU_MEM_ADVISE_SET_ACCESSED_BY + 1);
  if (g_real.cuMemAdvise_v2) {
    g_real.cuMemAdvise_v2(given.range.base, given.range.bytes, opposite, given.location);
  } else if (g_real.cuMemAdvise) {
    const bool is_device = given.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    g_real.cuMemAdvise(given.range.base, given.range.bytes, opposite, is_device ? given.location.id : CU_DEVICE_CPU);
  }
}

bool QueueDiscard(std::span<const memory::Extent> all, CUstream stream) {
  if (all.empty() || !g_real.cuMemDiscardBatchAsync) return false;
  const AllowedRuns allowed(all);
  const std::span<const memory::Extent> runs = *allowed;
  if (runs.empty()) return true;
  Batch batch(runs);
  return g_real.cuMemDiscardBatchAsync(batch.pointers.data(), batch.sizes.data(), runs.size(), 0, stream) ==
         CUDA_SUCCESS;
}

CUresult RepopulateRuns(std::span<const memory::Extent> all, CUdevice device, CUstream stream) {
  if (!g_real.cuMemDiscardAndPrefetchBatchAsync) return CUDA_ERROR_NOT_SUPPORTED;
  const AllowedRuns allowed(all);
  const std::span<const memory::Extent> runs = *allowed;
  if (runs.empty()) return CUDA_SUCCESS;
  Batch batch(runs);
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  size_t first = 0;
  return g_real.cuMemDiscardAndPrefetchBatchAsync(batch.pointers.data(), batch.sizes.data(), runs.size(), &location,
                                                  &first, 1, 0, stream);
}

}  // namespace sluice
