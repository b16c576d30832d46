// Forks at the worst moment: while the engine holds its locks.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

// Everything that a program's destructors may do at exit.
struct Objects {
  Card* card;
  CUstream stream;
  CUdeviceptr block;
  CUmodule module;
  CUevent event;
};

void UseInChild(const Objects& objects) {
  cuStreamSynchronize(objects.stream);
  objects.card->TryNamed(objects.stream, {});
  objects.card->TryNamed(nullptr, {}, 1000, true);
  cuEventRecord(objects.event, objects.stream);
  cuMemsetD8Async(objects.block, 1, kMiB, objects.stream);
  CUdeviceptr block = 0;
  cuMemAlloc(&block, kMiB);
  cuMemAllocAsync(&block, kMiB, objects.stream);
  cuMemFree(objects.block);
  cuMemFreeAsync(objects.block, objects.stream);
  cuModuleUnload(objects.module);
  cuStreamBeginCapture(objects.stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  cuStreamDestroy(objects.stream);
  cuCtxSynchronize();
  cuCtxDestroy(objects.card->context);
  cuDevicePrimaryCtxRelease(0);
  cuDevicePrimaryCtxReset(0);
  size_t free_bytes = 0, total = 0;
  cuMemGetInfo(&free_bytes, &total);
  // Its per-thread data ends.
  std::thread([&] { objects.card->TryNamed(nullptr, {}, 1000, true); }).join();
}

struct Forker {
  Objects objects;
  int forks = 0, ended = 0;
  static void OnCall(const char* call, void* data) {
    auto* const self = static_cast<Forker*>(data);
    const std::string name = call;
    // The first is the engine's own, under its locks; unhooked, the second stands for it.
    if (name != "cuMemAllocManaged" && name != "cuMemAlloc_v2") return;
    ++self->forks;
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);  // ends a child that waits for a lock
      UseInChild(self->objects);
      _exit(0);
    }
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child);
    self->ended += WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
};

}  // namespace

// CUDA cannot be used in a child of a process that uses it. But every call returns.
SCENARIO(calls_return_in_a_forked_child) {
  Card card;
  Forker forker{{&card, card.Stream(), Alloc(64 * kMiB), card.named, nullptr}};
  OK(cuEventCreate(&forker.objects.event, CU_EVENT_DISABLE_TIMING));
  card.Named(forker.objects.stream, {Update(forker.objects.block, 64 * kMiB, 1)});
  OK(cuCtxSynchronize());
  simgpu_on_call(&Forker::OnCall, &forker);
  const CUdeviceptr block = Alloc(256 * kMiB);
  simgpu_on_call(nullptr, nullptr);
  Print("forks", forker.forks > 0 ? 1 : 0);
  Print("hung", static_cast<uint64_t>(forker.forks - forker.ended));
  card.Named(forker.objects.stream, {Update(forker.objects.block, 64 * kMiB, 1), Update(block, 64 * kMiB, 2)});
  PrintDigest("block", forker.objects.block, 64 * kMiB);
}
