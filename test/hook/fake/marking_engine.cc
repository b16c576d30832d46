// An engine that only marks: a marked entry returns the driver's result plus 100000, so a program sees whether its call
// was hooked. The dispatch and the start are those of the real engine.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "hooklib/dispatch/caller.h"
#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/libraries/library_calls.h"

namespace {
std::atomic<int> reports{0};
CUresult Mark(CUresult result) { return static_cast<CUresult>(static_cast<int>(result) + 100000); }
}  // namespace

namespace sluice {

bool ShareOf(const char* uuid, std::uint64_t, Share* share) {
  *share = {.total = 1000, .used = 300};
  return std::strcmp(uuid, "GPU-ours") == 0;
}
int ShareUtilization(const char* uuid) { return std::strcmp(uuid, "GPU-ours") == 0 ? 12 : -1; }

void OnAllocatorReport(void*, long size, signed char, signed char) { reports += static_cast<int>(size); }

namespace {
int MarkedExecute(void* handle, void* plan, void* variant) {
  auto* const real = reinterpret_cast<int (*)(void*, void*, void*)>(LibraryReal());
  return real(handle, plan, variant) + 100000;
}
}  // namespace

void* LibraryEntry(const char* symbol) {
  return std::strcmp(symbol, "cudnnBackendExecute") == 0 ? reinterpret_cast<void*>(&MarkedExecute) : nullptr;
}

namespace entry {

CUresult cuInit(unsigned flags) { return Mark(g_real.cuInit(flags)); }
CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  if (CalledFromUnmanagedLibrary(Caller())) return static_cast<CUresult>(200000);
  return Mark(g_real.cuMemAlloc_v2(pointer, bytes));
}
CUresult cuMemFree_v2(CUdeviceptr pointer) { return Mark(g_real.cuMemFree_v2(pointer)); }
CUresult cuMemGetInfo_v2(size_t* free, size_t* total) { return Mark(g_real.cuMemGetInfo_v2(free, total)); }
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes) {
  return Mark(g_real.cuMemcpyHtoD_v2_ptds(to, from, bytes));
}
CUresult cuStreamSynchronize(CUstream stream) { return Mark(g_real.cuStreamSynchronize(stream)); }
CUresult cuStreamSynchronize_ptsz(CUstream stream) { return Mark(g_real.cuStreamSynchronize_ptsz(stream)); }
// It has arguments on the stack as well: the trampoline's slow path must keep them all.
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void** params, void** extra) {
  const bool kept = f == reinterpret_cast<CUfunction>(1) && gx == 2 && gy == 3 && gz == 4 && bx == 5 && by == 6 &&
                    bz == 7 && shared == 8 && stream == reinterpret_cast<CUstream>(9) &&
                    params == reinterpret_cast<void**>(10) && extra == reinterpret_cast<void**>(11);
  if (!kept) return CUDA_ERROR_INVALID_VALUE;
  return Mark(g_real.cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));
}
CUresult cuMemAdvise(CUdeviceptr, size_t, CUmem_advise, CUdevice_v1) {
  return static_cast<CUresult>(reports.load());  // a test reads the reported bytes by this call
}

}  // namespace entry
}  // namespace sluice
