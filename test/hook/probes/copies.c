/* copies WORD...: works with several copies of libcuda. A word is a library, and before it: '?' its functions are
 * looked up only; '!' those of the last '?' are called behind it. Else the library is opened, looked up and called, and
 * closed where cuInit fails. Prints the answers of cuInit and cuMemAlloc_v2; 100000 more where a call is hooked. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int (*init_fn)(unsigned);
typedef int (*alloc_fn)(unsigned long*, unsigned long);

static int call(init_fn init, alloc_fn alloc) {
  unsigned long pointer = 0;
  const int result = init ? init(0) : -1;
  printf("%d", result);
  if (result % 100000 == 0) printf(" %d", alloc ? alloc(&pointer, 1) : -1);
  printf("\n");
  return result % 100000;
}

int main(int argc, char** argv) {
  init_fn later_init = NULL;
  alloc_fn later_alloc = NULL;
  for (int i = 1; i < argc; ++i) {
    const char* file = argv[i];
    const char mark = *file == '?' || *file == '!' ? *file++ : 0;
    if (mark == '!') {
      call(later_init, later_alloc);
      continue;
    }
    void* const driver =
        dlopen(file, RTLD_LAZY); /* NOLINT(clang-analyzer-optin.taint.GenericTaint): the test's choice */
    if (!driver) {
      printf("not opened: %s\n", dlerror());
      continue;
    }
    const init_fn init = (init_fn)dlsym(driver, "cuInit");
    const alloc_fn alloc = (alloc_fn)dlsym(driver, "cuMemAlloc_v2");
    if (mark == '?') {
      later_init = init;
      later_alloc = alloc;
    } else if (call(init, alloc) != 0) {
      dlclose(driver);
    }
  }
  return 0;
}
