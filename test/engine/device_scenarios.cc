// Contexts, several GPUs, fork, exec, the end of a process.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

int Cards() {
  int count = 0;
  OK(cuInit(0));
  OK(cuDeviceGetCount(&count));
  return count;
}

}  // namespace

// Memory of a context is released with it.
SCENARIO(contexts_release_their_memory) {
  OK(cuInit(0));
  uint64_t requested = 0;
  for (int i = 0; i < 1000; ++i) {
    CUcontext context = nullptr;
    OK(CreateContext(&context, 0));
    CUstream s = nullptr;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    const CUdeviceptr p = Alloc(4 * kMiB), q = Alloc(1000);
    OK(cuMemsetD8Async(p, 1, 4 * kMiB, s));
    OK(cuMemsetD8Async(q, 1, 1000, s));
    if (i % 2) OK(cuMemFree(p));
    struct simgpu_stats stats{};
    stats.size = sizeof stats;
    OK(cuCtxSynchronize());
    EXPECT(simgpu_stats(0, &stats) == 0);
    if (i == 10) requested = stats.managed_requested_bytes;
    if (i > 10) EXPECT(stats.managed_requested_bytes <= requested + 8 * kMiB);
    OK(cuCtxDestroy(context));
  }
  Card card;
  if (Budget() != 0) {
    size_t left = 0, total = 0;
    OK(cuMemGetInfo(&left, &total));
    EXPECT(left == total);
    EXPECT(card.Stats().managed_requested_bytes == 0);
  }
}

// State and budget of each GPU.
SCENARIO(several_gpus) {
  const int count = Cards();
  std::vector<std::vector<CUdeviceptr>> p(static_cast<size_t>(count));
  std::vector<Card*> cards;
  for (int d = 0; d < count; ++d) {
    cards.push_back(new Card(d));
    for (int i = 0; i < 12; ++i) p[static_cast<size_t>(d)].push_back(Alloc(64 * kMiB));
  }
  for (int d = 0; d < count; ++d) {
    Card& card = *cards[static_cast<size_t>(d)];
    OK(cuCtxSetCurrent(card.context));
    CUstream s = card.Stream();
    const auto& blocks = p[static_cast<size_t>(d)];
    // The first GPU stays within its budget: pressure on its neighbours has no effect on it.
    const uint32_t used = d == 0 ? 4 : 12;
    for (uint32_t i = 0; i < 8 * used; ++i) {
      card.Named(s, {Update(blocks[i % used], 64 * kMiB, i % used + 1)});
    }
    OK(cuStreamSynchronize(s));
    if (Budget() != 0) {
      size_t left = 0, total = 0;
      OK(cuMemGetInfo(&left, &total));
      EXPECT(total == Budget());
      EXPECT(left == (total > 768 * kMiB ? total - 768 * kMiB : 0));
      EXPECT(card.Stats(d).resident_bytes <= Budget() + 64 * kMiB);
      if (d > 0 && Budget() < 768 * kMiB) EXPECT(card.Stats(d).prefetch_out_bytes > 0);
    }
    for (uint32_t i = 0; i < used; ++i) PrintDigest("block", blocks[i], 64 * kMiB);
  }
}

// GPU 1 reads a block of GPU 0 by peer access again and again: the block stays there.
SCENARIO(peer_reads_stay_remote) {
  const int count = Cards();
  EXPECT(count >= 2);
  Card first(0);
  CUstream s0 = first.Stream();
  const CUdeviceptr p = Alloc(64 * kMiB);
  first.Named(s0, {Write(p, 64 * kMiB, 1)});
  OK(cuStreamSynchronize(s0));
  Card second(1);
  OK(cuCtxEnablePeerAccess(first.context, 0));
  CUstream s1 = second.Stream();
  const CUdeviceptr q = Alloc(64 * kMiB);
  for (int i = 0; i < 10; ++i) {
    OK(cuCtxSetCurrent(second.context));
    second.Named(s1, {Read(p, 64 * kMiB, 1), Update(q, 64 * kMiB, 2)});
    OK(cuStreamSynchronize(s1));
    OK(cuCtxSetCurrent(first.context));
    first.Named(s0, {Read(p, 64 * kMiB, 1)});
    OK(cuStreamSynchronize(s0));
  }
  if (Budget() != 0) {
    // The other GPU reads it remotely each time, and it never moves.
    EXPECT(first.Stats(1).remote_bytes >= 10 * 64 * kMiB);
    EXPECT(first.Stats(0).resident_bytes >= 64 * kMiB);
    EXPECT(first.Stats(1).resident_bytes <= 64 * kMiB);
  }
  PrintDigest("p", p, 64 * kMiB);
  PrintDigest("q", q, 64 * kMiB);
}

// GPU 0 discards freed memory; the next owner of the memory is written by GPU 1 first.
SCENARIO(discarded_by_one_gpu_written_by_another) {
  constexpr uint64_t kBlock = 64 * kMiB;
  EXPECT(Cards() >= 2);
  Card first(0);
  CUstream s0 = first.Stream();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(Alloc(kBlock));
  // The blocks in front are freed and discarded when the others need room. Their arenas stay.
  const auto fill_and_free = [&](uint32_t from) {
    OK(cuCtxSetCurrent(first.context));
    for (uint32_t i = 0; i < 12; ++i) {
      first.Named(s0, {Write(blocks[i], kBlock, from + i)});
      OK(cuStreamSynchronize(s0));
    }
    for (uint32_t i = 9; i < 12; ++i) OK(cuMemFree(blocks[i]));
    for (uint32_t round = 0; round < 3; ++round) {
      for (uint32_t i = 0; i < 9; ++i) first.Named(s0, {Read(blocks[i], kBlock, from + i)});
      OK(cuStreamSynchronize(s0));
    }
  };
  fill_and_free(1);
  CUdeviceptr shared = 0;
  OK(cuMemAllocManaged(&shared, kBlock, CU_MEM_ATTACH_GLOBAL));
  blocks[9] = Alloc(kBlock);
  blocks[10] = Alloc(kBlock);

  // The first work of GPU 1 in this process.
  Card second(1);
  CUstream s1 = second.Stream();
  const CUdeviceptr own = Alloc(kBlock);
  second.Named(s1, {Write(shared, kBlock, 40)});
  second.Named(s1, {Write(own, kBlock, 41)});
  OK(cuMemcpyPeerAsync(blocks[9], first.context, own, second.context, kBlock, s1));
  OK(cuStreamSynchronize(s1));
  PrintDigest("shared", shared, kBlock);
  PrintDigest("copied", blocks[9], kBlock);

  // Once more, now that both GPUs work.
  OK(cuCtxSetCurrent(first.context));
  blocks[11] = Alloc(kBlock);
  fill_and_free(60);
  for (uint32_t i = 9; i < 12; ++i) blocks[i] = Alloc(kBlock);
  OK(cuCtxSetCurrent(second.context));
  OK(cuMemcpyPeerAsync(blocks[10], first.context, own, second.context, kBlock, s1));
  OK(cuStreamSynchronize(s1));
  PrintDigest("copied", blocks[10], kBlock);
  OK(cuCtxSetCurrent(first.context));
  for (uint32_t i = 0; i < 9; ++i) PrintDigest("block", blocks[i], kBlock);
}

// A ring of GPUs: each reads its neighbour's block, and more blocks of its own than fit its budget.
SCENARIO(ring_of_peer_reads) {
  const auto count = static_cast<uint32_t>(Cards());
  std::vector<Card*> cards;
  std::vector<CUstream> streams;
  std::vector<CUdeviceptr> shared;
  std::vector<std::vector<CUdeviceptr>> own(count);
  for (uint32_t d = 0; d < count; ++d) {
    cards.push_back(new Card(static_cast<int>(d)));
    streams.push_back(cards[d]->Stream());
    shared.push_back(Alloc(64 * kMiB));
    for (int i = 0; i < 10; ++i) own[d].push_back(Alloc(64 * kMiB));
    cards[d]->Named(streams[d], {Write(shared[d], 64 * kMiB, d + 1)});
    OK(cuStreamSynchronize(streams[d]));
  }
  for (uint32_t d = 0; d < count; ++d) {
    OK(cuCtxSetCurrent(cards[d]->context));
    OK(cuCtxEnablePeerAccess(cards[(d + 1) % count]->context, 0));
  }
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < 10; ++i) {
      for (uint32_t d = 0; d < count; ++d) {
        OK(cuCtxSetCurrent(cards[d]->context));
        const uint32_t next = (d + 1) % count;
        cards[d]->Named(streams[d], {Read(shared[next], 64 * kMiB, next + 1), Update(own[d][i], 64 * kMiB)});
      }
      for (uint32_t d = 0; d < count; ++d) {
        OK(cuCtxSetCurrent(cards[d]->context));
        OK(cuStreamSynchronize(streams[d]));
      }
    }
    // The owner updates it.
    for (uint32_t d = 0; d < count; ++d) {
      OK(cuCtxSetCurrent(cards[d]->context));
      cards[d]->Named(streams[d], {Update(shared[d], 64 * kMiB, d + 1)});
      OK(cuStreamSynchronize(streams[d]));
    }
  }
  for (uint32_t d = 0; d < count; ++d) {
    OK(cuCtxSetCurrent(cards[d]->context));
    if (Budget() != 0) {
      // Never moved to its reader: read thirty times over NVLink or, where the owner evicted it, over the host's link.
      const auto stats = cards[d]->Stats(static_cast<int>(d));
      EXPECT(stats.remote_bytes >= 30 * 64 * kMiB);
      EXPECT(stats.resident_bytes <= Budget() + 64 * kMiB);
    }
    PrintDigest("shared", shared[d], 64 * kMiB);
    for (CUdeviceptr at : own[d]) PrintDigest("own", at, 64 * kMiB);
  }
}

// Deprecated, and still offered.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
// One launch on all GPUs at once: the memory that each part names is on its GPU when it begins.
SCENARIO(launch_on_several_gpus) {
  const auto count = static_cast<uint32_t>(Cards());
  EXPECT(count >= 2);
  constexpr uint64_t kMine = 96 * kMiB, kRest = 640 * kMiB;
  struct DevicePart {
    Card* card;
    CUstream stream;
    CUfunction function;
    uint64_t p, bytes, rest;
    void* params[2];
  };
  std::vector<DevicePart> parts(count);
  for (uint32_t d = 0; d < count; ++d) {
    DevicePart& part = parts[d];
    part.card = new Card(static_cast<int>(d));
    part.stream = part.card->Stream();
    CUmodule module = nullptr;
    OK(cuModuleLoadData(&module, "simgpu-module 1\nkernel together params 8,8 ns 20000\nupdate p0 0 p1\n"));
    OK(cuModuleGetFunction(&part.function, module, "together"));
    part.p = Alloc(kMine);
    part.bytes = kMine - d * kMiB;
    part.rest = Alloc(kRest);
    part.card->Named(part.stream, {Write(part.p, kMine)});
    part.params[0] = &part.p;
    part.params[1] = &part.bytes;
  }
  const auto launch = [&](unsigned n) {
    std::vector<CUDA_LAUNCH_PARAMS> list(n);
    for (uint32_t d = 0; d < n; ++d) {
      CUDA_LAUNCH_PARAMS& p = list[n - 1 - d];
      p.function = parts[d].function;
      p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;
      p.hStream = parts[d].stream;
      p.kernelParams = parts[d].params;
    }
    return cuLaunchCooperativeKernelMultiDevice(list.data(), n, 0);
  };
  for (int round = 0; round < 4; ++round) {
    std::vector<uint64_t> faults;
    for (DevicePart& part : parts) {
      OK(cuCtxSetCurrent(part.card->context));
      for (int i = 0; i < 2; ++i) {
        for (uint64_t at = 0; at < kRest; at += 64 * kMiB)
          part.card->Named(part.stream, {Update(part.rest + at, 64 * kMiB)});
      }
      OK(cuStreamSynchronize(part.stream));
      faults.push_back(part.card->Stats(static_cast<int>(faults.size())).fault_bytes);
    }
    OK(launch(count));
    for (uint32_t d = 0; d < count; ++d) {
      OK(cuCtxSetCurrent(parts[d].card->context));
      OK(cuStreamSynchronize(parts[d].stream));
      const uint64_t by_faults = parts[d].card->Stats(static_cast<int>(d)).fault_bytes - faults[d];
      std::fprintf(stderr, "card=%u fault_mib=%" PRIu64 "\n", d, by_faults / kMiB);
      if (Budget() != 0 && std::getenv("SCENARIO_FETCHED") != nullptr) EXPECT(by_faults == 0);
    }
  }
  // The driver refuses two parts on one GPU.
  CUDA_LAUNCH_PARAMS twice[2]{};
  for (CUDA_LAUNCH_PARAMS& p : twice) {
    p.function = parts[0].function;
    p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;
    p.hStream = parts[0].stream;
    p.kernelParams = parts[0].params;
  }
  EXPECT(cuLaunchCooperativeKernelMultiDevice(twice, 2, 0) == CUDA_ERROR_INVALID_DEVICE);
  EXPECT(cuLaunchCooperativeKernelMultiDevice(nullptr, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  for (DevicePart& part : parts) {
    OK(cuCtxSetCurrent(part.card->context));
    PrintDigest("part", part.p, kMine);
  }
}
#pragma GCC diagnostic pop

// The child starts CUDA, and the parent goes on without it.
SCENARIO(fork_before_cuda) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    Card card;
    CUstream s = card.Stream();
    std::vector<CUdeviceptr> p;
    for (int i = 0; i < 12; ++i) p.push_back(Alloc(64 * kMiB));
    for (uint32_t i = 0; i < 48; ++i) card.Named(s, {Update(p[i % 12], 64 * kMiB, i % 12 + 1)});
    for (CUdeviceptr at : p) PrintDigest("child's block", at, 64 * kMiB);
    std::fflush(stdout);
    std::exit(0);
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(cuInit(0));
}

// A child that does not use CUDA, of a process that does, runs and ends as any child.
SCENARIO(fork_after_cuda) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 12; ++i) p.push_back(Alloc(64 * kMiB));
  for (uint32_t i = 0; i < 24; ++i) card.Named(s, {Update(p[i % 12], 64 * kMiB, i % 12 + 1)});
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/true", "true", static_cast<char*>(nullptr));
    _exit(1);
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  for (uint32_t i = 0; i < 24; ++i) card.Named(s, {Update(p[i % 12], 64 * kMiB, i % 12 + 1)});
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

// Launches until the process is killed.
SCENARIO(endless_launches) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 16; ++i) p.push_back(Alloc(64 * kMiB));
  std::fprintf(stderr, "working\n");
  for (uint32_t i = 0;; ++i) {
    card.Named(s, {Update(p[i % 16], 64 * kMiB, i % 16 + 1)});
    if (i % 16 == 0) OK(cuStreamSynchronize(s));
  }
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
// One kernel on two GPUs, again and again, and nothing else.
SCENARIO(parts_await_their_time_slices) {
  struct DevicePart {
    Card* card;
    CUstream stream;
    CUfunction function;
    uint64_t p, bytes;
    void* params[2];
  };
  std::array<DevicePart, 2> parts{};
  std::array<CUDA_LAUNCH_PARAMS, 2> list{};
  for (size_t d = 0; d < parts.size(); ++d) {
    DevicePart& part = parts.at(d);
    part.card = new Card(static_cast<int>(d));
    part.stream = part.card->Stream();
    CUmodule module = nullptr;
    OK(cuModuleLoadData(&module, "simgpu-module 1\nkernel together params 8,8 ns 200000\nwrite p0 0 p1\n"));
    OK(cuModuleGetFunction(&part.function, module, "together"));
    part.p = Alloc(kMiB);
    part.bytes = kMiB;
    part.params[0] = &part.p;
    part.params[1] = &part.bytes;
    CUDA_LAUNCH_PARAMS& p = list.at(d);
    p.function = part.function;
    p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;
    p.hStream = part.stream;
    p.kernelParams = part.params;
  }
  for (int i = 0; i < 50; ++i) {
    OK(cuLaunchCooperativeKernelMultiDevice(list.data(), 2, 0));
    for (const DevicePart& part : parts) OK(cuStreamSynchronize(part.stream));
  }
  for (const DevicePart& part : parts) PrintDigest("part", part.p, kMiB);
}
#pragma GCC diagnostic pop
