/* cuGetProcAddress in all its forms: lines "FORM BASE VERSION FLAGS -> result status number". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  if (!handle) return 1;
  typedef int (*get_fn)(const char*, void**, int, unsigned long long, int*);
  static const char* forms[] = {"cuGetProcAddress", "cuGetProcAddress_v2", "cuGetProcAddress_v2_ptsz"};
  static const struct {
    const char* base;
    int version;
  } requested[] = {{"cuStreamSynchronize", 2000}, {"cuStreamSynchronize", 7000}, {"cuStreamSynchronize", 13000},
                   {"cuMemcpyHtoD", 3010},        {"cuMemcpyHtoD", 3020},        {"cuMemcpyHtoD", 12000},
                   {"cuMemAlloc", 1000},          {"cuMemAlloc", 99000},         {"cuFakeUnknown", 13000},
                   {"cuNoSuchThing", 13000}};
  for (int f = 0; f < 3; ++f) {
    const get_fn get = (get_fn)dlsym(handle, forms[f]);
    if (!get) return 2;
    for (unsigned i = 0; i < sizeof requested / sizeof requested[0]; ++i) {
      for (unsigned flags = 0; flags < 3; ++flags) {
        int (*found)(void) = NULL;
        int status = -1;
        const int result = get(requested[i].base, (void**)&found, requested[i].version, flags, f == 0 ? NULL : &status);
        printf("%s %s %d %u -> %d %d %d\n", forms[f], requested[i].base, requested[i].version, flags, result, status,
               found ? found() : -1);
      }
    }
    void* unused = (void*)1;
    int no_status = get("cuMemAlloc", &unused, 12000, 0, NULL);
    if (no_status != 0) return 3;
  }
  return 0;
}
