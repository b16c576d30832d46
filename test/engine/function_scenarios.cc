// Functions of modules and libraries, and their ends.
#include <sys/mman.h>
#include <unistd.h>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

// The place of a launch's parameters at the end of readable memory: a word more cannot be read.
void** PlaceOfOneParameter() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const pages = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(pages != MAP_FAILED && mprotect(static_cast<char*>(pages) + page, page, PROT_NONE) == 0);
  return reinterpret_cast<void**>(static_cast<char*>(pages) + page) - 1;
}

// Launches a function of eight parameters in a context, ends the context without unloading anything, and launches a
// function of one parameter in the next. The driver gives the handle again. `get` loads such a function.
template <typename Get, typename End>
void LaunchInContextsInTurn(CUcontext context, Get get, End end) {
  const auto launch = [](CUfunction function, void** parameters) {
    CUstream stream = nullptr;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    OK(cuStreamSynchronize(stream));
  };
  std::array<uint64_t, 8> words{};
  std::array<void*, 8> eight{};
  for (size_t i = 0; i < 8; ++i) eight.at(i) = &words.at(i);
  const CUfunction old = get("eight");
  launch(old, eight.data());
  end(context);
  void** const one = PlaceOfOneParameter();
  *one = words.data();
  const CUfunction next = get("one");
  Print("the same handle", next == old ? 1 : 0);
  launch(next, one);
}

constexpr const char* kEightAndOne =
    "simgpu-module 1\nkernel eight params 8,8,8,8,8,8,8,8 ns 1000\nkernel one params 8 ns 1000\n";

CUfunction FunctionOfModule(const char* name) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  OK(cuModuleLoadData(&module, kEightAndOne));
  OK(cuModuleGetFunction(&function, module, name));
  return function;
}

CUfunction FunctionOfLibrary(const char* name) {
  static CUlibrary library = nullptr;
  if (library == nullptr) OK(cuLibraryLoadData(&library, kEightAndOne, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  OK(cuLibraryGetKernel(&kernel, library, name));
  OK(cuKernelGetFunction(&function, kernel));
  return function;
}

void DestroyAndCreate(CUcontext context) {
  OK(cuCtxDestroy(context));
  OK(CreateContext(&context, 0));
}

void ReleaseAndRetain(CUcontext context) {
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
}

void Reset(CUcontext context) {
  OK(cuDevicePrimaryCtxReset(0));
  OK(cuCtxSetCurrent(context));
}

}  // namespace

// Functions end with the context of their module. A library, and its kernels, outlive contexts; its functions do not.
SCENARIO(functions_end_with_their_context) {
  OK(cuInit(0));
  for (const auto get : {FunctionOfModule, FunctionOfLibrary}) {
    CUcontext created = nullptr;
    OK(CreateContext(&created, 0));
    Alloc(64 * kMiB);  // managed memory: parameters are looked at
    LaunchInContextsInTurn(created, get, DestroyAndCreate);
    for (const auto end : {ReleaseAndRetain, Reset}) {
      CUcontext primary = nullptr;
      OK(cuDevicePrimaryCtxRetain(&primary, 0));
      OK(cuCtxSetCurrent(primary));
      LaunchInContextsInTurn(primary, get, end);
      OK(cuDevicePrimaryCtxRelease(0));
    }
  }
}

// The layout of a kernel that is launched by its library's handle stays known.
SCENARIO(kernels_outlive_contexts) {
  OK(cuInit(0));
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  OK(cuLibraryLoadData(&library, "simgpu-module 1\nkernel up params 8,8 ns 1000\nupdate p0 0 p1\n", nullptr, nullptr, 0,
                       nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&kernel, library, "up"));
  for (int i = 0; i < 3; ++i) {
    CUcontext context = nullptr;
    OK(CreateContext(&context, 0));
    CUstream stream = nullptr;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    std::vector<CUdeviceptr> blocks;
    for (int k = 0; k < 12; ++k) blocks.push_back(Alloc(64 * kMiB));
    for (int round = 0; round < 2; ++round) {
      for (CUdeviceptr block : blocks) {
        uint64_t bytes = 64 * kMiB;
        void* parameters[] = {&block, &bytes};
        OK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
      }
    }
    for (const CUdeviceptr block : blocks) PrintDigest("block", block, 64 * kMiB);
    OK(cuCtxDestroy(context));
  }
}

// A library is unloaded from all contexts at once, whichever is current.
SCENARIO(functions_end_with_their_library) {
  OK(cuInit(0));
  CUcontext first = nullptr, second = nullptr;
  OK(CreateContext(&second, 0));
  OK(CreateContext(&first, 0));
  Alloc(64 * kMiB);  // managed memory: parameters are looked at
  CUlibrary library = nullptr;
  const auto by_kernel = [&](const char* name) {
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    OK(cuLibraryGetKernel(&kernel, library, name));
    OK(cuKernelGetFunction(&function, kernel));
    return function;
  };
  const auto by_module = [&](const char* name) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    OK(cuLibraryGetModule(&module, library));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
  };
  for (CUcontext const current : {first, second, CUcontext{}}) {
    for (const bool is_by_module : {false, true}) {
      OK(cuLibraryLoadData(&library, kEightAndOne, nullptr, nullptr, 0, nullptr, nullptr, 0));
      const auto get = [&](const char* name) { return is_by_module ? by_module(name) : by_kernel(name); };
      LaunchInContextsInTurn(first, get, [&](CUcontext context) {
        OK(cuCtxSetCurrent(current));
        OK(cuLibraryUnload(library));
        OK(cuCtxSetCurrent(context));
        OK(cuLibraryLoadData(&library, kEightAndOne, nullptr, nullptr, 0, nullptr, nullptr, 0));
      });
      OK(cuLibraryUnload(library));
    }
  }
}
