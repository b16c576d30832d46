#include <dlfcn.h>

#include "driver.h"

namespace sluice::replay {
namespace {

template <typename Pointer>
bool Find(void* library, const char* name, Pointer& to) {
  to = reinterpret_cast<Pointer>(dlsym(library, name));
  return to != nullptr;
}

}  // namespace

#define SLUICE_TEXT_(x) #x
#define SLUICE_TEXT(x) SLUICE_TEXT_(x)

std::string Driver::Load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return std::string("no CUDA driver: libcuda.so.1: ") + (why != nullptr ? why : "not found");
  }
#define SLUICE_FIND(member, name) \
  if (!Find(library, SLUICE_TEXT(name), member)) return "the CUDA driver has no " SLUICE_TEXT(name);
  SLUICE_REPLAY_FUNCTIONS(SLUICE_FIND)
#undef SLUICE_FIND
  if (!Find(library, "cuEventElapsedTime_v2", elapsed) && !Find(library, "cuEventElapsedTime", elapsed)) {
    return "the CUDA driver has no cuEventElapsedTime";
  }
  if (Find(library, "simgpu_next_launch", sim_next_launch)) {
    Find(library, "simgpu_now_ns", sim_now);
    Find(library, "simgpu_advance_host", sim_advance);
    Find(library, "simgpu_stats", sim_stats);
    Find(library, "simgpu_last_misuse", sim_last_misuse);
    Find(library, "simgpu_mark", sim_mark);
    if (sim_now == nullptr || sim_advance == nullptr || sim_stats == nullptr)
      return "the simulated GPU lacks simgpu_now_ns, _advance_host or _stats";
  }
  return {};
}

std::string Driver::Name(CUresult result) const {
  const char* name = nullptr;
  if (get_error_name != nullptr && get_error_name(result, &name) == CUDA_SUCCESS && name != nullptr) return name;
  return "CUDA error " + std::to_string(static_cast<int>(result));
}

}  // namespace sluice::replay
