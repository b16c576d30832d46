/* Two packages, opened RTLD_LOCAL as Python does, each with its own version of cuDNN. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

typedef int (*use_fn)(long);
typedef int (*execute_fn)(void*, void*, long);

int main(void) {
  void* package9 = dlopen("libuser9.so", RTLD_NOW | RTLD_LOCAL);
  void* package8 = dlopen("libuser8.so", RTLD_NOW | RTLD_LOCAL);
  if (!package9 || !package8) return 1;
  const use_fn use9 = (use_fn)dlsym(package9, "use9"), use8 = (use_fn)dlsym(package8, "use8");
  const use_fn outer9 = (use_fn)dlsym(package9, "outer9"), outer8 = (use_fn)dlsym(package8, "outer8");
  printf("%d %d | ", use9(1), use8(1));
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!cuda || !dlsym(cuda, "cuInit")) return 2;
  printf("%d %d | ", use9(2), use8(2));
  /* JAX's way: a handle and dlsym. */
  void* library9 = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  void* library8 = dlopen("libcudnn.so.8", RTLD_NOW | RTLD_LOCAL);
  const execute_fn execute9 = (execute_fn)dlsym(library9, "cudnnBackendExecute");
  const execute_fn execute8 = (execute_fn)dlsym(library8, "cudnnBackendExecute");
  if (!execute9 || !execute8) return 3;
  printf("%d %d | ", execute9((void*)1, (void*)2, 3), execute8((void*)1, (void*)2, 3));
  printf("%d %d | ", outer9(4), outer8(4));
  printf("%s\n", dlsym(RTLD_DEFAULT, "cudnnBackendExecute") ? "some" : "none");
  return 0;
}
