// The engine inside the program, for sanitizers, started as the shim starts a preloaded one. SLUICE_DISABLE=1: the
// driver alone.
#include <dlfcn.h>

#include <cstdlib>
#include <string_view>

#include "hooklib/dispatch/table.h"
#include "hooklib/nvml/nvml_view.h"
#include "hooklib/shim/engine_abi.h"
#include "test/engine/report.h"

extern "C" {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) extern void* engine_slot_##elf_name;
#include "hooklib/hooks.def"
__attribute__((visibility("default"))) sluice_shim_state sluice_shim_link = {};
}

// PyTorch's allocator report, which the shim exports to programs otherwise.
extern "C" __attribute__((visibility("default"))) void TakeReport(
    void* p, long bytes, size_t, size_t,
    scenario::C10Device device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
void TakeReport(void* p, long bytes, size_t, size_t, scenario::C10Device device) {
  if (sluice_shim_link.status == SLUICE_ENGINE_READY)
    sluice_shim_link.engine.allocator_report(p, bytes, device.type, device.index);
}

namespace {

void* NoRealLibrary() { return nullptr; }
void* Find(void* handle, const char* name) { return dlsym(handle, name); }
void* Open(const char* file, int flags) { return dlopen(file, flags); }

// Runs before the engine's own constructor, which finds the engine started.
__attribute__((constructor(200))) void Start() {
  void** const slots[] = {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) &engine_slot_##elf_name,
#include "hooklib/hooks.def"
  };
  sluice_shim_state& link = sluice_shim_link;
  link.abi = SLUICE_SHIM_ABI;
  for (size_t i = 0; i < sluice::HookCount(); ++i)
    link.shim.table = sluice_table_hash(link.shim.table, sluice::HookName(i));
  for (size_t i = 0; i < sluice::NvmlHookCount(); ++i)
    link.shim.table = sluice_table_hash(link.shim.table, sluice::NvmlHookName(i));
  link.shim.dlsym = &Find;
  link.shim.dlopen = &Open;
  link.shim.library_real = &NoRealLibrary;
  const char* const off = std::getenv("SLUICE_DISABLE");
  const bool hooked = off == nullptr || std::string_view(off) != "1";
  if (hooked && sluice_engine_start(&link) != 0) std::abort();
  if (!hooked) link.status = SLUICE_ENGINE_REFUSED;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  for (size_t i = 0; i < sluice::HookCount(); ++i) {
    *slots[i] = hooked ? link.engine.cuda_entry(static_cast<unsigned>(i), nullptr) : dlsym(driver, sluice::HookName(i));
  }
}

}  // namespace
