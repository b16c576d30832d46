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
struct sample {
  unsigned pid;
  unsigned long long time;
  unsigned sm, memory, encoder, decoder;
};
struct detail {
  unsigned pid;
  unsigned long long used;
  unsigned gpu, compute;
  unsigned long long protected_bytes;
};
struct details {
  unsigned version, mode, count;
  struct detail* list;
};
struct rates {
  unsigned gpu, memory;
};

static const char* WhoIs(unsigned pid) { return pid == (unsigned)getpid() ? "self" : "other"; }

// Utilisation, and the newer list of processes.
static int Newer(void* h, void* card) {
  int (*samples)(void*, struct sample*, unsigned*, unsigned long long) =
      (int (*)(void*, struct sample*, unsigned*, unsigned long long))dlsym(h, "nvmlDeviceGetProcessUtilization");
  int (*details)(void*, struct details*) =
      (int (*)(void*, struct details*))dlsym(h, "nvmlDeviceGetRunningProcessDetailList");
  int (*rates)(void*, struct rates*) = (int (*)(void*, struct rates*))dlsym(h, "nvmlDeviceGetUtilizationRates");
  if (!samples || !details || !rates) return 0;
  struct sample s[4];
  struct detail d[4];
  struct details list = {.version = sizeof list | 1 << 24, .count = 4, .list = d};
  struct rates r;
  unsigned count = 4;
  if (rates(card, &r) || samples(card, s, &count, 0) || details(card, &list)) return 0;
  printf(" | %u %u | %u", r.gpu, r.memory, count);
  for (unsigned i = 0; i < count; ++i) printf(" %s %u", WhoIs(s[i].pid), s[i].sm);
  printf(" | %u", list.count);
  for (unsigned i = 0; i < list.count; ++i) printf(" %s %llu", WhoIs(d[i].pid), d[i].used);
  return 1;
}

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
    for (unsigned i = 0; i < count; ++i) printf(" %s %llu", WhoIs(p[i].pid), p[i].used);
    if (!Newer(h, (void*)card)) return 5;
    printf("\n");
  }
  return 0;
}
