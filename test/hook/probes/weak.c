/* Calls CUDA by a weak reference, before and after it opens the driver. */
#include <dlfcn.h>
#include <stdio.h>

__attribute__((weak)) int cuInit(unsigned flags);

int main(void) {
  printf("%d", cuInit ? cuInit(7) : -1);
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  printf(" %d\n", driver && cuInit ? cuInit(7) : -1);
  return 0;
}
