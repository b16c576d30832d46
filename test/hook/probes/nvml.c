/* NVML's answers for a GPU with a fraction (1) and one without (2). */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

struct memory {
  unsigned long long total, free, used;
};
struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu, compute;
};

int main(void) {
  void* h = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!h) return 1;
  int (*info)(void*, struct memory*) = (int (*)(void*, struct memory*))dlsym(h, "nvmlDeviceGetMemoryInfo");
  int (*info2)(void*, struct memory_v2*) = (int (*)(void*, struct memory_v2*))dlsym(h, "nvmlDeviceGetMemoryInfo_v2");
  int (*list)(void*, unsigned*, struct process*) =
      (int (*)(void*, unsigned*, struct process*))dlsym(h, "nvmlDeviceGetComputeRunningProcesses_v3");
  if (!info || !info2 || !list) return 2;
  for (long card = 1; card <= 2; ++card) {
    struct memory m;
    struct memory_v2 m2 = {.version = 2};
    struct process p[4];
    unsigned none = 0, count = 4;
    if (info((void*)card, &m) || info2((void*)card, &m2)) return 3;
    const int asked = list((void*)card, &none, NULL);
    if (list((void*)card, &count, p)) return 4;
    printf("%llu %llu %llu | %llu %llu %llu %llu | %d %u | %u", m.total, m.free, m.used, m2.total, m2.reserved, m2.free,
           m2.used, asked, none, count);
    for (unsigned i = 0; i < count; ++i)
      printf(" %s %llu", p[i].pid == (unsigned)getpid() ? "self" : "other", p[i].used);
    printf("\n");
  }
  return 0;
}
