// The engine's side of the seam with the shim: binds the driver and returns entries.
#include <dlfcn.h>

#include <cstdio>
#include <mutex>

#include "hooklib/dispatch/driver_copies.h"
#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/dispatch/table.h"
#include "hooklib/libraries/library_calls.h"
#include "hooklib/nvml/nvml_view.h"
#include "hooklib/shim/engine_abi.h"
#include "sluice/version.h"

// Null where the engine was loaded without the shim (unit tests).
extern "C" __attribute__((weak, visibility("default"))) sluice_shim_state sluice_shim_link;

namespace sluice {
namespace {

sluice_shim_api shim;

void* Lookup(void* handle, const char* name) { return shim.dlsym(handle, name); }

// A handle of the library that holds `address`, which is loaded; null for the main program.
void* HandleOf(void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return nullptr;
  return shim.dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
}

void* CudaEntry(unsigned index, void* real) { return CudaEntryOf(index, real); }

void* NvmlEntry(unsigned index, void* real) {
  if (!NvmlBound()) {
    void* handle = real != nullptr ? HandleOf(real) : nullptr;
    if (handle == nullptr) handle = shim.dlopen("libnvidia-ml.so.1", RTLD_NOLOAD | RTLD_LAZY);
    if (handle != nullptr) NvmlBind(&Lookup, handle);
  }
  void* const driver = NvmlRealOf(index);
  if (real == nullptr) return driver != nullptr ? NvmlEntryOf(index) : nullptr;
  return driver == real ? NvmlEntryOf(index) : real;
}

uint64_t TableHash() {
  uint64_t hash = 0;
  for (std::size_t i = 0; i < HookCount(); ++i) hash = sluice_table_hash(hash, HookName(i));
  for (std::size_t i = 0; i < NvmlHookCount(); ++i) hash = sluice_table_hash(hash, NvmlHookName(i));
  return hash;
}

__attribute__((constructor)) void Load() {
  if (&sluice_shim_link != nullptr) sluice_engine_start(&sluice_shim_link);
}

__attribute__((destructor)) void Unload() {
  if (shim.dlsym != nullptr) EngineExit();
}

}  // namespace

void* LibraryReal() { return shim.library_real != nullptr ? shim.library_real() : nullptr; }

void* LibrarySymbol(void* real, const char* symbol) {
  void* const handle = HandleOf(real);
  return handle != nullptr ? shim.dlsym(handle, symbol) : nullptr;
}

}  // namespace sluice

extern "C" __attribute__((visibility("default"))) int sluice_engine_start(sluice_shim_state* link) {
  if (link->status != SLUICE_ENGINE_SILENT) return link->status == SLUICE_ENGINE_READY ? 0 : -1;
  if (link->abi != SLUICE_SHIM_ABI || link->shim.table != sluice::TableHash()) {
    std::snprintf(link->reason, sizeof link->reason,
                  "it is of another build than the shim (engine %s, abi %d; shim %.31s, abi %u)", SLUICE_VERSION,
                  SLUICE_SHIM_ABI, link->version, link->abi);
    __atomic_store_n(&link->status, SLUICE_ENGINE_REFUSED, __ATOMIC_RELEASE);
    return -1;
  }
  link->status = SLUICE_ENGINE_STARTING;
  sluice::shim = link->shim;
  sluice::BindLoadedDriver(sluice::shim);
  sluice::EngineInit();
  link->engine = {&sluice::CudaEntry, &sluice::NvmlEntry, &sluice::LibraryEntry, &sluice::OnAllocatorReport};
  __atomic_store_n(&link->status, SLUICE_ENGINE_READY, __ATOMIC_RELEASE);
  return 0;
}
