#include "hooklib/engine/device/failures.h"

#include <map>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"

namespace sluice {

std::atomic<bool> g_any_failed{false};

namespace {
Mutex g_mutex;  // no other lock is taken inside
std::map<CUcontext, CUresult>& Failures() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::map<CUcontext, CUresult>();
  return map;
}
}  // namespace

bool EndsContext(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return false;
  }
}

void NoteError(CUcontext context, CUresult result) {
  if (!context || !EndsContext(result)) return;
  MutexLock lock(g_mutex);
  Failures().emplace(context, result);
  g_any_failed = true;
}

CUresult FailureOf(CUcontext context) {
  if (!g_any_failed.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  MutexLock lock(g_mutex);
  const auto it = Failures().find(context);
  return it == Failures().end() ? CUDA_SUCCESS : it->second;
}

CUresult FindCurrentFailure() {
  CUcontext context = nullptr;
  return g_real.cuCtxGetCurrent && g_real.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? FailureOf(context) : CUDA_SUCCESS;
}

void ForgetFailure(CUcontext context) {
  MutexLock lock(g_mutex);
  Failures().erase(context);
  g_any_failed = !Failures().empty();
}

}  // namespace sluice
