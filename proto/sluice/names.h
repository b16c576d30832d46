/* Every name that crosses a boundary: resource, annotations, variables, paths. Plain C, no dependency.
 * Changing one breaks running clusters: kubelet checkpoints paths and ids, users' manifests hold the annotations. */
#ifndef SLUICE_NAMES_H_
#define SLUICE_NAMES_H_

/* Kubernetes resource. One unit is one percent of one GPU. */
#define SLUICE_RESOURCE "sluice.dev/gpu-percent"
#define SLUICE_UNITS_PER_GPU 100
/* Device id: "<GPU uuid>::<unit>", unit 0..99 without leading zeros. Kubelet checkpoints it: never changes. */
#define SLUICE_DEVICE_ID_SEPARATOR "::"
/* How the device plugin's refusals begin; kubelet puts them into the pod's status.message. */
#define SLUICE_REFUSAL "sluice refuses: "

/* Pod annotations: "sluice.dev/<key>" for the pod, "<key>.sluice.dev/<container>" for one container. */
#define SLUICE_DOMAIN "sluice.dev"
#define SLUICE_KEY_GPU_FRACTION "gpu-fraction"
#define SLUICE_KEY_GPU_MEMORY "gpu-memory"
#define SLUICE_KEY_MEMORY_LIMIT "memory-limit"
#define SLUICE_KEY_VISIBLE_MEMORY "visible-memory"
#define SLUICE_KEY_MEMORY_FACTOR "memory-factor"
#define SLUICE_KEY_COMPUTE_REQUEST "compute-request"
#define SLUICE_KEY_COMPUTE_LIMIT "compute-limit"
#define SLUICE_KEY_PREFETCH "prefetch"
#define SLUICE_KEY_LOG_LEVEL "log-level"
#define SLUICE_KEY_INJECT "inject"
/* Written by sluice, never by users.
 * injected: the webhook's marker, JSON {"version":"0.1.0","containers":{"<name>":{"percent":50,...}},"reason":"..."}.
 * placement: the extender's bind, JSON {"<container>":["<GPU uuid>",...]}. */
#define SLUICE_KEY_INJECTED "injected"
#define SLUICE_KEY_PLACEMENT "placement"
/* Node annotation "sluice.dev/gpus", written by the agent. JSON array, one object a card, ordered by uuid:
 * {"uuid":"GPU-...","model":"NVIDIA H200","memory":150754820096,"free":70,"numa":0}
 * memory in bytes, free in units 0..100, numa the NUMA node or -1. Unknown members are ignored by readers.
 * Optional "pods":{"<pod uid>":{"<container>":units}}: who holds units of the card; makes the extender's account exact.
 */
#define SLUICE_NODE_ANNOTATION_GPUS "sluice.dev/gpus"

/* Variables in the container. */
#define SLUICE_ENV_GPU_FRACTION "SLUICE_GPU_FRACTION"
#define SLUICE_ENV_GPU_MEMORY "SLUICE_GPU_MEMORY"
#define SLUICE_ENV_MEMORY_LIMIT "SLUICE_MEMORY_LIMIT"
#define SLUICE_ENV_VISIBLE_MEMORY "SLUICE_VISIBLE_MEMORY"
#define SLUICE_ENV_MEMORY_FACTOR "SLUICE_MEMORY_FACTOR"
#define SLUICE_ENV_COMPUTE_REQUEST "SLUICE_COMPUTE_REQUEST"
#define SLUICE_ENV_COMPUTE_LIMIT "SLUICE_COMPUTE_LIMIT"
#define SLUICE_ENV_PREFETCH "SLUICE_PREFETCH"
#define SLUICE_ENV_LOG_LEVEL "SLUICE_LOG_LEVEL"
#define SLUICE_ENV_SOCKET "SLUICE_SOCKET"           /* path of the agent's socket */
#define SLUICE_ENV_ENGINE "SLUICE_ENGINE"           /* path of the engine; default: beside the shim */
#define SLUICE_ENV_ON_ERROR "SLUICE_ON_ERROR"       /* run (default): unhooked with a warning; stop: CUDA calls fail */
#define SLUICE_ENV_PLAIN "SLUICE_PLAIN"             /* 1: all memory plain, the budget is a hard limit */
#define SLUICE_ENV_HOST_ACCESS "SLUICE_HOST_ACCESS" /* 0: nothing is used in host memory by streaming launches */
#define SLUICE_ENV_DISCARD "SLUICE_DISCARD" /* 0: contents that the program gave back are copied like the rest */
#define SLUICE_ENV_OVERWRITES \
  "SLUICE_OVERWRITES" /* 0: what is about to be overwritten whole is fetched like the rest */
#define SLUICE_ENV_READ_MOSTLY "SLUICE_READ_MOSTLY" /* 0: what copies alone wrote is sent away like the rest */
#define SLUICE_ENV_LEARN "SLUICE_LEARN" /* 0: what launches use of a block is not learnt from their faults */
#define SLUICE_ENV_EVICTION_THREADS "SLUICE_EVICTION_THREADS" /* threads that evict; 0: the driver does */
#define SLUICE_ENV_MANAGED_LIMIT \
  "SLUICE_MANAGED_LIMIT"                    /* bytes (K, M, G, Ki, Mi, Gi): hard cap on managed memory requested */
#define SLUICE_ENV_BACKEND "SLUICE_BACKEND" /* managed (default) */
#define SLUICE_ENV_RECORD "SLUICE_RECORD"   /* file that a trace is written to */
#define SLUICE_ENV_DISABLE "SLUICE_DISABLE" /* 1: the shim stays inert */
/* Those of them that no setting of a pod stands for and no allocation sets: a user's own to set. */
#define SLUICE_ENV_USERS_OWN                                                                                \
  SLUICE_ENV_ON_ERROR, SLUICE_ENV_PLAIN, SLUICE_ENV_HOST_ACCESS, SLUICE_ENV_DISCARD, SLUICE_ENV_OVERWRITES, \
      SLUICE_ENV_READ_MOSTLY, SLUICE_ENV_LEARN, SLUICE_ENV_EVICTION_THREADS, SLUICE_ENV_MANAGED_LIMIT,      \
      SLUICE_ENV_BACKEND, SLUICE_ENV_RECORD
/* PUMP's names, read where ours are absent. */
#define SLUICE_ENV_ALIAS_MEMORY_FACTOR "ULMS_GPU_MEMORY_FACTOR"
#define SLUICE_ENV_ALIAS_LOG_LEVEL "ULMS_LOG_LEVEL"

/* Paths in a container: constant for ever. Both are read-only mounts; connecting to the socket still works. */
#define SLUICE_CONTAINER_LIB_DIR "/opt/sluice/lib"
#define SLUICE_CONTAINER_RUN_DIR "/opt/sluice/run"
#define SLUICE_SHIM_NAME "libsluice.so"
#define SLUICE_ENGINE_NAME "libsluice_engine.so"
#define SLUICE_SOCKET_NAME "agent.sock"
#define SLUICE_CONTAINER_SHIM SLUICE_CONTAINER_LIB_DIR "/" SLUICE_SHIM_NAME
#define SLUICE_CONTAINER_SOCKET SLUICE_CONTAINER_RUN_DIR "/" SLUICE_SOCKET_NAME

/* Paths on the host (defaults; settings change them). <lib>/<version>-<build id>/ holds one immutable library version,
 * <alloc>/<allocation id>/ one allocation: allocation.json (from the plugin or `sluice run`) and, once the agent has
 * seen it, the agent's socket. The directory without its allocation.json is not served. */
#define SLUICE_HOST_LIB_DIR "/var/lib/sluice/lib"
#define SLUICE_HOST_ALLOC_DIR "/var/lib/sluice/alloc"
#define SLUICE_HOST_AGENT_RUN_DIR "/run/sluice"
#define SLUICE_AGENT_GRPC_SOCKET "sluice.sock" /* in the agent's --run-dir */
#define SLUICE_ALLOCATION_FILE "allocation.json"
/* allocation.json: {"version":1,"id":"...","gpus":[{"uuid":"GPU-...","units":50}],"created":"RFC 3339",
 *   "settings":{"<annotation key>":"<value>",...}, "pod":"","namespace":"","container":""}
 * settings, pod, namespace and container are optional; written to a temporary name, synced, renamed. */

#endif /* SLUICE_NAMES_H_ */
