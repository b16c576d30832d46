/* devices: the last byte of each device's UUID, and its total memory. */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  int (*const init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
  int (*const get_count)(int*) = (int (*)(int*))dlsym(driver, "cuDeviceGetCount");
  int (*const get_uuid)(unsigned char*, int) = (int (*)(unsigned char*, int))dlsym(driver, "cuDeviceGetUuid");
  int (*const get_total)(size_t*, int) = (int (*)(size_t*, int))dlsym(driver, "cuDeviceTotalMem_v2");
  int count = 0;
  const int result = init(0);
  if (result != 0 || get_count(&count) != 0) {
    printf("cuInit %d\n", result);
    return 0;
  }
  for (int i = 0; i < count; ++i) {
    unsigned char uuid[16] = {0};
    size_t bytes = 0;
    if (get_uuid(uuid, i) != 0 || get_total(&bytes, i) != 0) return 1;
    printf("card %d: %zu MiB\n", uuid[15], bytes >> 20);
  }
  return 0;
}
