// Programs at limits of their own: no descriptor is left, or threads end while they call. And the engine's threads.
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

// All descriptors are in use while the program allocates and works: /proc and /sys cannot be read then.
SCENARIO(descriptors_used_up) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr first = Alloc(384 * kMiB);
  card.Named(s, {Update(first, 384 * kMiB, 1)});
  OK(cuStreamSynchronize(s));
  rlimit few{256, 256};
  EXPECT(setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::vector<int> taken;
  for (int file = open("/dev/null", O_RDONLY); file >= 0; file = open("/dev/null", O_RDONLY)) taken.push_back(file);
  EXPECT(taken.size() > 100);
  std::vector<CUdeviceptr> blocks;
  for (uint32_t i = 0; i < 8; ++i) {
    usleep(120'000);  // figures of the machine are kept for 100 ms
    blocks.push_back(Alloc(64 * kMiB));
    card.Named(s, {Update(blocks.back(), 64 * kMiB, i + 2)});
    OK(cuStreamSynchronize(s));
  }
  for (const int file : taken) close(file);
  PrintDigest("first", first, 384 * kMiB);
  for (const CUdeviceptr block : blocks) PrintDigest("block", block, 64 * kMiB);
}

// The engine's threads carry its name, for `top -H` and a debugger.
SCENARIO(threads_of_the_engine_are_named) {
  const Card card;
  const CUdeviceptr block = Alloc(kMiB);
  OK(cuMemsetD8(block, 1, kMiB));
  const bool is_hooked = std::getenv("SLUICE_GPU_MEMORY") != nullptr;
  bool is_named = false;
  // A thread names itself when it first runs.
  int attempt = 0;
  do {
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(thread.path() / "comm");
      std::string name;
      is_named |= std::getline(file, name) && name.starts_with("sluice");
    }
    usleep(10'000);
  } while (is_named != is_hooked && ++attempt < 200);
  EXPECT(is_named == is_hooked);
  PrintDigest("block", block, kMiB);
}

namespace {

struct Cancelled {
  CUcontext context;
  CUfunction kernel;
  std::vector<CUdeviceptr> blocks;
  bool launches;
};

// Calls until it is cancelled, at a cancellation point of its own.
void* CallForever(void* argument) {
  const auto& all = *static_cast<const Cancelled*>(argument);
  OK(cuCtxSetCurrent(all.context));
  for (size_t k = 0;; ++k) {
    CUdeviceptr block = all.blocks[k % all.blocks.size()];
    if (all.launches) {
      const simgpu_touch touch = Update(block, 32 * kMiB, 1);
      simgpu_next_launch(&touch, 1, 20000, 0);
      uint64_t words[8] = {block};
      void* parameters[8];
      for (size_t i = 0; i < 8; ++i) parameters[i] = &words[i];
      OK(cuLaunchKernel(all.kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    } else {
      OK(cuMemsetD8Async(block, 3, 32 * kMiB, nullptr));
    }
    pthread_testcancel();
  }
}

}  // namespace

// Threads are cancelled in the middle of their calls, most of which wait over the budget.
SCENARIO(cancelled_threads) {
  Card card;
  Cancelled all{card.context, card.eight, {}, true};
  for (int i = 0; i < 24; ++i) all.blocks.push_back(Alloc(32 * kMiB));
  for (const CUdeviceptr block : all.blocks) OK(cuMemsetD8(block, 1, 32 * kMiB));
  int ended = 0;
  for (int round = 0; round < 40; ++round) {
    all.launches = round % 2 == 0;
    pthread_t thread{};
    EXPECT(pthread_create(&thread, nullptr, CallForever, &all) == 0);
    usleep(300 + 137 * round % 900);
    pthread_cancel(thread);
    void* result = nullptr;
    pthread_join(thread, &result);
    ended += result == PTHREAD_CANCELED ? 1 : 0;
  }
  OK(cuCtxSynchronize());
  Print("cancelled", static_cast<uint64_t>(ended));
  for (const CUdeviceptr block : all.blocks) OK(cuMemsetD8(block, 2, 32 * kMiB));
  PrintDigest("block", all.blocks.front(), 32 * kMiB);
}
