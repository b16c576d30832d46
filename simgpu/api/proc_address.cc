// cuGetProcAddress: versions, stream flavours, status. The table is generated from the toolkit's headers.
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "call.h"

#define NAME(base, version, own, elf) extern "C" void simgpu_alias_##elf() __asm__(#elf);
#include "cu_names.inc"
#undef NAME

namespace {

struct Entry {
  const char* base;
  int version;
  bool per_thread;
  const char* elf;
  void (*function)();
};

const Entry kEntries[] = {
#define NAME(base, version, own, elf) {#base, version, (own) != 0, #elf, simgpu_alias_##elf},
#include "cu_names.inc"
#undef NAME
};

struct Side {
  const char* name;
  void (*function)();
};

CUresult Lookup(const char* symbol, void** out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  NEED_ARG(symbol != nullptr && out != nullptr && flags <= 2);
  *out = nullptr;
  simgpu::TraceCall("cuGetProcAddress", symbol);
  const int driver = simgpu::TheProfile().CudaVersion();
  const Entry* best = nullptr;
  bool known = false;
  for (const Entry& e : kEntries) {
    if (std::strcmp(e.base, symbol) != 0) continue;
    if (e.version <= driver) known = true;
    if (e.version > version || e.version > driver) continue;
    if (e.per_thread && flags != CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) continue;
    // Of one version the per-thread flavour wins where it is asked for.
    if (best == nullptr || e.version > best->version || (e.version == best->version && e.per_thread) ||
        (e.per_thread && !best->per_thread && e.version >= best->version)) {
      best = &e;
    }
  }
  if (best != nullptr && flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && !best->per_thread) {
    // Per-thread flavours carry the version 7000 where their plain twin is older.
    for (const Entry& e : kEntries) {
      if (e.per_thread && std::strcmp(e.base, symbol) == 0 && e.version <= version && e.version <= driver &&
          (!best->per_thread || e.version > best->version)) {
        best = &e;
      }
    }
  }
  if (best == nullptr) {
    if (status != nullptr)
      *status = known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
  }
  if (status != nullptr) *status = CU_GET_PROC_ADDRESS_SUCCESS;
  *out = reinterpret_cast<void*>(best->function);
  return CUDA_SUCCESS;
}

}  // namespace

namespace simgpu {

bool HasSymbol(const char* elf_name) {
  static const auto* versions = [] {
    auto* all = new std::unordered_map<std::string_view, int>;
    for (const Entry& e : kEntries) all->emplace(e.elf, e.version);
    return all;
  }();
  auto it = versions->find(elf_name);
  return it != versions->end() && it->second <= TheProfile().CudaVersion();
}

}  // namespace simgpu

extern "C" {

CUresult cuGetProcAddress_v2(const char* symbol, void** out, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  return Lookup(symbol, out, version, flags, status);
}

CUresult cuGetProcAddress(const char* symbol, void** out, int version, cuuint64_t flags) {
  return Lookup(symbol, out, version, flags, nullptr);
}

}  // extern "C"
