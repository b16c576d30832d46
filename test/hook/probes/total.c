/* total LIBRARY...: the first library whose cuInit succeeds, as programs look for a driver; prints its answer. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    void* const driver =
        dlopen(argv[i], RTLD_LAZY); /* NOLINT(clang-analyzer-optin.taint.GenericTaint): the test's choice */
    if (!driver) continue;
    int (*const init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    const int result = init ? init(0) : -1;
    if (result != 0) {
      printf("cuInit %d\n", result);
      dlclose(driver);
      continue;
    }
    size_t bytes = 0;
    int (*const total)(size_t*, int) = (int (*)(size_t*, int))dlsym(driver, "cuDeviceTotalMem_v2");
    const int answer = total ? total(&bytes, 0) : -1;
    printf("%d %zu MiB\n", answer, bytes >> 20);
    return 0;
  }
  puts("no driver");
  return 0;
}
