// What core/ needs to know of GPU time. Implemented over CUDA events in cuda/, and by a fake in the tests.
#ifndef SLUICE_HOOKLIB_MEMORY_TIMELINE_H_
#define SLUICE_HOOKLIB_MEMORY_TIMELINE_H_

#include <vector>

#include "hooklib/memory/types.h"

namespace sluice::memory {

class Timeline {
 public:
  virtual ~Timeline() = default;
  // Whether the GPU has finished everything up to the mark. Never blocks; "no" may be said too long, never "yes" too
  // early.
  virtual bool Done(Mark mark) = 0;
  // Appends a mark for every stream of the device that has unfinished work, so that Done() of each becomes true in
  // time. False where a mark cannot be set now (a stream is being captured); nothing is appended then.
  virtual bool MarkAll(std::vector<Mark>* marks) = 0;
  // Transfers of the engine: op number `op` (from 1) on the in or out queue that belongs to an application stream.
  virtual bool InDone(StreamId stream, uint64_t op) = 0;
  virtual bool OutDone(StreamId stream, uint64_t op) = 0;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_TIMELINE_H_
