// A process that is parked and woken while a test leads it by commands: park_test.py.
#include <iostream>
#include <memory>
#include <sstream>

#include "test/engine/scenario.h"
#include "test/engine/vmm.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

class Led {
 public:
  explicit Led(int device) : card_(device), stream_(card_.Stream()) {}

  // Answers by one line.
  std::string Do(const std::string& word, uint64_t number) {
    if (word == "blocks") {  // so many of 64 MiB
      for (uint64_t i = 0; i < number; ++i) {
        blocks_.push_back(Alloc(kBytes));
        card_.Named(stream_, {Write(blocks_.back(), kBytes, static_cast<uint32_t>(blocks_.size()))});
      }
      OK(cuStreamSynchronize(stream_));
    } else if (word == "steps") {  // each updates all blocks, one launch each
      for (uint64_t step = 0; step < number; ++step) {
        for (uint64_t i = 0; i < blocks_.size(); ++i) UpdateBlock(i);
      }
      OK(cuStreamSynchronize(stream_));
    } else if (word == "queue") {  // an update of the first blocks, behind a wait for "open"
      OK(cuMemHostAlloc(&flag_, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
      OK(cuMemHostGetDevicePointer(&flag_address_, flag_, 0));
      __atomic_store_n(static_cast<uint32_t*>(flag_), 0, __ATOMIC_RELEASE);
      OK(cuStreamWaitValue32(stream_, flag_address_, 1, CU_STREAM_WAIT_VALUE_GEQ));
      for (uint64_t i = 0; i < number; ++i) UpdateBlock(i);
    } else if (word == "open") {
      __atomic_store_n(static_cast<uint32_t*>(flag_), 1, __ATOMIC_RELEASE);
      OK(cuStreamSynchronize(stream_));
    } else if (word == "capture") {  // begins; the next "end" launches it
      OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
      for (uint64_t i = 0; i < blocks_.size(); ++i) UpdateBlock(i);
    } else if (word == "end") {
      CUgraph graph = nullptr;
      CUgraphExec executable = nullptr;
      OK(cuStreamEndCapture(stream_, &graph));
      OK(cuGraphInstantiate(&executable, graph, 0));
      for (uint64_t i = 0; i < number; ++i) OK(cuGraphLaunch(executable, stream_));
      OK(cuStreamSynchronize(stream_));
      OK(cuGraphExecDestroy(executable));
      OK(cuGraphDestroy(graph));
    } else if (word == "plain") {  // MiB that no one moves (SLUICE_VMM=unmanaged)
      const CUdeviceptr at = vmm::Reserve(number * kMiB);
      vmm::Map(at, number * kMiB, vmm::Create(number * kMiB));
    } else if (word == "copy") {  // the first block's first bytes, over the host into its last ones
      std::vector<char> bytes(kMiB);
      OK(cuMemcpyDtoH(bytes.data(), blocks_.front(), kMiB));
      OK(cuMemcpyHtoD(blocks_.front() + kBytes - kMiB, bytes.data(), kMiB));
    } else if (word == "resident") {
      return std::to_string(card_.Stats().resident_bytes / kMiB);
    } else if (word == "digest") {
      OK(cuCtxSynchronize());
      uint64_t all = 0;
      for (const CUdeviceptr block : blocks_) all = all * 31 + simgpu_digest(block, kBytes);
      return std::to_string(all);
    } else {
      return "unknown";
    }
    return "ok";
  }

 private:
  // The simulated GPU tells a block by its number from another that was there before.
  void UpdateBlock(uint64_t i) { card_.Named(stream_, {Update(blocks_[i], kBytes, static_cast<uint32_t>(i + 1))}); }

  static constexpr uint64_t kBytes = 64 * kMiB;
  Card card_;
  CUstream stream_;
  std::vector<CUdeviceptr> blocks_;
  void* flag_ = nullptr;
  CUdeviceptr flag_address_ = 0;
};

void Answer(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

}  // namespace

// SCENARIO_GPUS GPUs, one if it is not given; each command is for each of them.
SCENARIO(parked_by_a_test) {
  const char* const count = std::getenv("SCENARIO_GPUS");
  std::vector<std::unique_ptr<Led>> cards;
  for (int i = 0; i < (count == nullptr ? 1 : std::atoi(count)); ++i) cards.push_back(std::make_unique<Led>(i));
  Answer("started");
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string word, answer;
    uint64_t number = 0;
    in >> word >> number;
    for (size_t i = 0; i < cards.size(); ++i) {
      CUcontext context = nullptr;
      OK(cuDevicePrimaryCtxRetain(&context, static_cast<CUdevice>(i)));
      OK(cuCtxSetCurrent(context));
      answer += (i == 0 ? "" : " ") + cards[i]->Do(word, number);
      OK(cuDevicePrimaryCtxRelease(static_cast<CUdevice>(i)));
    }
    Answer(answer);
  }
}
