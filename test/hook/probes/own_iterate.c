/* A program with a dl_iterate_phdr of its own, as Seastar and ClickHouse have. Prints whether it works, and the
 * answer of the driver's cuInit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

typedef int (*callback_fn)(struct dl_phdr_info*, size_t, void*);
typedef int (*iterate_fn)(callback_fn, void*);

int dl_iterate_phdr(callback_fn callback, void* data) {
  static iterate_fn real;
  if (!real) real = (iterate_fn)dlsym(RTLD_NEXT, "dl_iterate_phdr");
  return real(callback, data);
}

static int count(struct dl_phdr_info* info, size_t size, void* data) {
  (void)info, (void)size;
  ++*(int*)data;
  return 0;
}

int main(void) {
  int objects = 0;
  dl_iterate_phdr(&count, &objects);
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*const init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : NULL;
  printf("%d %d\n", objects > 2, init ? init(7) : -1);
  return 0;
}
