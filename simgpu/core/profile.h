// The simulated card and driver. Rates come from micro-benchmarks only and are never fitted to a whole program.
#ifndef SIMGPU_CORE_PROFILE_H_
#define SIMGPU_CORE_PROFILE_H_

#include <cstdint>
#include <string>

#include "../simgpu.h"

namespace simgpu {

// Times in ns, rates in GB/s (bytes per ns), sizes in bytes. The defaults are an H200's under driver 580
// (docs/design/driver.md).
struct Profile {
  std::string name = "NVIDIA H200";
  int64_t gpus = 1;
  int64_t memory = 150754820096;      // the total of NVML and cuMemGetInfo
  int64_t reserve = 620 << 20;        // taken by the driver before any process
  int64_t context_bytes = 512 << 20;  // taken by each process' first context on a card
  int64_t driver = 580;               // 535, 550 or 580: decides which calls exist
  int64_t multiprocessors = 132;
  int64_t concurrent_managed_access = 1;
  int64_t host_page_tables = 0;  // 1: coherent platforms
  int64_t ecc = 1;
  int64_t numa = 0;
  int64_t clique_cards = 0;  // cards of one NVLink fabric clique; 0: the node has no fabric

  double copy_gbps = 55;          // pinned, one direction
  double copy_duplex_gbps = 102;  // pinned, sum of both directions
  double pageable_gbps = 12;
  double device_copy_gbps = 1900;  // inside the card
  double peer_gbps = 200;
  double prefetch_in_2m_gbps = 19;  // by size of the piece that one call moves
  double prefetch_in_16m_gbps = 37;
  double prefetch_in_64m_gbps = 46;
  double prefetch_in_4g_gbps = 51;
  double prefetch_out_2m_gbps = 8;
  double prefetch_out_gbps = 15;  // 16 MiB and more
  double batch_in_gain = 1.16;    // batch of 2 MiB pieces against one call a piece
  double batch_out_gain = 1.4;
  double managed_duplex_gbps = 28;  // sum of both directions, prefetches
  // Eviction by requests of several threads (probes evict.cu, cut.cu): one thread, all threads, the sum of both
  // directions, and the delay from the stream's turn to the first byte.
  double request_out_gbps = 9.4;
  double requests_out_gbps = 34;
  double requests_duplex_gbps = 66;
  int64_t request_begin_ns = 50000;
  // The sum of both directions if one is by faults: the low end of the measurements of managed memory.
  double fault_duplex_gbps = 20;
  // Faults by the kernel's access pattern: medians of rates.py's kernels in five processes on two machines.
  double fault_gbps = 11;
  double fault_elementwise_gbps = 11.6;
  double fault_lists_gbps = 6.7;
  double fault_reduction_gbps = 8.1;
  double fault_product_gbps = 9.2;
  double fault_few_rows_gbps = 8.5;
  double fault_convolution_gbps = 10.9;
  double fault_discarded_gbps = 0.5;         // writes to memory discarded on the card: 0.4 to 1.3 s for 512 MiB
  double populate_gbps = 195;                // pages without contents, by a prefetch: 5.5 ms per GiB
  double evict_gbps = 15;                    // by the driver, before the fault or prefetch that needs memory
  double remote_gbps = 84;                   // remote access (accessed-by): the sum of both directions ...
  double remote_one_way_gbps = 51.5;         // ... and one direction alone
  double filter_rereads = 3;                 // a convolution's passes per pass of a product: median of 32, 1 to 16
  double duplicate_write_ns_per_byte = 3.4;  // GPU write to a read-mostly duplicate: 16 MiB took 53 to 61 ms

  int64_t launch_host_ns = 3300;
  int64_t kernel_gap_ns = 1000;  // between two kernels of one stream
  int64_t call_host_ns = 300;    // queries, context switches and the like
  int64_t event_host_ns = 900;
  int64_t copy_host_ns = 3000;
  int64_t copy_latency_ns = 1500;
  int64_t malloc_host_ns = 29000;
  int64_t managed_malloc_host_ns = 20000;
  int64_t free_host_ns = 29000;
  int64_t pool_malloc_host_ns = 1500;
  int64_t prefetch_deferred_host_ns = 20000;
  int64_t prefetch_batch_piece_host_ns = 1200;
  int64_t prefetch_call_ns = 3000;            // a prefetch of resident memory: this ...
  int64_t prefetch_resident_block_ns = 1600;  // ... and this for each block of 2 MiB
  int64_t prefetch_queue = 64;                // deferred prefetches before the caller blocks
  int64_t launch_queue = 1024;                // pending operations of a stream before the caller blocks
  double populate_host_gbps = 6.8;            // pages that are nowhere: 38 to 41 ms for 256 MiB (H100)
  int64_t discard_ns_per_block = 6400;        // 3.3 ms per GiB
  int64_t discard_host_ns_per_block = 13700;  // of host-resident memory: 7 ms per GiB
  int64_t advise_host_ns = 22000;             // a call of cuMemAdvise ...
  int64_t advise_ns_per_block = 60000;        // ... for each block of 2 MiB; also added to a block's eviction
  // Read-mostly advice, for each block of 2 MiB:
  // - first: set in host memory after an eviction, the first time (70 to 85 ms a GiB)
  // - moved: the same later (15 to 20 ms a GiB)
  // - host: set in host memory otherwise (5 ms a GiB)
  // - card: set on the card, or withdrawn
  int64_t read_mostly_first_ns_per_block = 150000;
  int64_t read_mostly_moved_ns_per_block = 35000;
  int64_t read_mostly_host_ns_per_block = 10000;
  int64_t read_mostly_card_ns_per_block = 2700;
  int64_t graph_launch_host_ns = 6000;
  int64_t graph_node_ns = 600;
  int64_t vmm_map_ns = 13000;  // unmap, map, set access: 40 us together
  int64_t vmm_create_ns = 9500;
  int64_t vmm_create_host_ns_per_mib = 256000;
  int64_t host_func_ns = 10000;
  int64_t host_alloc_ns_per_mib = 100000;
  int64_t content_bytes = 256 << 20;  // real bytes kept for copies, at most

  // CUDA's version number of the driver: 13000 for 580.
  int CudaVersion() const { return driver >= 580 ? 13000 : driver >= 550 ? 12040 : 12020; }
  std::string DriverVersion() const;
  double PrefetchRate(bool in, uint64_t piece) const;

  double FaultGbps(simgpu_kernel kind) const {
    switch (kind) {
      case SIMGPU_ELEMENTWISE:
        return fault_elementwise_gbps;
      case SIMGPU_LISTS:
        return fault_lists_gbps;
      case SIMGPU_REDUCTION:
        return fault_reduction_gbps;
      case SIMGPU_PRODUCT:
        return fault_product_gbps;
      case SIMGPU_FEW_ROWS:
        return fault_few_rows_gbps;
      case SIMGPU_CONVOLUTION:
        return fault_convolution_gbps;
      case SIMGPU_UNKNOWN:
        break;
    }
    return fault_gbps;
  }
};

// Reads "key = value" lines ('#' starts a comment; sizes may end in K, M, G, Ki, Mi, Gi). Empty on success, else one
// message with file, line, key and the accepted values.
std::string LoadProfile(const std::string& path, Profile* profile);

// SIMGPU_PROFILE: a path, or the name of a profile beside the library (<dir>/profiles/<name>.profile). Exits with 2 and
// a message if it is wrong: a test on another card than it requested would prove nothing.
const Profile& TheProfile();

}  // namespace simgpu

#endif  // SIMGPU_CORE_PROFILE_H_
