/* The wire format between a hooked process and the node agent: frames of a fixed size on a SOCK_SEQPACKET Unix socket,
 * and a page of counters that the agent reads without a call. Plain C11 without dependencies: shim, engine, agent and
 * fuzzer use it alone.
 *
 * The socket that a process connected to identifies its allocation; no frame claims an identity. Integers have the
 * host's byte order: both ends run on one machine. Strings end with NUL, unused bytes are zero. The receiver refuses a
 * frame of another size, magic or major version, or of an unknown type (the agent sends REFUSE and closes). It ignores
 * reserved bytes, which a newer minor version may fill.
 *
 * Conversation:
 *   1. The hook sends HELLO.
 *   2. The agent answers WELCOME and one BUDGET for each GPU of the allocation, or REFUSE. WELCOME carries the memfd of
 *      the counters page (SCM_RIGHTS), sealed against resizing.
 *   3. From then on, at any time: the agent sends BUDGET, TOKEN_GRANT, TOKEN_REVOKE, MEMORY and PING; the hook sends
 *      TOKEN_REQUEST, TOKEN_RELEASE, MEMORY_REQUEST, PROCESSES_REQUEST, NOTICE and PONG.
 * The hook answers BUDGET in its page: it follows the new values, then stores the generation and its counters.
 * The agent answers a repeated TOKEN_REQUEST by PING while the first one waits. A hook that receives nothing for 10 s
 * takes the agent for lost. A closed socket releases everything that the process held.
 *
 * Minor versions: each end writes its own minor into every frame, and sends no frame type that the other's minor lacks.
 * A receiver takes members that an older sender does not know as 0.
 *   1: leases (sluice_lease, the end of sluice_budget), MEMORY_REQUEST, MEMORY, PROCESSES_REQUEST, PROCESSES,
 *      SLUICE_HELLO_OBSERVER; priority and link_bytes_per_s of sluice_budget.
 *   2: parked of sluice_budget and of the page. */
#ifndef SLUICE_WIRE_H_
#define SLUICE_WIRE_H_

#include <assert.h>
#include <stdint.h>

#define SLUICE_WIRE_MAGIC 0x43494c53u /* "SLIC" */
#define SLUICE_WIRE_MAJOR 1
#define SLUICE_WIRE_MINOR 2
#define SLUICE_MINOR_LEASES 1 /* the first minor version with leases */
#define SLUICE_MINOR_PARK 2   /* the first minor version whose hooks follow `parked` */
#define SLUICE_MAX_GPUS 16
#define SLUICE_UUID_CHARS 48 /* "GPU-8-4-4-4-12" and NUL, padded */
#define SLUICE_VERSION_CHARS 32

enum sluice_frame_type {
  SLUICE_HELLO = 1,              /* hook -> agent */
  SLUICE_WELCOME = 2,            /* agent -> hook, one memfd attached */
  SLUICE_REFUSE = 3,             /* agent -> hook, then close */
  SLUICE_BUDGET = 4,             /* agent -> hook */
  SLUICE_TOKEN_REQUEST = 5,      /* hook -> agent */
  SLUICE_TOKEN_GRANT = 6,        /* agent -> hook */
  SLUICE_TOKEN_REVOKE = 7,       /* agent -> hook: release as soon as the queued work is done */
  SLUICE_TOKEN_RELEASE = 8,      /* hook -> agent */
  SLUICE_NOTICE = 9,             /* hook -> agent: the agent records an event */
  SLUICE_PING = 10,              /* agent -> hook */
  SLUICE_PONG = 11,              /* hook -> agent */
  SLUICE_MEMORY_REQUEST = 12,    /* hook -> agent: the lease is too small, or the container's use is asked for */
  SLUICE_MEMORY = 13,            /* agent -> hook: the answer; also unasked */
  SLUICE_PROCESSES_REQUEST = 14, /* hook -> agent */
  SLUICE_PROCESSES = 15          /* agent -> hook */
};

struct sluice_header {
  uint32_t magic;
  uint8_t major, minor;
  uint16_t type; /* enum sluice_frame_type */
  uint64_t seq;  /* counted by the sender, from 1 */
};

/* sluice_hello.flags. RETURNING: an agent served the process before, so its page has content. The agent sends WELCOME
 * and PING. The hook copies its page into the new memfd, then answers PONG. Only then does the agent read the page and
 * send BUDGET. */
#define SLUICE_HELLO_RETURNING 1u
/* OBSERVER: the process only looks (nvidia-smi, NVML). It gets no budget, no lease and no event, and counts as no
 * process of the container. The agent sends WELCOME without BUDGETs, then PING, and from then on answers
 * MEMORY_REQUEST and PROCESSES_REQUEST. An older agent ignores the flag. */
#define SLUICE_HELLO_OBSERVER 2u

struct sluice_hello {
  int32_t pid; /* in the sender's own namespace, for people; the socket identifies the process */
  uint32_t flags;
  uint64_t start_ticks; /* field 22 of /proc/self/stat */
  char version[SLUICE_VERSION_CHARS];
  char command[64]; /* /proc/self/comm and the arguments, cut to size */
};

struct sluice_welcome {
  char version[SLUICE_VERSION_CHARS];
  char allocation[64];
  uint32_t gpus; /* BUDGET frames that follow at once */
  uint32_t reserved;
};

struct sluice_refuse {
  char reason[192];
};

enum sluice_prefetch { SLUICE_PREFETCH_OFF = 0, SLUICE_PREFETCH_LAUNCH = 1, SLUICE_PREFETCH_PREDICT = 2 };
enum sluice_log_level { SLUICE_LOG_ERROR = 0, SLUICE_LOG_WARN = 1, SLUICE_LOG_INFO = 2, SLUICE_LOG_DEBUG = 3 };
enum sluice_priority { SLUICE_PRIORITY_GUARANTEED = 0, SLUICE_PRIORITY_OPPORTUNISTIC = 1 };
enum sluice_visible { SLUICE_VISIBLE_BUDGET = 0, SLUICE_VISIBLE_LIMIT = 1 };

/* All settings that may change while a process runs. Shares in millionths. common/settings fills the members that carry
 * a setting alone. New members go to the end: the rest of the frame is zero, which must mean the default. */
struct sluice_budget {
  char uuid[SLUICE_UUID_CHARS];
  uint64_t budget_bytes;     /* bytes that may be resident now, unmanaged memory included */
  uint64_t guaranteed_bytes; /* total of memory queries while visible is BUDGET; lending does not change it */
  uint64_t limit_bytes;      /* live bytes; 0: the GPU's memory */
  uint64_t host_bytes;       /* evicted bytes in host memory; UINT64_MAX: the agent sets no limit */
  uint64_t generation;       /* rises with every change; the hook copies it into its page once it follows */
  uint32_t compute_request;  /* 0..1000000 */
  uint32_t compute_limit;    /* 1..1000000 */
  uint8_t memory_factor;     /* percent, 1..100; 0: the hook chooses */
  uint8_t prefetch;          /* enum sluice_prefetch */
  uint8_t log_level;         /* enum sluice_log_level */
  uint8_t visible;           /* enum sluice_visible */
  uint8_t tokens;            /* 1: launches need a token now */
  uint8_t leased;            /* 1: the process may allocate by its lease only; 0: each process up to limit_bytes */
  uint8_t lease_slot;        /* the lease's index in the page */
  uint8_t priority;          /* enum sluice_priority */
  uint32_t processes;        /* attached ones of the container on this GPU, this one included */
  uint64_t granted_bytes;    /* as in sluice_memory */
  /* Fetches and evictions of this process over the link to the host, bytes a second; 0: as many as the link takes. */
  uint64_t link_bytes_per_s;
  /* 1: the container is parked. The budget is the pinned memory, tokens is 1, and the hook gives up its token.
   * A TOKEN_REQUEST wakes the container: the agent answers by BUDGET with 0 here. A hook that loses its agent raises
   * its budget to guaranteed_bytes by itself. */
  uint32_t parked;
  uint32_t reserved;
};

/* The lease of one process on one GPU: the bytes of the container's memory-limit that it may allocate without asking.
 * A charge of n bytes takes n from headroom_bytes, a release adds them; the agent takes back unused bytes by the
 * same atomic operation, while the process runs, is stopped, or lacks CPU time. So an allocation within the headroom
 * needs no call, and unused bytes are never out of reach of the container's other processes.
 *
 * granted_bytes - taken_bytes = charged_bytes + headroom_bytes. A charge that cannot be refused (memory that exists
 * already) may leave a negative headroom. */
struct sluice_lease {
  int64_t headroom_bytes; /* both ends change it, by compare and exchange */
  uint64_t charged_bytes; /* the hook's: allocated and not freed, resident or not, unmanaged memory included */
  uint64_t granted_bytes; /* the hook's: of the last BUDGET or MEMORY that it has added to the headroom */
  uint64_t taken_bytes;   /* the agent's: sum of the bytes that it took back */
};

struct sluice_token {
  char uuid[SLUICE_UUID_CHARS];
  uint64_t quantum_ns; /* GRANT: GPU time that may be spent */
  uint64_t lease_ns;   /* GRANT: wall time after which the arbiter takes the token back */
  uint64_t used_ns;    /* RELEASE: kernel time by GPU events */
  uint64_t burst_ns;   /* REQUEST, RELEASE: last measured burst */
  uint64_t id;         /* of the grant; REVOKE and RELEASE repeat it */
  uint32_t estimated;  /* RELEASE: 1 if a part of used_ns is not from events */
  uint32_t reserved;
};

/* REQUEST: uuid, id, missing_bytes. An answer repeats the id of the newest request that it answers. */
struct sluice_memory {
  char uuid[SLUICE_UUID_CHARS];
  uint64_t id;            /* counted by the hook for each GPU, from 1; 0: unasked */
  uint64_t missing_bytes; /* REQUEST: that the headroom lacks for an allocation; 0: only the figures are wanted */
  uint64_t granted_bytes; /* sum of all grants to this process since its lease began: an older frame may be lost */
  uint64_t used_bytes;    /* charged by all of the container's processes on this GPU */
  uint64_t total_bytes;   /* that memory queries report; 0: the GPU is not the container's */
  uint32_t processes;     /* attached ones of the container on this GPU */
  uint32_t utilization;   /* GPU time of the container in the last second, millionths */
};

struct sluice_process {
  int32_t pid;            /* in its own namespace, as its HELLO said */
  uint32_t utilization;   /* millionths */
  uint64_t charged_bytes; /* as in sluice_lease */
};

#define SLUICE_PROCESSES_A_FRAME 11
/* REQUEST: uuid, id, first. The answer holds the attached processes of the container from the index `first` on. */
struct sluice_processes {
  char uuid[SLUICE_UUID_CHARS];
  uint64_t id;
  uint32_t first;
  uint32_t count; /* of all processes, not only of those in this frame */
  struct sluice_process list[SLUICE_PROCESSES_A_FRAME];
};

enum sluice_notice_kind {
  SLUICE_NOTICE_THRASH_BEGAN = 1,
  SLUICE_NOTICE_THRASH_ENDED = 2,
  SLUICE_NOTICE_LIMIT_REACHED = 3,
  SLUICE_NOTICE_ENGINE_FAILED = 4, /* the shim could not load the engine */
  SLUICE_NOTICE_UNMANAGED_VMM = 5  /* the program allocates by VMM: unmanaged, not oversubscribed */
};

struct sluice_notice {
  uint32_t kind;
  uint32_t reserved;
  char text[184];
};

struct sluice_frame {
  struct sluice_header h;
  union {
    struct sluice_hello hello;
    struct sluice_welcome welcome;
    struct sluice_refuse refuse;
    struct sluice_budget budget;
    struct sluice_token token;
    struct sluice_notice notice;
    struct sluice_memory memory;
    struct sluice_processes processes;
    uint8_t bytes[240];
  } u;
};

/* Counters of one GPU in one process, one a row of counters.def. In the page they lie in two parts, since the first one
 * is full: struct sluice_gpu_slot and struct sluice_gpu_slot_more. The hook writes by relaxed atomic stores, the agent
 * reads; one reading may hold counters of different moments. */
#define SLUICE_COUNTER_U64 uint64_t
#define SLUICE_COUNTER_U32 uint32_t
#define SLUICE_COUNTER_Flag uint32_t
struct sluice_gpu_counters {
  char uuid[SLUICE_UUID_CHARS];
#define SLUICE_COUNTER(name, type, ...) SLUICE_COUNTER_##type name;
#include "counters.def"
};
/* NOLINTBEGIN(bugprone-macro-parentheses): terms of a sum */
enum {
  SLUICE_COUNTER_BYTES = 0
#define SLUICE_COUNTER(name, type, ...) +sizeof(SLUICE_COUNTER_##type)
#define SLUICE_COUNTERS_FIRST
#include "counters.def"
};
enum {
  SLUICE_COUNTER_MORE_BYTES = 0
#define SLUICE_COUNTER(name, type, ...) +sizeof(SLUICE_COUNTER_##type)
#define SLUICE_COUNTERS_MORE
#include "counters.def"
};
/* NOLINTEND(bugprone-macro-parentheses) */
#define SLUICE_GPU_SLOT_BYTES 272
struct sluice_gpu_slot {
  char uuid[SLUICE_UUID_CHARS]; /* empty: the slot is unused, as are those behind it */
#define SLUICE_COUNTER(name, type, ...) SLUICE_COUNTER_##type name;
#define SLUICE_COUNTERS_FIRST
#include "counters.def"
  uint8_t reserved[SLUICE_GPU_SLOT_BYTES - SLUICE_UUID_CHARS - SLUICE_COUNTER_BYTES];
};
#define SLUICE_GPU_SLOT_MORE_BYTES 192
struct sluice_gpu_slot_more {
#define SLUICE_COUNTER(name, type, ...) SLUICE_COUNTER_##type name;
#define SLUICE_COUNTERS_MORE
#include "counters.def"
  uint8_t reserved[SLUICE_GPU_SLOT_MORE_BYTES - SLUICE_COUNTER_MORE_BYTES];
};

/* The shared page: one for each process, made by the agent, zero at first. */
struct sluice_page {
  uint32_t magic;
  uint16_t major, minor;
  uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the hook's last update */
  uint64_t parked;       /* 1: BUDGET has parked the process, and it has launched nothing since */
  uint64_t reserved[5];
  struct sluice_gpu_slot gpu[SLUICE_MAX_GPUS];
  struct sluice_lease lease[SLUICE_MAX_GPUS];            /* in the order of the allocation's GPUs */
  struct sluice_gpu_slot_more gpu_more[SLUICE_MAX_GPUS]; /* of the slot with the same number; an older hook leaves 0 */
};

#define SLUICE_FRAME_BYTES 256
#define SLUICE_PAGE_BYTES 8192

static_assert(sizeof(struct sluice_header) == 16, "layout");
static_assert(sizeof(struct sluice_budget) == 136, "layout");
static_assert(sizeof(struct sluice_token) == 96, "layout");
static_assert(sizeof(struct sluice_processes) == 240, "layout");
static_assert(sizeof(struct sluice_frame) == SLUICE_FRAME_BYTES, "layout");
static_assert(sizeof(struct sluice_gpu_slot) == SLUICE_GPU_SLOT_BYTES, "layout");
static_assert(sizeof(struct sluice_gpu_slot_more) == SLUICE_GPU_SLOT_MORE_BYTES, "layout");
static_assert(sizeof(struct sluice_page) <= SLUICE_PAGE_BYTES, "layout");

#endif /* SLUICE_WIRE_H_ */
