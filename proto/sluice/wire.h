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
 *   3. From then on, at any time: the agent sends BUDGET, TOKEN_GRANT, TOKEN_REVOKE and PING; the hook sends
 *      TOKEN_REQUEST, TOKEN_RELEASE, NOTICE and PONG.
 * The hook answers BUDGET in its page: it follows the new values, then stores the generation and its counters.
 * The agent answers a repeated TOKEN_REQUEST by PING while the first one waits. A hook that receives nothing for 10 s
 * takes the agent for lost. A closed socket releases everything that the process held. */
#ifndef SLUICE_WIRE_H_
#define SLUICE_WIRE_H_

#include <assert.h>
#include <stdint.h>

#define SLUICE_WIRE_MAGIC 0x43494c53u /* "SLIC" */
#define SLUICE_WIRE_MAJOR 1
#define SLUICE_WIRE_MINOR 0
#define SLUICE_MAX_GPUS 16
#define SLUICE_UUID_CHARS 48 /* "GPU-8-4-4-4-12" and NUL, padded */
#define SLUICE_VERSION_CHARS 32

enum sluice_frame_type {
  SLUICE_HELLO = 1,         /* hook -> agent */
  SLUICE_WELCOME = 2,       /* agent -> hook, one memfd attached */
  SLUICE_REFUSE = 3,        /* agent -> hook, then close */
  SLUICE_BUDGET = 4,        /* agent -> hook */
  SLUICE_TOKEN_REQUEST = 5, /* hook -> agent */
  SLUICE_TOKEN_GRANT = 6,   /* agent -> hook */
  SLUICE_TOKEN_REVOKE = 7,  /* agent -> hook: release as soon as the queued work is done */
  SLUICE_TOKEN_RELEASE = 8, /* hook -> agent */
  SLUICE_NOTICE = 9,        /* hook -> agent: the agent records an event */
  SLUICE_PING = 10,         /* agent -> hook */
  SLUICE_PONG = 11          /* hook -> agent */
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
  uint8_t reserved[3];
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
    uint8_t bytes[240];
  } u;
};

/* Counters of one GPU in one process, one a row of counters.def. The hook writes by relaxed atomic stores, the agent
 * reads; one reading may hold counters of different moments. */
#define SLUICE_COUNTER_U64 uint64_t
#define SLUICE_COUNTER_U32 uint32_t
#define SLUICE_COUNTER_Flag uint32_t
enum {
  SLUICE_COUNTER_BYTES = 0
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a term of the sum */
#define SLUICE_COUNTER(name, type, ...) +sizeof(SLUICE_COUNTER_##type)
#include "counters.def"
};
#define SLUICE_GPU_COUNTERS_BYTES 272
struct sluice_gpu_counters {
  char uuid[SLUICE_UUID_CHARS]; /* empty: the slot is unused, as are those behind it */
#define SLUICE_COUNTER(name, type, ...) SLUICE_COUNTER_##type name;
#include "counters.def"
  uint8_t reserved[SLUICE_GPU_COUNTERS_BYTES - SLUICE_UUID_CHARS - SLUICE_COUNTER_BYTES];
};

/* The shared page: one for each process, made by the agent, zero at first. */
struct sluice_page {
  uint32_t magic;
  uint16_t major, minor;
  uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the hook's last update */
  uint64_t reserved[6];
  struct sluice_gpu_counters gpu[SLUICE_MAX_GPUS];
};

#define SLUICE_FRAME_BYTES 256
#define SLUICE_PAGE_BYTES 8192

static_assert(sizeof(struct sluice_header) == 16, "layout");
static_assert(sizeof(struct sluice_budget) == 104, "layout");
static_assert(sizeof(struct sluice_token) == 96, "layout");
static_assert(sizeof(struct sluice_frame) == SLUICE_FRAME_BYTES, "layout");
static_assert(sizeof(struct sluice_gpu_counters) == SLUICE_GPU_COUNTERS_BYTES, "layout");
static_assert(sizeof(struct sluice_page) <= SLUICE_PAGE_BYTES, "layout");

#endif /* SLUICE_WIRE_H_ */
