// The progress of the GPU, as the policy asks for it. hooklib/engine/device answers with CUDA events, the tests with a
// fake.
#ifndef SLUICE_HOOKLIB_MEMORY_TIMELINE_H_
#define SLUICE_HOOKLIB_MEMORY_TIMELINE_H_

#include <vector>

#include "hooklib/memory/types.h"

namespace sluice::memory {

class Timeline {
 public:
  virtual ~Timeline() = default;
  // Whether the GPU has finished everything up to the mark. Never blocks. A "no" may be stale, a "yes" never is.
  virtual bool Done(Mark mark) = 0;
  // Appends a mark for every stream of the device that has unfinished work, so that Done() of each becomes true in
  // time. False where a mark cannot be set now (a stream is being captured); then nothing is appended.
  virtual bool MarkAll(std::vector<Mark>* marks) = 0;
  // Transfers of the engine: operation number `op` (from 1) on the in or out queue of an application stream.
  virtual bool InDone(StreamId stream, uint64_t op) = 0;
  virtual bool OutDone(StreamId stream, uint64_t op) = 0;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_TIMELINE_H_
