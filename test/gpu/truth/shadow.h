// The bytes that a launch changed. All managed memory has a copy in device memory, and after a launch the GPU compares
// the touched ranges (changes.cu). The GPU does it, since the touched pages are resident: the host would take a fault
// of its own for every 4 KiB.
#ifndef SLUICE_TEST_GPU_TRUTH_SHADOW_H_
#define SLUICE_TEST_GPU_TRUTH_SHADOW_H_

#include <cuda.h>

#include <cstdint>
#include <map>
#include <vector>

#include "trace/recorder.h"

namespace sluice::truth {

// Not thread-safe. Calls the driver in the current context. Any failure turns it off, is logged once on stderr, and the
// recording continues without directions.
class Shadow {
 public:
  // Loads changes.cu, compiled for this GPU, and checks it with known bytes.
  void Load(const char* cubin);
  bool on() const { return on_; }

  void Follow(uint64_t address, uint64_t bytes, bool copy);  // a managed block; without `copy` it holds zeros
  void Forget(uint64_t address);
  void Refresh(uint64_t address, uint64_t bytes);  // after a write that no launch made

  // The parts of these ranges whose bytes changed since the last comparison, in granules: kWrite where one word filled
  // them before, else kReadWrite. Runs close together are merged, so that a recording stays small.
  std::vector<trace::AccessRange> Changed(const std::vector<trace::AccessRange>& touched);

 private:
  struct Copy {
    uint64_t bytes;
    CUdeviceptr at;
  };
  void Try(CUresult result, const char* action);
  void Compare(CUdeviceptr now, CUdeviceptr before, uint64_t granules, uint64_t first);

  bool on_ = false;
  CUfunction kernel_ = nullptr;
  CUdeviceptr flags_ = 0;
  std::vector<uint8_t> host_flags_;
  std::map<uint64_t, Copy> copies_;  // by the block's address
};

}  // namespace sluice::truth

#endif  // SLUICE_TEST_GPU_TRUTH_SHADOW_H_
