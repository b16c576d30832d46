/* An NVML with two GPUs: handle 1 is "GPU-ours", handle 2 "GPU-other". Each runs two processes: this one, and one that
 * does not exist. */
#include <string.h>
#include <unistd.h>

struct memory {
  unsigned long long total, free, used;
};
struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct process_v1 {
  unsigned pid;
  unsigned long long used;
};
struct process_v2 {
  unsigned pid;
  unsigned long long used;
  unsigned gpu, compute;
};

int nvmlDeviceGetUUID(void* device, char* uuid, unsigned length) {
  strncpy(uuid, device == (void*)1 ? "GPU-ours" : "GPU-other", length);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, struct memory* m) {
  (void)device;
  *m = (struct memory){80000, 70000, 10000};
  return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void* device, struct memory_v2* m) {
  (void)device;
  *m = (struct memory_v2){m->version, 80000, 500, 69500, 10000};
  return 0;
}
#define PROCESSES(name, type)                                      \
  int name(void* device, unsigned* count, struct type* infos) {    \
    (void)device;                                                  \
    const unsigned capacity = *count;                              \
    *count = 2;                                                    \
    if (capacity < 2) return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */ \
    memset(infos, 0, 2 * sizeof *infos);                           \
    infos[0].pid = 0x7ffffff0u;                                    \
    infos[0].used = 5000;                                          \
    infos[1].pid = (unsigned)getpid();                             \
    infos[1].used = 4000;                                          \
    return 0;                                                      \
  }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, process_v1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, process_v2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, process_v2)
struct sample {
  unsigned pid;
  unsigned long long time;
  unsigned sm, memory, encoder, decoder;
};
int nvmlDeviceGetProcessUtilization(void* device, struct sample* samples, unsigned* count, unsigned long long last) {
  (void)device;
  (void)last;
  const unsigned capacity = *count;
  *count = 2;
  if (!samples || capacity < 2) return 7;
  samples[0] = (struct sample){.pid = 0x7ffffff0u, .sm = 60};
  samples[1] = (struct sample){.pid = (unsigned)getpid(), .sm = 30};
  return 0;
}
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
int nvmlDeviceGetRunningProcessDetailList(void* device, struct details* d) {
  (void)device;
  const unsigned capacity = d->count;
  d->count = 2;
  if (capacity < 2) return 7;
  memset(d->list, 0, 2 * sizeof *d->list);
  d->list[0] = (struct detail){.pid = 0x7ffffff0u, .used = 5000};
  d->list[1] = (struct detail){.pid = (unsigned)getpid(), .used = 4000};
  return 0;
}
struct rates {
  unsigned gpu, memory;
};
int nvmlDeviceGetUtilizationRates(void* device, struct rates* rates) {
  (void)device;
  *rates = (struct rates){90, 45};
  return 0;
}
int nvmlInit_v2(void) { return 0; }
