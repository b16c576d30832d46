/* The wire format between a hooked process and the node agent: fixed-size frames on a SOCK_SEQPACKET Unix socket, and a
 * page of counters that the agent reads without a call. Plain C11, usable alone by shim, engine, agent and fuzzer.
 *
 * Identity is the socket that a process connected to; no frame claims one. All integers are little-endian host order
 * (both ends run on one machine). Strings are NUL-terminated, unused bytes zero. A frame of another size, magic or
 * major version, or of an unknown type, is refused (agent: REFUSE, then close). A receiver ignores what a newer minor
 * version put into reserved bytes.
 *
 * Conversation: hook sends HELLO; agent answers WELCOME (carrying the counters page's memfd, SCM_RIGHTS, sealed against
 * resizing) and one BUDGET per GPU of the allocation, or REFUSE. Then, at any time: agent sends BUDGET (new values; the
 * hook follows and reports what it holds in the page: that is the answer), TOKEN_GRANT, TOKEN_REVOKE, PING; hook sends
 * TOKEN_REQUEST, TOKEN_RELEASE, NOTICE, PONG. A TOKEN_REQUEST that is repeated while it waits is answered by PING: a
 * hook that hears nothing for 10 s takes the agent for lost. A closed socket releases all that the process held. */
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
  SLUICE_TOKEN_REVOKE = 7,  /* agent -> hook: release as soon as what is queued is done */
  SLUICE_TOKEN_RELEASE = 8, /* hook -> agent */
  SLUICE_NOTICE = 9,        /* hook -> agent: something worth an event */
  SLUICE_PING = 10,         /* agent -> hook */
  SLUICE_PONG = 11          /* hook -> agent */
};

struct sluice_header {
  uint32_t magic;
  uint8_t major, minor;
  uint16_t type; /* enum sluice_frame_type */
  uint64_t seq;  /* sender's count, from 1 */
};

/* sluice_hello.flags. RETURNING: the process was served before and its page has content. The agent sends WELCOME and
 * PING; the hook moves its page into the new memfd before it answers PONG; only then does the agent read it and send
 * BUDGET. */
#define SLUICE_HELLO_RETURNING 1u

struct sluice_hello {
  int32_t pid; /* in the sender's own namespace; for people only, identity is the socket */
  uint32_t flags;
  uint64_t start_ticks; /* field 22 of /proc/self/stat */
  char version[SLUICE_VERSION_CHARS];
  char command[64]; /* /proc/self/comm and what fits of the arguments */
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

/* All that may change while a process runs. Shares in millionths. */
struct sluice_budget {
  char uuid[SLUICE_UUID_CHARS];
  uint64_t budget_bytes; /* resident bytes, plain memory included, that the process may hold now */
  uint64_t
      guaranteed_bytes; /* what memory queries report as the total when visible is BUDGET: does not follow lending */
  uint64_t limit_bytes; /* live bytes; 0: the card's memory */
  uint64_t host_bytes;  /* bytes that may lie evicted in host memory; UINT64_MAX: not limited by the agent */
  uint64_t generation;  /* rises with every change; the hook copies it into its page once it has followed */
  uint32_t compute_request; /* 0..1000000 */
  uint32_t compute_limit;   /* 1..1000000 */
  uint8_t memory_factor;    /* 1..100, 0: chosen by the hook */
  uint8_t prefetch;         /* enum sluice_prefetch */
  uint8_t log_level;        /* enum sluice_log_level */
  uint8_t visible;          /* enum sluice_visible */
  uint8_t tokens;           /* 1: launches need a token now */
  uint8_t reserved[3];
};

struct sluice_token {
  char uuid[SLUICE_UUID_CHARS];
  uint64_t quantum_ns; /* GRANT: GPU time that may be spent */
  uint64_t lease_ns;   /* GRANT: wall time after which the arbiter takes it back by itself */
  uint64_t used_ns;    /* RELEASE: kernel time by GPU events */
  uint64_t burst_ns;   /* REQUEST, RELEASE: last measured burst */
  uint64_t id;         /* of the grant; REVOKE and RELEASE repeat it */
  uint32_t estimated;  /* RELEASE: 1 if part of used_ns was measured without events */
  uint32_t reserved;
};

enum sluice_notice_kind {
  SLUICE_NOTICE_THRASH_BEGAN = 1,
  SLUICE_NOTICE_THRASH_ENDED = 2,
  SLUICE_NOTICE_LIMIT_REACHED = 3,
  SLUICE_NOTICE_ENGINE_FAILED = 4, /* the shim could not load the engine */
  SLUICE_NOTICE_PLAIN_VMM = 5      /* allocates through VMM: not oversubscribed */
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

/* Counters of one GPU in one process. The hook writes (relaxed atomic stores), the agent reads; a reader may see two
 * counters of different moments. Bytes and nanoseconds since the process attached unless a line says "now". */
struct sluice_gpu_counters {
  char uuid[SLUICE_UUID_CHARS];      /* empty: slot unused */
  uint64_t generation;               /* of the BUDGET that is in force */
  uint64_t budget_bytes;             /* now, in force */
  uint64_t resident_bytes;           /* now: tracked bytes believed resident */
  uint64_t plain_bytes;              /* now: application memory that is not managed (VMM, pools, arrays, NCCL) */
  uint64_t live_bytes;               /* now: tracked bytes allocated and not freed (or reported freed) */
  uint64_t requested_bytes;          /* now: managed memory requested from the driver */
  uint64_t host_bytes;               /* high-water mark of bytes evicted: what is charged to host memory */
  uint64_t over_budget_max;          /* largest excess of resident + plain over budget ever seen */
  uint64_t bytes_in, bytes_out;      /* moved by fetches and evictions */
  uint64_t bytes_saved;              /* fetches and evictions that needed no copy (dead or fresh blocks) */
  uint64_t fault_bytes;              /* by demand faults; estimated unless fault_exact */
  uint64_t launches, launches_known; /* all; with a complete access set */
  uint64_t hits, misses;             /* blocks that a launch needed: resident already, not resident */
  uint64_t stall_ns;                 /* streams waited for transfers; estimated from event times */
  uint64_t over_budget_launches;
  uint64_t wrong_predictions;
  uint64_t kernel_ns; /* GPU time used, by GPU events; of it kernel_estimated_ns without a token, from samples */
  uint64_t working_set_bytes; /* now: bytes that the last 10 s in which something was launched touched */
  uint32_t factor;            /* now: percent in force */
  uint32_t fault_exact;
  uint64_t kernel_estimated_ns;
  uint64_t reserved[5];
};

/* The shared page. Made by the agent, one per process, zero at first. */
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
static_assert(sizeof(struct sluice_gpu_counters) == 272, "layout");
static_assert(sizeof(struct sluice_page) <= SLUICE_PAGE_BYTES, "layout");

#endif /* SLUICE_WIRE_H_ */
