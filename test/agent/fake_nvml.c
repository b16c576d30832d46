/* A libnvidia-ml.so.1 for tests of the agent: $FAKE_NVML_GPUS GPUs (default 1) of $FAKE_NVML_BYTES (default 8 GiB). The
 * file $FAKE_NVML_PROCESSES lists the processes on them; without the file the driver lists none. With $FAKE_NVML_LIMITS
 * it can limit the memory of cgroups, as drivers from 615 on, and appends "INDEX CGROUP SOFT HARD" to that file. With
 * $FAKE_NVML_CGROUP_BYTES the newer memory info gives these bytes, as in a limited cgroup. simgpu has a faithful NVML;
 * this one needs no state. */
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned long long Number(const char* name, unsigned long long fallback) {
  const char* text = getenv(name);
  return text != NULL ? strtoull(text, NULL, 10) : fallback;
}
static size_t IndexOf(nvmlDevice_t d) { return (size_t)d - 1; }

nvmlReturn_t nvmlInit_v2(void) { return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char* nvmlErrorString(nvmlReturn_t r) { return r == NVML_SUCCESS ? "Success" : "Error"; }
nvmlReturn_t nvmlSystemGetDriverVersion(char* to, unsigned n) {
  snprintf(to, n, "580.0");
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* n) {
  *n = (unsigned)Number("FAKE_NVML_GPUS", 1);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned i, nvmlDevice_t* d) {
  *d = (nvmlDevice_t)(size_t)(i + 1);  // NOLINT(performance-no-int-to-ptr): a handle is a number here
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char* to, unsigned n) {
  snprintf(to, n, "GPU-00000000-0000-0000-0000-%012zu", IndexOf(d));
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* d) {
  return nvmlDeviceGetHandleByIndex_v2((unsigned)strtoul(uuid + strlen(uuid) - 12, NULL, 10), d);
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char* to, unsigned n) {
  (void)d;
  snprintf(to, n, "Fake GPU");
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t* m) {
  (void)d;
  m->total = Number("FAKE_NVML_BYTES", 8ull << 30);
  m->used = 1 << 20;
  m->free = m->total - m->used;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t* m) {
  (void)d;
  m->total = Number("FAKE_NVML_CGROUP_BYTES", 0);
  m->reserved = 0;
  return m->total > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
/* The next process of the file on the GPU: "PID[@GPU][:BYTES[:BUSY PERCENT]]", by default on GPU 0. 0: none is left. */
static int Next(FILE* f, size_t gpu, unsigned* pid, unsigned long long* bytes, unsigned* busy) {
  char word[96];
  while (fscanf(f, "%95s", word) == 1) {
    char* at = word;
    size_t on = 0;
    *bytes = 1 << 20;
    *busy = 0;
    *pid = (unsigned)strtoul(at, &at, 10);
    if (*at == '@') on = strtoul(at + 1, &at, 10);
    if (*at == ':') *bytes = strtoull(at + 1, &at, 10);
    if (*at == ':') *busy = (unsigned)strtoul(at + 1, &at, 10);
    if (*pid != 0 && on == gpu) return 1;
  }
  return 0;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned* n, nvmlProcessInfo_t* to) {
  const char* path = getenv("FAKE_NVML_PROCESSES");
  FILE* f = path != NULL ? fopen(path, "r") : NULL;
  unsigned room = *n, pid = 0, busy = 0;
  unsigned long long bytes = 0;
  if (f == NULL) return NVML_ERROR_NOT_SUPPORTED; /* a driver that lists none */
  *n = 0;
  while (*n < room && Next(f, IndexOf(d), &pid, &bytes, &busy)) {
    memset(&to[*n], 0, sizeof(to[*n]));
    to[*n].pid = pid;
    to[(*n)++].usedGpuMemory = bytes;
  }
  fclose(f);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlProcessUtilizationSample_t* to, unsigned* n,
                                             unsigned long long since) {
  const char* path = getenv("FAKE_NVML_PROCESSES");
  FILE* f = path != NULL ? fopen(path, "r") : NULL;
  unsigned room = to != NULL ? *n : 0, pid = 0, busy = 0, found = 0;
  unsigned long long bytes = 0;
  (void)since;
  while (f != NULL && Next(f, IndexOf(d), &pid, &bytes, &busy)) {
    if (found < room) {
      memset(&to[found], 0, sizeof(to[found]));
      to[found].pid = pid;
      to[found].smUtil = busy;
    }
    ++found;
  }
  if (f != NULL) fclose(f);
  *n = found;
  return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t d, nvmlSetMemoryLimits_v1_t* limits) {
  const char* path = getenv("FAKE_NVML_LIMITS");
  char procs[512];
  FILE* f = NULL;
  if (path == NULL) return NVML_ERROR_NOT_SUPPORTED;
  /* The driver refuses a path that is no cgroup. */
  snprintf(procs, sizeof(procs), "%s/cgroup.procs", limits->nameSpace);
  f = fopen(procs, "r");
  if (f == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  fclose(f);
  f = fopen(path, "a");
  if (f == NULL) return NVML_ERROR_NO_PERMISSION;
  fprintf(f, "%zu %s %llu %llu\n", IndexOf(d), limits->nameSpace, limits->softLimit, limits->hardLimit);
  fclose(f);
  return NVML_SUCCESS;
}
