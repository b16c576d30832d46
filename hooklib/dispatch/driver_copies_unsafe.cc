#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/mutex.h"
#include "hooklib/dispatch/driver_copies.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/dispatch/table.h"
#include "sluice/names.h"

namespace sluice {
namespace {

enum HookIndex : unsigned {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) kIndex_##elf_name,
#include "hooklib/hooks.def"
};

using InitFunction = decltype(&::cuInit);

struct Copy {
  void* base = nullptr;         // where it is loaded
  InitFunction init = nullptr;  // its cuInit
};

constexpr std::size_t kMaxCopies = 4;
Mutex g_copies_mutex;  // never held while the loader is called
std::array<Copy, kMaxCopies> g_copies SLUICE_GUARDED_BY(g_copies_mutex);
std::size_t g_next_copy SLUICE_GUARDED_BY(g_copies_mutex) = 0;

std::atomic<Copy*> g_bound{nullptr};
std::atomic<bool> g_is_settled{false};  // its cuInit has succeeded
std::atomic<bool> g_is_stale{false};    // its cuInit has failed: it may be unloaded and another be loaded in its place
std::atomic<const sluice_shim_api*> g_shim{nullptr};

// A handle of the loaded library that holds `address`; null for the main program. To be closed.
void* HandleOf(void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return nullptr;
  return g_shim.load()->dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
}

void Close(void* handle) {
  if (handle != nullptr) dlclose(handle);
}

// NOLINTBEGIN(cppcoreguidelines-pro-type-reinterpret-cast): function pointers as dlsym gives them.
void* Address(InitFunction init) { return reinterpret_cast<void*>(init); }

const char* PathOf(InitFunction init) {
  Dl_info info;
  return dladdr(Address(init), &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "?";
}

bool IsDriver(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return std::strncmp(slash != nullptr ? slash + 1 : path, "libcuda.so", 10) == 0;
}

// The copy behind a handle, or null where it is none.
Copy* CopyOf(void* handle) {
  void* const init = handle != nullptr ? g_shim.load()->dlsym(handle, "cuInit") : nullptr;
  Dl_info info;
  if (init == nullptr || dladdr(init, &info) == 0) return nullptr;
  const Copy wanted{info.dli_fbase, reinterpret_cast<InitFunction>(init)};
  const MutexLock lock(g_copies_mutex);
  for (Copy& copy : g_copies) {
    if (copy.base == wanted.base && copy.init == wanted.init) return &copy;
  }
  // With more copies than places, the oldest one that is not bound is forgotten.
  Copy* place = &g_copies[g_next_copy++ % kMaxCopies];
  if (place == g_bound.load()) place = &g_copies[g_next_copy++ % kMaxCopies];
  *place = wanted;
  return place;
}

// A copy's own cuInit. The lock: another thread may put another copy in this place, unless it is bound.
InitFunction OwnInit(const Copy* copy) {
  const MutexLock lock(g_copies_mutex);
  return copy->init;
}

// In place of the bound copy's cuInit. The copy stays loaded during the call, and for good after a success: the engine
// calls it from then on.
CUresult BoundInit(unsigned flags) {
  const InitFunction init = OwnInit(g_bound.load());
  void* const handle = HandleOf(Address(init));
  const CUresult result = init(flags);
  if (result == CUDA_SUCCESS && !g_is_settled.exchange(true)) return result;
  if (!g_is_settled.load()) g_is_stale.store(true);
  Close(handle);
  return result;
}

void* LookupOfCopy(void* handle, const char* name) {
  void* const found = g_shim.load()->dlsym(handle, name);
  return found != nullptr && std::strcmp(name, "cuInit") == 0 ? Address(&BoundInit) : found;
}

// Binds `copy` unless another one is settled. False: it is not the bound one.
bool Use(Copy* copy, void* handle) {
  if (g_is_settled.load() || (g_bound.load() == copy && !g_is_stale.load())) return g_bound.load() == copy;
  if (handle == nullptr) return false;
  RebindReal(&LookupOfCopy, handle);
  g_bound.store(copy);
  g_is_stale.store(false);
  return true;
}

// The program works with a copy that is not the bound one. True: that is refused.
bool RefusesUnbound(InitFunction init) {
  static std::atomic<bool> is_logged{false};
  const char* const policy = std::getenv(SLUICE_ENV_ON_ERROR);
  const bool refuses = policy != nullptr && std::strcmp(policy, "stop") == 0;
  if (is_logged.exchange(true)) return refuses;
  std::array<char, 1024> text;
  std::snprintf(text.data(), text.size(),
                "two copies of libcuda are used: the calls of '%.300s' are hooked, those of '%.300s' %s",
                PathOf(OwnInit(g_bound.load())), PathOf(init),
                refuses ? "fail (" SLUICE_ENV_ON_ERROR "=stop)" : "run without limits");
  g_shim.load()->log_warning(text.data());
  return refuses;
}

Copy* CopyAt(std::size_t index) {
  const MutexLock lock(g_copies_mutex);
  return &g_copies[index];
}

std::size_t IndexOf(const Copy* copy) {
  const MutexLock lock(g_copies_mutex);
  return static_cast<std::size_t>(copy - g_copies.data());
}

// A copy's own cuInit as the program gets it. Which copy is bound is decided here, by its success.
template <std::size_t kCopy>
CUresult InitCopy(unsigned flags) {
  Copy* const copy = CopyAt(kCopy);
  const InitFunction init = OwnInit(copy);
  void* const handle = HandleOf(Address(init));
  const bool is_bound = Use(copy, handle);
  Close(handle);
  if (is_bound) return reinterpret_cast<InitFunction>(Entry(kIndex_cuInit))(flags);
  return g_is_settled.load() && RefusesUnbound(init) ? CUDA_ERROR_SYSTEM_NOT_READY : init(flags);
}

template <std::size_t... kCopies>
void* InitOf(const Copy* copy, std::index_sequence<kCopies...>) {
  static constexpr InitFunction kInits[] = {&InitCopy<kCopies>...};
  return Address(kInits[IndexOf(copy)]);
}

CUresult Refused() { return CUDA_ERROR_SYSTEM_NOT_READY; }

bool FindsFunctions(unsigned index) {
  return index == kIndex_cuGetProcAddress || index == kIndex_cuGetProcAddress_v2 ||
         index == kIndex_cuGetProcAddress_v2_ptsz;
}

void* EntryOf(unsigned index, void* real, Copy* copy, void* handle) {
  const bool is_bound = copy != nullptr ? Use(copy, handle) : RealBound();
  if (index == kIndex_cuInit && copy != nullptr) return InitOf(copy, std::make_index_sequence<kMaxCopies>());
  if (real == nullptr) return RealBound() && RealOf(index) != nullptr ? Entry(index) : nullptr;
  if (is_bound && RealOf(index) == real) return Entry(index);
  if (is_bound || copy == nullptr || !FindsFunctions(index)) return real;
  return RefusesUnbound(OwnInit(copy)) ? reinterpret_cast<void*>(&Refused) : real;
}
// NOLINTEND(cppcoreguidelines-pro-type-reinterpret-cast)

}  // namespace

void BindLoadedDriver(const sluice_shim_api& shim) {
  g_shim.store(&shim);
  void* const handle = shim.dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  if (Copy* const copy = CopyOf(handle)) Use(copy, handle);
  Close(handle);
}

void* CudaEntryOf(unsigned index, void* real) {
  const bool is_known = real != nullptr ? RealOf(index) == real : g_is_settled.load();
  if (index != kIndex_cuInit && RealBound() && is_known && !g_is_stale.load())
    return RealOf(index) != nullptr ? Entry(index) : nullptr;
  Dl_info info;
  void* handle = nullptr;
  if (real != nullptr) {
    // A function of some other object, as a wrapper's, is bound only where there is nothing else.
    const bool is_driver = dladdr(real, &info) != 0 && info.dli_fname != nullptr && IsDriver(info.dli_fname);
    if (RealBound() && !is_driver) return real;
    handle = HandleOf(real);
  }
  if (handle == nullptr) handle = g_shim.load()->dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  void* const entry = EntryOf(index, real, CopyOf(handle), handle);
  Close(handle);
  return entry;
}

}  // namespace sluice
