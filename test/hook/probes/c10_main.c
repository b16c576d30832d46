/* Opens the fake PyTorch RTLD_LOCAL, as Python does, and reports before and after CUDA is loaded. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

int main(void) {
  void* caller = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_LOCAL);
  void* own = dlopen("libc10.so", RTLD_NOW | RTLD_LOCAL);
  if (!caller || !own) return 1;
  void (*report)(long, int) = (void (*)(long, int))dlsym(caller, "c10_report");
  int (*seen)(void) = (int (*)(void))dlsym(own, "c10_seen");
  report(1, 1);
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  int (*heard)(unsigned long, size_t, int, int) =
      cuda ? (int (*)(unsigned long, size_t, int, int))dlsym(cuda, "cuMemAdvise") : 0;
  if (!heard) return 2;
  report(100, 1);
  report(-30, 1);
  report(7, 0); /* host memory */
  printf("%d %d\n", seen(), heard(0, 0, 0, 0));
  return 0;
}
