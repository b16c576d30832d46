// Fakes of PyTorch's two libraries. Built with C10_REPORTER as libc10.so, with C10_CALLER as libc10_cuda.so.
#include <cstddef>
#include <cstdint>

namespace c10 {
struct Device {
  signed char type, index;
};
void reportMemoryUsageToProfiler(void* ptr, std::int64_t size, std::size_t allocated, std::size_t reserved,
                                 Device device);

#ifdef C10_REPORTER
int seen = 0;
void reportMemoryUsageToProfiler(void* ptr, std::int64_t size, std::size_t allocated, std::size_t reserved,
                                 Device device) {
  const bool kept = ptr == reinterpret_cast<void*>(0x1234) && allocated == 56 && reserved == 78 && device.index == 3;
  seen += kept ? static_cast<int>(size) : 1000000;
}
extern "C" int c10_seen() { return seen; }
#else
extern "C" void c10_report(std::int64_t size, int type) {
  reportMemoryUsageToProfiler(reinterpret_cast<void*>(0x1234), size, 56, 78, Device{static_cast<signed char>(type), 3});
}
#endif
}  // namespace c10
