// CUPTI's callbacks (calls.cc), and the functions that they call (truth.cc).
#ifndef SLUICE_TEST_GPU_TRUTH_CALLS_H_
#define SLUICE_TEST_GPU_TRUTH_CALLS_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "trace/recorder.h"

namespace sluice::truth {

// Subscribes to every call that is recorded. To be called once, after the recorder is made.
void Subscribe();

// While one is alive on a thread, the recorder's own CUDA calls are not recorded, and the recording's clock stands
// still.
class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
};
uint64_t ProgramTime(void*);  // ns, without the recorder's own time; the recording's clock

void LogError(const char* call, int code);
#define TRY(call)                                                                 \
  do {                                                                            \
    if (const int code = (call); code != 0) sluice::truth::LogError(#call, code); \
  } while (0)

// In truth.cc:
struct Shape {
  CUfunction function;
  unsigned grid[3], block[3], shared;
  CUstream stream;
  void** parameters;
  void** extra;
};

trace::Recorder& TheRecorder();
void LaunchBegins(const Shape& shape, const char* symbol, uint32_t correlation);
void LaunchEnded();
void Copied(CUstream stream, const void* to, const void* from, size_t bytes, bool waits);
void Filled(CUstream stream, uint64_t to, size_t bytes, uint64_t value);
void Freed(uint64_t address);
void LibraryAllocated(uint64_t address, uint64_t bytes);  // by cuMemAlloc, not PyTorch's

inline uint64_t Handle(const void* p) { return reinterpret_cast<uint64_t>(p); }

}  // namespace sluice::truth

#endif  // SLUICE_TEST_GPU_TRUTH_CALLS_H_
