#include "fake_driver.h"

#include <cstdlib>
#include <cstring>

#include "trace/replay/image.h"

namespace sluice::replay {
namespace {

constexpr size_t kMaxHostBytes = size_t{64} << 20;

FakeGpu* g_gpu = nullptr;

// A driver call that only succeeds, whatever its parameters.
template <typename Pointer>
struct Succeeds;
template <typename... Parameters>
struct Succeeds<CUresult (*)(Parameters...)> {
  static CUresult Call(Parameters...) { return CUDA_SUCCESS; }
};
template <typename Pointer>
void Succeed(Pointer& member) {
  member = Succeeds<Pointer>::Call;
}

CUresult Allocate(CUdeviceptr* address, size_t bytes) {
  *address = g_gpu->next_address;
  g_gpu->next_address += (bytes & 0xffffffff) + (1 << 21);
  return CUDA_SUCCESS;
}

CUresult HostAlloc(void** pointer, size_t bytes, unsigned) {
  if (bytes > kMaxHostBytes - g_gpu->host_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  g_gpu->host_bytes += bytes;
  g_gpu->host_memory.push_back(std::make_unique<char[]>(bytes));
  *pointer = g_gpu->host_memory.back().get();
  return CUDA_SUCCESS;
}

CUresult Launch(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                void** parameters, void**) {
  for (const trace::Parameter& p : g_gpu->layouts.at(reinterpret_cast<size_t>(function) - 1)) {
    if (p.bytes == 0) continue;
    const auto* bytes = static_cast<const unsigned char*>(*parameters++);
    for (uint32_t i = 0; i < p.bytes; ++i) g_gpu->checksum += bytes[i];
  }
  return CUDA_SUCCESS;
}

// The device's handles are small numbers that are never used as pointers.
template <typename Handle>
Handle NextHandle() {
  static uintptr_t next = 0;
  return reinterpret_cast<Handle>(++next);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

FakeGpu::FakeGpu(const trace::Trace& trace) {
  for (const trace::Function& function : trace.functions) layouts.push_back(Pieces(function));
  g_gpu = this;
}
FakeGpu::~FakeGpu() { g_gpu = nullptr; }

Driver FakeDriver(FakeGpu&, bool simulated) {
  Driver driver;
#define SLUICE_SUCCEED(member, name) Succeed(driver.member);
  SLUICE_REPLAY_FUNCTIONS(SLUICE_SUCCEED)
#undef SLUICE_SUCCEED
  driver.get_error_name = [](CUresult, const char** name) {
    *name = "FAKE";
    return CUDA_SUCCESS;
  };
  driver.alloc = Allocate;
  driver.alloc_managed = [](CUdeviceptr* address, size_t bytes, unsigned) { return Allocate(address, bytes); };
  driver.alloc_async = [](CUdeviceptr* address, size_t bytes, CUstream) { return Allocate(address, bytes); };
  driver.host_alloc = HostAlloc;
  driver.module_function = [](CUfunction* function, CUmodule, const char*) {
    *function = reinterpret_cast<CUfunction>(++g_gpu->next_function);  // NOLINT(performance-no-int-to-ptr)
    return CUDA_SUCCESS;
  };
  driver.stream_create = [](CUstream* stream, unsigned) {
    *stream = NextHandle<CUstream>();
    return CUDA_SUCCESS;
  };
  driver.event_create = [](CUevent* event, unsigned) {
    *event = NextHandle<CUevent>();
    return CUDA_SUCCESS;
  };
  driver.launch = Launch;
  driver.elapsed = [](float* milliseconds, CUevent, CUevent) {
    *milliseconds = 1;
    return CUDA_SUCCESS;
  };
  if (!simulated) return driver;
  driver.sim_next_launch = [](const simgpu_touch* touches, size_t count, uint64_t, uint32_t) {
    for (size_t i = 0; i < count; ++i) {
      if (touches[i].length == 0 || touches[i].address + touches[i].length < touches[i].address) std::abort();
    }
    return 0;
  };
  driver.sim_now = [] { return uint64_t{1}; };
  driver.sim_advance = [](uint64_t) {};
  driver.sim_stats = [](int, struct simgpu_stats* out) {
    std::memset(out, 0, out->size);
    out->size = sizeof *out;
    return 0;
  };
  return driver;
}

}  // namespace sluice::replay
