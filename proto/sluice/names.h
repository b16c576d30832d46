/* Every name that crosses a border: resource, annotations, variables, paths. Plain C without dependencies. A changed
 * name breaks running clusters: kubelet checkpoints paths and ids, users' manifests hold the annotations. */
#ifndef SLUICE_NAMES_H_
#define SLUICE_NAMES_H_

#include "sluice/setting_names.h" /* SLUICE_KEY_* and SLUICE_ENV_* of the settings: from proto/settings.def */

/* Kubernetes resource. One unit is one percent of one GPU. */
#define SLUICE_RESOURCE "sluice.dev/gpu-percent"
#define SLUICE_UNITS_PER_GPU 100
/* Device id: "<GPU uuid>::<unit>", unit 0..99 without leading zeros. Kubelet checkpoints it: it never changes. */
#define SLUICE_DEVICE_ID_SEPARATOR "::"
/* How the device plugin's refusals begin; kubelet puts them into the pod's status.message. */
#define SLUICE_REFUSAL "sluice refuses: "

/* Pod annotations: "sluice.dev/<key>" for the pod, "<key>.sluice.dev/<container>" for one container. */
#define SLUICE_DOMAIN "sluice.dev"
/* Keys that sluice writes and users never do.
 * injected: the webhook's marker, JSON {"version":"0.1.0","containers":{"<name>":{"percent":50,...}},"reason":"..."}.
 *   percent is of each GPU; "cards" beside it is the number of GPUs where gpu-count is above 1.
 * placement: the extender's bind, JSON {"<container>":["<GPU uuid>",...]}.
 * granted: the agent's answer to another size for a running pod, JSON {"<container>":{"percent":70,"requested":90}}:
 *   percents of each of the container's GPUs; with gpu-memory also "memory", the bytes that it gets. */
#define SLUICE_KEY_INJECTED "injected"
#define SLUICE_KEY_PLACEMENT "placement"
#define SLUICE_KEY_GRANTED "granted"
/* Node annotation "sluice.dev/gpus", written by the agent. JSON array, one object for each GPU, ordered by uuid:
 * {"uuid":"GPU-...","model":"NVIDIA H200","memory":150754820096,"free":70,"numa":0}
 * memory in bytes, free in units 0..100, numa the NUMA node or -1. Readers ignore unknown members. Optional
 * "pods":{"<pod uid>":{"<container>":units}}: the holders of the GPU's units, so that the extender's account is exact.
 * "nvlink":0, optional: GPUs of one number reach each other by NVLink.
 * Units that running pods were granted beyond their own (key granted) are not free. */
#define SLUICE_NODE_ANNOTATION_GPUS "sluice.dev/gpus"

/* Variables in the container, beside those of the settings. */
#define SLUICE_ENV_SOCKET "SLUICE_SOCKET"           /* path of the agent's socket */
#define SLUICE_ENV_ENGINE "SLUICE_ENGINE"           /* path of the engine; default: beside the shim */
#define SLUICE_ENV_ON_ERROR "SLUICE_ON_ERROR"       /* run (default): unhooked with a warning; stop: CUDA calls fail */
#define SLUICE_ENV_UNMANAGED "SLUICE_UNMANAGED"     /* 1: all memory unmanaged, the budget is a hard limit */
#define SLUICE_ENV_HOST_ACCESS "SLUICE_HOST_ACCESS" /* 0: launches never access host memory remotely */
#define SLUICE_ENV_DISCARD "SLUICE_DISCARD"         /* 0: freed contents are copied like others */
#define SLUICE_ENV_OVERWRITES "SLUICE_OVERWRITES"   /* 0: memory that a call overwrites whole is fetched first */
#define SLUICE_ENV_READ_MOSTLY                                                                           \
  "SLUICE_READ_MOSTLY"                  /* 0: memory that only copies write gets no read-only duplicates \
                                         */
#define SLUICE_ENV_LEARN "SLUICE_LEARN" /* 0: pointer ranges are not learned from launches' faults */
#define SLUICE_ENV_VMM "SLUICE_VMM"     /* unmanaged: VMM memory stays the driver's, a hard limit; managed (default) */
#define SLUICE_ENV_EVICTION_THREADS \
  "SLUICE_EVICTION_THREADS" /* number of eviction threads; 0: the driver's own calls evict */
#define SLUICE_ENV_MANAGED_LIMIT "SLUICE_MANAGED_LIMIT" /* bytes, as 8Gi: cap of managed memory requested */
#define SLUICE_ENV_BACKEND "SLUICE_BACKEND"             /* managed (default) */
#define SLUICE_ENV_RECORD "SLUICE_RECORD"               /* file that a trace is written to */
#define SLUICE_ENV_DISABLE "SLUICE_DISABLE"             /* 1: the shim stays inert */
/* Of these, the variables that a user may set: no allocation sets them. */
#define SLUICE_ENV_USERS_OWN                                                                                           \
  SLUICE_ENV_ON_ERROR, SLUICE_ENV_UNMANAGED, SLUICE_ENV_HOST_ACCESS, SLUICE_ENV_DISCARD, SLUICE_ENV_OVERWRITES,        \
      SLUICE_ENV_READ_MOSTLY, SLUICE_ENV_LEARN, SLUICE_ENV_VMM, SLUICE_ENV_EVICTION_THREADS, SLUICE_ENV_MANAGED_LIMIT, \
      SLUICE_ENV_BACKEND, SLUICE_ENV_RECORD
/* PUMP's names, read where ours are absent. */
#define SLUICE_ENV_ALIAS_MEMORY_FACTOR "ULMS_GPU_MEMORY_FACTOR"
#define SLUICE_ENV_ALIAS_LOG_LEVEL "ULMS_LOG_LEVEL"

/* Paths in a container: they never change. Both are read-only mounts; connecting to the socket still works. */
#define SLUICE_CONTAINER_LIB_DIR "/opt/sluice/lib"
#define SLUICE_CONTAINER_RUN_DIR "/opt/sluice/run"
#define SLUICE_SHIM_NAME "libsluice.so"
#define SLUICE_ENGINE_NAME "libsluice_engine.so"
#define SLUICE_SOCKET_NAME "agent.sock"
#define SLUICE_CONTAINER_SHIM SLUICE_CONTAINER_LIB_DIR "/" SLUICE_SHIM_NAME
#define SLUICE_CONTAINER_SOCKET SLUICE_CONTAINER_RUN_DIR "/" SLUICE_SOCKET_NAME

/* Paths on the host: defaults, which settings change. <lib>/<version>-<build id>/ holds one immutable version of the
 * library. <alloc>/<allocation id>/ holds one allocation: allocation.json (from the plugin or `sluice run`) and, once
 * the agent has seen it, the agent's socket. The agent does not serve a directory without allocation.json. */
#define SLUICE_HOST_LIB_DIR "/var/lib/sluice/lib"
#define SLUICE_HOST_ALLOC_DIR "/var/lib/sluice/alloc"
#define SLUICE_HOST_AGENT_RUN_DIR "/run/sluice"
#define SLUICE_AGENT_GRPC_SOCKET "sluice.sock" /* in the agent's --run-dir */
#define SLUICE_ALLOCATION_FILE "allocation.json"
/* allocation.json: {"version":1,"id":"...","gpus":[{"uuid":"GPU-...","units":50}],"created":"RFC 3339",
 *   "settings":{"<annotation key>":"<value>",...}, "pod":"","namespace":"","container":""}
 * settings, pod, namespace and container are optional. It is written to a temporary name, synced and renamed. */

#endif /* SLUICE_NAMES_H_ */
