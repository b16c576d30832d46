// Where the recorded program's blocks and tensors lie in the replaying process, and the memory that a launch touches.
#ifndef SLUICE_TRACE_REPLAY_PLAYED_MEMORY_H_
#define SLUICE_TRACE_REPLAY_PLAYED_MEMORY_H_

#include <cstdint>
#include <map>
#include <vector>

#include "driver.h"
#include "trace/reader.h"

namespace sluice::replay {

// Addresses are the recorded ones unless a comment says otherwise. Not thread-safe.
class PlayedMemory {
 public:
  struct Block {
    uint64_t bytes = 0, played = 0;  // played: its address in this process
    trace::AllocKind kind = trace::AllocKind::kDevice;
    bool reported = false;  // its tensors are live, no longer the block as a whole
  };

  // `name_objects`: names each tensor to the simulated GPU's misuse detector, where accesses are exact.
  PlayedMemory(const trace::Trace& trace, bool name_objects) : trace_(trace), name_objects_(name_objects) {}

  void AddBlock(uint64_t address, const Block& block);
  // The removed block; bytes 0: none was recorded at this address.
  Block RemoveBlock(uint64_t address);
  // The framework's allocator reports a tensor; bytes < 0: freed.
  void Report(uint64_t address, int64_t bytes);

  // The address in this process of a byte of a live block; any other value is returned unchanged.
  uint64_t Translate(uint64_t address) const;

  // A copy, a memset or a launch wrote the range.
  void NoteWritten(uint64_t address, uint64_t bytes);

  // The ranges that the launch touches, in this process's addresses. The truth column is preferred; a synthetic trace's
  // access sets are exact, and better than pages: they have direction and tensor.
  void AddTouches(const trace::Launch& launch, std::vector<simgpu_touch>& out);

  // How the kernel passes over its memory, by its name. For a matrix product, sets how often each operand is read.
  simgpu_kernel Kind(const trace::Launch& launch, std::vector<simgpu_touch>& touches) const;

 private:
  struct Tensor {
    uint64_t bytes;
    uint32_t object;
    std::map<uint64_t, uint64_t> written;  // begin -> end: touched since it was allocated
  };

  std::map<uint64_t, Block>::const_iterator FindBlock(uint64_t address) const;
  std::map<uint64_t, Tensor>::const_iterator FindTensor(uint64_t address) const;
  void AddTruth(uint64_t address, uint64_t bytes, trace::Access access, std::vector<simgpu_touch>& out) const;
  void AddTouch(uint64_t address, uint64_t bytes, uint32_t access, bool name_object,
                std::vector<simgpu_touch>& out) const;

  const trace::Trace& trace_;
  const bool name_objects_;
  std::map<uint64_t, Block> blocks_;
  std::map<uint64_t, Tensor> tensors_;  // reported ranges, and blocks of the GPU's memory without any
  uint32_t next_object_ = 1;
};

}  // namespace sluice::replay

#endif  // SLUICE_TRACE_REPLAY_PLAYED_MEMORY_H_
