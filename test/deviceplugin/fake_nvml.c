// A tiny libnvidia-ml.so.1 that reads its cards from the file $SLUICE_FAKE_NVML at every call, so that a test can
// change the node while the plugin runs. Its lines:
//
//   driver VERSION
//   hang                         every call blocks while this line exists
//   card UUID MINOR NUMA [FLAG]  FLAG: lost, mig, exclusive, vgpu, recovery, no-size, size-v2, or nvlink-X: joined with
//   those of the same X event NUMBER UUID XID        delivered once to each waiter that has not seen a higher NUMBER
#include <nvml.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CARDS 32
#define EVENTS 8

struct nvmlDevice_st {
  char uuid[64], flag[32];
  int minor, numa;
};
struct nvmlEventSet_st {
  int seen;
  nvmlEventSet_t next;
};

static struct nvmlDevice_st cards[CARDS];

struct Node {
  char driver[64];
  int hang, count, event;
  char event_uuid[64];
  unsigned long long xid;
  struct nvmlDevice_st card[CARDS];
};

struct Event {
  int number;
  char uuid[64];
  unsigned long long xid;
};

// The file as last read. The plugin's speed is measured on top of this library, so a call takes only a stat while the
// file is unchanged.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stat stamp;
static struct Node current;
static struct Event events[EVENTS];

static void parse(const char* path) {
  memset(&current, 0, sizeof current);
  memset(events, 0, sizeof events);
  strcpy(current.driver, "580.1");
  FILE* f = fopen(path, "re");
  char line[256];
  int count = 0;
  /* One reader at a time: NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection) */
  while (f && fgets(line, sizeof line, f)) {
    struct nvmlDevice_st card = {0};
    struct Event event = {0};
    if (strncmp(line, "hang", 4) == 0) current.hang = 1;
    sscanf(line, "driver %63s", current.driver);
    if (sscanf(line, "card %63s %d %d %31s", card.uuid, &card.minor, &card.numa, card.flag) >= 3 &&
        current.count < CARDS)
      current.card[current.count++] = card;
    if (sscanf(line, "event %d %63s %llu", &event.number, event.uuid, &event.xid) == 3 && count < EVENTS)
      events[count++] = event;
  }
  if (f) fclose(f);
}

static void read_node(struct Node* node, int after_event) {
  const char* path = getenv("SLUICE_FAKE_NVML");
  struct stat now = {0};
  pthread_mutex_lock(&lock);
  if (path && stat(path, &now) == 0 &&
      (now.st_ino != stamp.st_ino || now.st_size != stamp.st_size || now.st_mtim.tv_sec != stamp.st_mtim.tv_sec ||
       now.st_mtim.tv_nsec != stamp.st_mtim.tv_nsec)) {
    parse(path);
    stamp = now;
  }
  *node = current;
  for (int i = 0; i < EVENTS && !node->event; i++) {
    if (events[i].number <= after_event) continue;
    node->event = events[i].number;
    memcpy(node->event_uuid, events[i].uuid, sizeof node->event_uuid);
    node->xid = events[i].xid;
  }
  pthread_mutex_unlock(&lock);
}

static void sleep_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

static void read_node_unless_hanging(struct Node* node, int after_event) {
  for (read_node(node, after_event); node->hang; read_node(node, after_event)) sleep_ms(5);
}

static struct nvmlDevice_st* handle(const struct nvmlDevice_st* card) {
  for (int i = 0; i < CARDS; i++) {
    if (!cards[i].uuid[0]) memcpy(cards[i].uuid, card->uuid, sizeof cards[i].uuid);
    if (strcmp(cards[i].uuid, card->uuid) == 0) return &cards[i];
  }
  return NULL;
}

// 0: the card is not present.
static int find(nvmlDevice_t device, struct nvmlDevice_st* out) {
  struct Node node;
  read_node_unless_hanging(&node, 0);
  for (int i = 0; i < node.count; i++) {
    if (strcmp(node.card[i].uuid, device->uuid) != 0) continue;
    *out = node.card[i];
    return strcmp(out->flag, "lost") != 0;
  }
  return 0;
}

static int has(nvmlDevice_t device, const char* flag) {
  struct nvmlDevice_st card;
  return find(device, &card) && strcmp(card.flag, flag) == 0;
}

nvmlReturn_t nvmlInit_v2(void) {
  struct Node node;
  read_node_unless_hanging(&node, 0);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char* nvmlErrorString(nvmlReturn_t rc) { return rc == NVML_ERROR_GPU_IS_LOST ? "GPU is lost" : "fake error"; }

nvmlReturn_t nvmlSystemGetDriverVersion(char* out, unsigned length) {
  struct Node node;
  read_node_unless_hanging(&node, 0);
  snprintf(out, length, "%s", node.driver);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* out) {
  struct Node node;
  read_node_unless_hanging(&node, 0);
  *out = (unsigned)node.count;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* out) {
  struct Node node;
  read_node_unless_hanging(&node, 0);
  if (index >= (unsigned)node.count) return NVML_ERROR_INVALID_ARGUMENT;
  *out = handle(&node.card[index]);
  return strcmp(node.card[index].flag, "lost") ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t index,
                                    nvmlGpuP2PStatus_t* status) {
  struct nvmlDevice_st a, b;
  if (!find(one, &a) || !find(other, &b)) return NVML_ERROR_GPU_IS_LOST;
  const int linked =
      index == NVML_P2P_CAPS_INDEX_NVLINK && strncmp(a.flag, "nvlink-", 7) == 0 && !strcmp(a.flag, b.flag);
  *status = linked ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* out, unsigned length) {
  snprintf(out, length, "%s", device->uuid);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* out, unsigned length) {
  (void)device;
  snprintf(out, length, "Fake GPU");
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* out) {
  struct nvmlDevice_st card;
  if (!find(device, &card)) return NVML_ERROR_GPU_IS_LOST;
  if (!strcmp(card.flag, "no-size") || !strcmp(card.flag, "size-v2")) return NVML_ERROR_NOT_SUPPORTED;
  out->total = 80ull << 30;
  out->free = out->total;
  out->used = 0;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* out) {
  struct nvmlDevice_st card;
  if (!find(device, &card)) return NVML_ERROR_GPU_IS_LOST;
  if (!strcmp(card.flag, "no-size") || out->version != nvmlMemory_v2) return NVML_ERROR_NOT_SUPPORTED;
  out->total = 80ull << 30;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned* out) {
  struct nvmlDevice_st card;
  if (!find(device, &card)) return NVML_ERROR_GPU_IS_LOST;
  *out = (unsigned)card.minor;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned size, unsigned long* nodes,
                                         nvmlAffinityScope_t scope) {
  struct nvmlDevice_st card;
  (void)size, (void)scope;
  if (!find(device, &card) || card.numa < 0) return NVML_ERROR_NOT_SUPPORTED;
  nodes[0] = 1ul << card.numa;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* out) {
  *out = has(device, "exclusive") ? NVML_COMPUTEMODE_EXCLUSIVE_PROCESS : NVML_COMPUTEMODE_DEFAULT;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned* current, unsigned* pending) {
  *current = *pending = has(device, "mig") ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t* out) {
  *out = has(device, "vgpu") ? NVML_GPU_VIRTUALIZATION_MODE_VGPU : NVML_GPU_VIRTUALIZATION_MODE_NONE;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  for (int i = 0; i < count; i++) {
    const int known = values[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
    values[i].nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    values[i].value.uiVal =
        has(device, "recovery") ? NVML_GPU_RECOVERY_ACTION_GPU_RESET : NVML_GPU_RECOVERY_ACTION_NONE;
  }
  return NVML_SUCCESS;
}

// As the driver's own, an event set that its program has not freed lives until the process ends: the plugin cannot free
// it, since a call that hangs may be inside.
static nvmlEventSet_t event_sets;
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* out) {
  nvmlEventSet_t const set = calloc(1, sizeof *set);
  if (!set) return NVML_ERROR_MEMORY;
  set->next = __atomic_load_n(&event_sets, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(&event_sets, &set->next, set, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) continue;
  *out = set;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  (void)set;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
  (void)device, (void)types, (void)set;
  return NVML_SUCCESS;
}
// Waits until the file's folder changes, like a driver without events.
static void wait_change(unsigned timeout_ms) {
  static int watch = -1;
  const char* path = getenv("SLUICE_FAKE_NVML");
  if (watch < 0 && path) {
    char folder[512];
    snprintf(folder, sizeof folder, "%s", path);
    char* slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    inotify_add_watch(watch, folder, IN_MOVED_TO | IN_CLOSE_WRITE);
  }
  struct pollfd fd = {watch, POLLIN, 0};
  poll(&fd, 1, (int)timeout_ms);
  char buffer[4096];
  while (read(watch, buffer, sizeof buffer) > 0) {
  }
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned timeout_ms) {
  struct Node node;
  read_node_unless_hanging(&node, set->seen);
  if (!node.event) {
    wait_change(timeout_ms);
    read_node_unless_hanging(&node, set->seen);
  }
  if (!node.event) return NVML_ERROR_TIMEOUT;
  set->seen = node.event;
  memset(data, 0, sizeof *data);
  struct nvmlDevice_st card = {0};
  memcpy(card.uuid, node.event_uuid, sizeof card.uuid);
  data->device = handle(&card);
  data->eventType = nvmlEventTypeXidCriticalError;
  data->eventData = node.xid;
  return NVML_SUCCESS;
}
