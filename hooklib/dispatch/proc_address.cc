// cuGetProcAddress in its three exported forms. The driver answers first: versions, status and known names are its own.
// Only a pointer that it returned is replaced, by the entry of the same signature.
#include <algorithm>

#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/dispatch/table.h"

namespace sluice {
namespace {

constexpr int kTableVersion = 13050;  // the toolkit whose cudaTypedefs.h hooks.def was compared with
static_assert(CUDA_VERSION / 1000 >= kTableVersion / 1000);  // newer declarations: cuda_newer.h

template <typename Ask>
void Replace(const char* symbol, void** pfn, int version, bool per_thread, Ask ask_driver) {
  if (symbol == nullptr || pfn == nullptr || *pfn == nullptr) return;
  if (void* const exact = EntryForPointer(*pfn)) {
    *pfn = exact;
    return;
  }
  // A driver may return another address than its exported symbol's. Then the table decides. A program built for a newer
  // toolkit than the table's may have got a signature that the table does not know; that stays the driver's.
  if (version > kTableVersion) {
    void* known = nullptr;
    if (ask_driver(kTableVersion, &known) != CUDA_SUCCESS || known != *pfn) {
      if (IsIntercepted(symbol) || !IsExamined(symbol)) NoteNewerEntry(symbol, version);
      return;
    }
  }
  if (void* const chosen = EntryForRequest(symbol, std::min(version, kTableVersion), per_thread)) *pfn = chosen;
}

}  // namespace

namespace entry {

CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  if (g_real.cuGetProcAddress == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult result = g_real.cuGetProcAddress(symbol, pfn, cudaVersion, flags);
  if (result == CUDA_SUCCESS) {
    Replace(symbol, pfn, cudaVersion, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0,
            [&](int version, void** out) { return g_real.cuGetProcAddress(symbol, out, version, flags); });
  }
  return result;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolStatus) {
  if (g_real.cuGetProcAddress_v2 == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult result = g_real.cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
  if (result == CUDA_SUCCESS) {
    Replace(symbol, pfn, cudaVersion, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0,
            [&](int version, void** out) { return g_real.cuGetProcAddress_v2(symbol, out, version, flags, nullptr); });
  }
  return result;
}

CUresult cuGetProcAddress_v2_ptsz(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult* symbolStatus) {
  if (g_real.cuGetProcAddress_v2_ptsz == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult result = g_real.cuGetProcAddress_v2_ptsz(symbol, pfn, cudaVersion, flags, symbolStatus);
  if (result == CUDA_SUCCESS) {
    Replace(symbol, pfn, cudaVersion, (flags & CU_GET_PROC_ADDRESS_LEGACY_STREAM) == 0, [&](int version, void** out) {
      return g_real.cuGetProcAddress_v2_ptsz(symbol, out, version, flags, nullptr);
    });
  }
  return result;
}

}  // namespace entry
}  // namespace sluice
