// The way of everything that the application queues: looked at if need be, memory brought in, then the driver's own
// call.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_WORK_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_WORK_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hooklib/engine/device/device.h"
#include "hooklib/engine/observe/params.h"
#include "hooklib/libraries/extents/torch_kernels.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice {

// A piece of work about to be queued.
struct Work {
  Stream* stream = nullptr;
  std::span<const memory::Extent> exact;      // bytes that it touches for certain (copies, memsets, library calls)
  std::span<const uint64_t> words;            // words that may point at what it touches
  std::span<const libraries::Reach> reaches;  // parts of what words point at; which of them are only read is told
  bool known = true;                          // all that it touches is among these
  bool unseen = false;                        // it may write where none of these tells
  std::optional<size_t> hotter;               // a graph: so many reaches at the begin are used more than the rest
  uint64_t id = 0;                            // execution id; 0: not learnt
  const FunctionInfo* function = nullptr;     // of a launch of a kernel
  const LibraryCall* library = nullptr;       // the library call that makes it
  size_t reads = 0;                           // so many at the begin of `exact` are read and not written, as is proven
  bool copy = false;                          // the others are written by a copy
  size_t overwritten = 0;  // so many at the end of `exact` are overwritten whole, and read by nobody before
  uint64_t key = 0;        // of a launch, by which it may be told in brief (core/brief.h); 0: none was made
};

// Calls `write` with each place that a stream's own operations write.
template <typename Write>
void ForEachWritten(const CUstreamBatchMemOpParams* list, unsigned count, Write write) {
  for (unsigned i = 0; list && i < count; ++i) {
    const CUstreamBatchMemOpParams& op = list[i];
    if (op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
      write(op.writeValue.address);
  }
}

// Whether work on this stream must go through RunWork.
inline bool MustLook(const Stream* stream) {
  return stream->device->active.load(std::memory_order_relaxed) || g_captures.load(std::memory_order_relaxed) > 0 ||
         stream->mark_wanted.load(std::memory_order_relaxed);
}

// The short way, while everything fits. Counted when the driver has it: an event that another thread sets meanwhile
// would stand in front of the work and count as behind it.
template <typename Issue>
inline CUresult Counted(Stream* stream, Issue issue) {
  const CUresult result = issue();
  stream->seq.fetch_add(1, std::memory_order_release);
  return result;
}

// Before and after the driver's call. Begin returns with stream->order held where End has to release it.
class WorkScope {
 public:
  explicit WorkScope(const Work& work);
  void End(CUresult result);
  // Of a kernel that all is known of but what its words mean. True: no more need be said of the launch, and EndFastPath
  // is due behind the driver's call, with stream->order held until then. Only while no stream is captured.
  static bool TryFastPath(Stream* stream, uint64_t id, uint64_t key);
  static void EndFastPath(Stream* stream) {
    stream->seq.fetch_add(1, std::memory_order_release);
    stream->order.unlock();
  }

 private:
  static uint64_t KeyOf(const Work& work);
  static bool ServeFast(Stream* stream, uint64_t id, bool known, uint64_t key);
  void RememberFast(const Work& work, uint64_t key);
  static bool MustThrottle(const Work& work);
  static bool Throttle(const Work& work);
  bool CarryOut(const Work& work, const policy::Plan& plan);
  Stream* stream_;
  bool ordered_ = false;
  bool capturing_ = false;
  bool follow_up_ = true;  // there is something to do behind the driver's call
  std::vector<memory::Extent> evict_after_;
  uint64_t after_op_ = 0;
  struct Timed {
    policy::LaunchProbe probe;
    policy::GraphProbe way;
    std::string name;
    CUevent begin;
  };
  std::optional<Timed> timed_;
};

template <typename Issue>
CUresult RunWork(const Work& work, Issue issue) {
  WorkScope scope(work);
  const CUresult result = issue();
  scope.End(result);
  return result;
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_WORK_H_
