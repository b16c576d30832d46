// The frame of questions.cu. Each group of questions runs in a forked child of its own, for at most 10 s. So an error
// that lasts, a crash or a hang spoils nothing else. A child prints `group.key: answer`, one line a question.
#pragma once

#include <cuda.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

constexpr size_t kKiB = 1024, kMiB = kKiB * kKiB;

inline std::string group;
inline CUcontext context;
inline CUdevice device;
inline CUstream stream, other;

[[gnu::format(printf, 2, 3)]] inline void Say(const std::string& key, const char* format, ...) {
  va_list values;
  va_start(values, format);
  std::printf("%s.%s: ", group.c_str(), key.c_str());
  std::vprintf(format, values);
  std::printf("\n");
  std::fflush(stdout);
  va_end(values);
}
inline void Say(const std::string& key, CUresult code) { Say(key, "%d", code); }

inline void Need(CUresult code, const char* call) {
  if (code == CUDA_SUCCESS) return;
  Say("unasked", "%s is %d", call, code);
  std::exit(1);
}
#define NEED(call) Need((call), #call)

inline void StartCuda() {
  NEED(cuInit(0));
  NEED(cuDeviceGet(&device, 0));
  NEED(cuDevicePrimaryCtxRetain(&context, device));
  NEED(cuCtxSetCurrent(context));
  NEED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  NEED(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
}

inline std::string only;  // groups whose names begin so; all when empty

inline void Ask(const std::string& name, const std::function<void()>& questions, bool cuda = true) {
  if (name.compare(0, only.size(), only) != 0) return;
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    group = name;
    if (cuda) StartCuda();
    questions();
    std::fflush(stdout);
    _exit(0);
  }
  setpgid(child, child);
  int status = 0;
  bool late = true;
  for (int i = 0; i < 1000 && late; ++i) {
    late = waitpid(child, &status, WNOHANG) == 0;
    if (late) usleep(10'000);
  }
  kill(-child, SIGKILL);
  if (late) {
    waitpid(child, &status, 0);
    std::printf("%s: no answer in 10 s\n", name.c_str());
  } else if (WIFSIGNALED(status)) {
    std::printf("%s: signal %d\n", name.c_str(), WTERMSIG(status));
  } else if (WEXITSTATUS(status) != 0) {
    std::printf("%s: exit status %d\n", name.c_str(), WEXITSTATUS(status));
  }
}

inline CUmemLocation At(CUmemLocationType type, int id) {
  CUmemLocation place{};
  place.type = type;
  place.id = id;
  return place;
}
inline CUmemLocation OnCard(int id = 0) { return At(CU_MEM_LOCATION_TYPE_DEVICE, id); }

inline CUdeviceptr Allocate(size_t bytes) {
  CUdeviceptr p = 0;
  NEED(cuMemAlloc(&p, bytes));
  return p;
}
inline CUdeviceptr Managed(size_t bytes) {
  CUdeviceptr p = 0;
  NEED(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
  return p;
}
inline CUmemAllocationProp OfCard() {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = OnCard();
  return kind;
}
inline CUmemoryPool MadePool() {
  CUmemPoolProps kind{};
  kind.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = OnCard();
  CUmemoryPool pool = nullptr;
  NEED(cuMemPoolCreate(&pool, &kind));
  return pool;
}
inline CUdeviceptr OfPool(CUmemoryPool pool, size_t bytes) {
  CUdeviceptr p = 0;
  NEED(pool == nullptr ? cuMemAllocAsync(&p, bytes, stream) : cuMemAllocFromPoolAsync(&p, bytes, pool, stream));
  NEED(cuStreamSynchronize(stream));
  return p;
}
// Reserves `reserved` bytes and maps the first `bytes` of them.
inline CUdeviceptr Mapped(size_t bytes, size_t reserved, CUmemGenericAllocationHandle* handle) {
  const CUmemAllocationProp kind = OfCard();
  CUdeviceptr p = 0;
  NEED(cuMemAddressReserve(&p, reserved, 0, 0, 0));
  NEED(cuMemCreate(handle, bytes, &kind, 0));
  NEED(cuMemMap(p, bytes, 0, *handle, 0));
  CUmemAccessDesc access{};
  access.location = OnCard();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  NEED(cuMemSetAccess(p, bytes, &access, 1));
  return p;
}

inline bool Live(CUdeviceptr p) {
  CUdeviceptr base = 0;
  size_t size = 0;
  return cuMemGetAddressRange(&base, &size, p) == CUDA_SUCCESS && p < base + size;
}
// A block of `bytes` with a live block right behind it, or with none. `allocate` makes memory that cuMemFree ends.
inline CUdeviceptr Placed(bool neighbour, size_t bytes, const std::function<CUdeviceptr(size_t)>& allocate) {
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 32; ++i) {
    blocks.push_back(allocate(bytes));
    for (const CUdeviceptr p : blocks)
      if (Live(p + bytes) == neighbour) return p;
  }
  for (const CUdeviceptr p : blocks) {  // all have one: end that of one of them
    if (neighbour || std::find(blocks.begin(), blocks.end(), p + bytes) == blocks.end()) continue;
    NEED(cuMemFree(p + bytes));
    if (!Live(p + bytes)) return p;
  }
  Say("unasked", "no block of %zu bytes %s a neighbour", bytes, neighbour ? "with" : "without");
  std::exit(1);
}
