/* Loads the driver $FAKE_DRIVER in its constructor and passes calls on, as WSL2's libcuda.so.1 does. */
#include <dlfcn.h>
#include <stdlib.h>

static int (*init)(unsigned);
static int (*alloc)(unsigned long*, unsigned long);

__attribute__((constructor)) static void load(void) {
  /* The test names the driver: NOLINTNEXTLINE(clang-analyzer-optin.taint.GenericTaint) */
  void* const driver = dlopen(getenv("FAKE_DRIVER"), RTLD_NOW | RTLD_LOCAL);
  if (!driver) return;
  init = (int (*)(unsigned))dlsym(driver, "cuInit");
  alloc = (int (*)(unsigned long*, unsigned long))dlsym(driver, "cuMemAlloc_v2");
}

int cuInit(unsigned flags);
int cuInit(unsigned flags) { return init ? init(flags) : 100; }
int cuMemAlloc_v2(unsigned long* pointer, unsigned long bytes);
int cuMemAlloc_v2(unsigned long* pointer, unsigned long bytes) { return alloc ? alloc(pointer, bytes) : 100; }
