/* PyTorch's allocator report, c10::reportMemoryUsageToProfiler(void*, long, size_t, size_t, c10::Device): exported by
 * libc10, called by libc10_cuda for every malloc and free inside a segment. The mangled name contains the signature, so
 * another signature is another symbol. */
#include "hooklib/shim/shim.h"

struct c10_device { /* two bytes, passed by value */
  signed char type, index;
};
enum { C10_CUDA = 1 };
typedef void (*report_fn)(void* ptr, long size, size_t allocated, size_t reserved, struct c10_device device);

/* The real function for each calling object; two builds of PyTorch may be in one process. */
#define MAX_CALLERS 8
static struct caller {
  uintptr_t begin, end;
  report_fn real;
  int ready;
} callers[MAX_CALLERS];
static int used;

static __attribute__((noinline)) report_fn find(const void* address) {
  struct shim_object object;
  const report_fn real = (report_fn)shim_find_real(ROW__ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE, address);
  if (real && shim_object_at(address, &object)) {
    const int i = __atomic_fetch_add(&used, 1, __ATOMIC_RELAXED);
    if (i < MAX_CALLERS) {
      callers[i].begin = object.begin;
      callers[i].end = object.end;
      callers[i].real = real;
      __atomic_store_n(&callers[i].ready, 1, __ATOMIC_RELEASE);
    }
  }
  return real;
}

static report_fn real_for(const void* address) {
  for (int i = 0; i < MAX_CALLERS && __atomic_load_n(&callers[i].ready, __ATOMIC_ACQUIRE); ++i) {
    if ((uintptr_t)address >= callers[i].begin && (uintptr_t)address < callers[i].end) return callers[i].real;
  }
  return find(address);
}

SHIM_EXPORT void report(void* ptr, long size, size_t allocated, size_t reserved,
                        struct c10_device device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
void report(void* ptr, long size, size_t allocated, size_t reserved, struct c10_device device) {
  /* Never loads the engine: a process that uses CUDA has loaded it already. */
  if (device.type == C10_CUDA && shim_engine_ready()) {
    sluice_shim_link.engine.allocator_report(ptr, size, device.type, device.index);
  }
  const report_fn real = real_for(__builtin_return_address(0));
  if (real) real(ptr, size, allocated, reserved, device);
}
