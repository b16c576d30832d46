/* The simulated GPU's side channel, found with dlsym in the simulated libcuda.so.1 and absent from a real driver. A
 * test or a trace replayer passes facts to the simulation and queries it, and the hook does not see either. Plain C.
 *
 * All functions may be called from any thread after cuInit. Times are virtual nanoseconds, sizes are bytes. */
#ifndef SIMGPU_SIMGPU_H_
#define SIMGPU_SIMGPU_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIMGPU_READ 1u
#define SIMGPU_WRITE 2u
/* How often the kernel reads its input: an operand of a matrix product is read again for each row of tiles. Matters
 * only for remote reads over the link. */
#define SIMGPU_PASSES(n) ((uint32_t)(n) << 8)

/* A byte range that the next launch truly touches. `object` names its contents (a tensor's number in a trace; 0:
 * unknown): a read that finds another object's bytes, or a write over another object that is still in use, is misuse.
 */
struct simgpu_touch {
  uint64_t address;
  uint64_t length;
  uint32_t access; /* SIMGPU_READ | SIMGPU_WRITE, and SIMGPU_PASSES */
  uint32_t object;
};

/* The kernel's access pattern, which decides the rate of faults (the profile's fault_*_gbps): how many pages wait at
 * once, and whether neighbours do. A convolution also reads a remote operand more often than a product of the same
 * dimensions, again for each place of its filter (filter_rereads). */
enum simgpu_kernel {
  SIMGPU_UNKNOWN,     /* fault_gbps */
  SIMGPU_ELEMENTWISE, /* each thread block its own range */
  SIMGPU_LISTS,       /* elementwise over lists of tensors: an optimizer's step */
  SIMGPU_REDUCTION,   /* sums and normalisations */
  SIMGPU_PRODUCT,     /* of matrices, attention too */
  SIMGPU_FEW_ROWS,    /* a product with fewer than 64 rows: reads a large matrix once */
  SIMGPU_CONVOLUTION
};

/* Flags of simgpu_next_launch. */
#define SIMGPU_KERNEL(kind) ((uint32_t)(kind) << 8)
#define SIMGPU_MUST_BE_RESIDENT 1u /* a fault of this launch is misuse */
/* The kernel ends with CUDA_ERROR_ILLEGAL_ADDRESS, which later calls of the process answer too. Not in graphs. */
#define SIMGPU_ILLEGAL_ADDRESS 2u

/* The next kernel launch made by this thread (or captured by it, or the next kernel node added) touches exactly these
 * ranges and runs for duration_ns, instead of its image's. The touches are copied. Returns 0. */
int simgpu_next_launch(const struct simgpu_touch* touches, size_t count, uint64_t duration_ns, uint32_t flags);

/* The next kernel that this thread captures, or adds to a graph, sets a condition of the graph
 * (cuGraphConditionalHandleCreate): its first run to values[0], the next to values[1], and cyclically.
 * Returns 0. */
int simgpu_next_sets(uint64_t handle, const unsigned* values, size_t count);

/* The calling thread's virtual clock, and the application's own time between two calls. */
uint64_t simgpu_now_ns(void);
void simgpu_advance_host(uint64_t ns);

/* Figures of one card. Those marked (all) are of all processes on the card; the rest are of this process. */
struct simgpu_stats {
  uint64_t size;               /* sizeof(struct simgpu_stats), set by the caller */
  uint64_t now_ns;             /* time up to which the card has worked */
  uint64_t launches;           /* kernels run */
  uint64_t kernel_ns;          /* time kernels ran, stalls excluded */
  uint64_t stall_ns;           /* time kernels waited for faults */
  uint64_t fault_bytes;        /* moved to the card by faults */
  uint64_t prefetch_in_bytes;  /* moved to the card by prefetches */
  uint64_t prefetch_out_bytes; /* moved to the host by prefetches */
  uint64_t evicted_bytes;      /* moved to the host by the driver because the card was full */
  uint64_t copy_in_bytes;      /* copies host to device */
  uint64_t copy_out_bytes;     /* copies device to host */
  uint64_t remote_bytes;       /* read or written remotely over the link (accessed-by) */
  uint64_t discarded_bytes;
  uint64_t duplicate_write_bytes;   /* GPU writes to read-mostly duplicates */
  uint64_t resident_bytes;          /* managed memory on the card now */
  uint64_t resident_peak_bytes;     /* the maximum so far */
  uint64_t unmanaged_bytes;         /* unmanaged memory */
  uint64_t evicted_in_use_bytes;    /* evicted while a running kernel had touched it */
  uint64_t races;                   /* unordered conflicting accesses seen (see README) */
  uint64_t misuses;                 /* reports of the misuse detector */
  uint64_t managed_requested_bytes; /* live cuMemAllocManaged bytes */
  uint64_t card_used_bytes;         /* (all) */
  uint64_t card_total_bytes;        /* (all) */
  uint64_t calls;                   /* driver calls made */
  /* Of prefetch_in_bytes: evicted untouched, or not touched yet; in units of 64 KiB. */
  uint64_t prefetch_unused_bytes;
};
/* 0, or -1 for a wrong device or size. `device` numbers all cards, as NVML does, whatever CUDA_VISIBLE_DEVICES says.
 * First processes all operations that are due at the calling thread's time. */
int simgpu_stats(int device, struct simgpu_stats* out);

/* 1: all of [address, address + length) has read-mostly advice, the hook's own included. */
int simgpu_read_mostly(uint64_t address, uint64_t length);

/* Bytes of [address, address + length) that are on the card now. */
uint64_t simgpu_resident_bytes(uint64_t address, uint64_t length);

/* A digest of the contents, equal in two runs that computed the same, wherever the memory was. */
uint64_t simgpu_digest(uint64_t address, uint64_t length);

/* The last message of the misuse detector, or "". Valid until the next report. */
const char* simgpu_last_misuse(void);

/* A named instant in the timeline (SIMGPU_TIMELINE). */
void simgpu_mark(const char* name);

/* From now on `callback` is called at the beginning of each driver call, on its thread and outside the simulation's
 * locks, with the call's name, as CUPTI's driver callbacks are. It may call the driver; its calls are not reported.
 * Null: none. Call it while no other thread is in the driver. */
void simgpu_on_call(void (*callback)(const char* call, void* data), void* data);

/* An XID error on a card, as NVML's event set reports it. Returns 0. */
int simgpu_inject_xid(int device, uint32_t xid);

#ifdef __cplusplus
}
#endif
#endif /* SIMGPU_SIMGPU_H_ */
