// The operations of a stream.
#ifndef SIMGPU_CORE_OPERATION_H_
#define SIMGPU_CORE_OPERATION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../simgpu.h"
#include "memory.h"

namespace simgpu {

struct Stream;

// Access bit of a word that a kernel uses as an address: its value differs from run to run and changes no result.
constexpr uint32_t kAddressOnly = 4;

struct Touch {
  uint64_t address, length;
  uint32_t access, object;
};

// A point in a stream's work. Streams and hosts wait for it.
struct Fence {
  bool done = false;
  int64_t time = 0;
  std::vector<Stream*> waiters;
};
using FencePtr = std::shared_ptr<Fence>;

enum class OpKind : uint8_t {
  kKernel,
  kCopy,
  kMemset,
  kPrefetch,
  kDiscard,
  kFence,
  kWait,
  kHostFunc,
  kWaitValue,
  kWriteValue,
  kAction
};

// Rows of bytes from src to dst; an address outside the arena is the host's.
struct CopyWork {
  uint64_t dst = 0, src = 0;
  uint64_t width = 0, height = 1, depth = 1;
  uint64_t dst_pitch = 0, src_pitch = 0, dst_slice = 0, src_slice = 0;
  bool pinned = true;
  std::shared_ptr<Bytes> staged;  // pageable source, taken at the call
};

struct MemsetWork {
  uint64_t dst = 0, pitch = 0, width = 0, height = 1;  // width in bytes
  uint64_t pattern = 0;                                // 8 bytes
};

struct PrefetchRange {
  uint64_t address, length;
  int32_t target;  // card or kHostCard
};

struct HostFuncWork {
  void (*run)(void* context) = nullptr;
  void* context = nullptr;
};

struct ValueWork {
  uint64_t address = 0, value = 0;
  uint32_t flags = 0;  // 0: >=, 1: ==, 2: and, 3: nor
  bool wide = false;
};

struct Op {
  OpKind kind = OpKind::kFence;
  bool started = false, finishing = false;
  bool must_be_resident = false;
  simgpu_kernel kind_of_kernel = SIMGPU_UNKNOWN;
  bool discard_too = false;      // of a prefetch: contents are dropped first
  uint8_t eviction_threads = 0;  // of a prefetch to the host: eviction threads; 0: by the driver's call
  uint8_t phase = 0;
  int64_t enqueued = 0, began = 0;
  uint64_t number = 0;         // counts operations of the process
  const char* name = nullptr;  // kernel's, of static or module lifetime
  int64_t duration = 0;
  uint64_t seed = 0;  // of a kernel's stamps, besides its inputs
  std::vector<Touch> touches;
  size_t touch = 0;  // progress through touches or ranges
  uint64_t offset = 0;
  uint64_t fault_bytes = 0, duplicate_bytes = 0;
  uint64_t remote_in = 0, remote_out = 0;  // remote accesses over the link
  std::vector<PrefetchRange> ranges;
  FencePtr fence;  // completes with the operation
  FencePtr wait;   // kWait
  CopyWork copy;
  MemsetWork set;
  HostFuncWork host;
  ValueWork value;
  void (*action)(void* a, uint64_t b) = nullptr;  // kAction: at its time, under the simulator's lock
  void* action_a = nullptr;
  uint64_t action_b = 0;
};

}  // namespace simgpu

#endif  // SIMGPU_CORE_OPERATION_H_
