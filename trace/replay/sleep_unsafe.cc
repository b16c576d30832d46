// The simulated GPU has its own clock, which stands still while a thread sleeps. An engine that sleeps on the replaying
// thread until transfers are done would sleep for ever. So this program exports its own nanosleep, which libraries bind
// to before libc's and which advances the simulated clock instead. It applies only to sleeps of the engine on that
// thread; all other sleeps are real.
#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

#include "sleep.h"

namespace sluice::replay {
namespace {

thread_local decltype(&simgpu_advance_host) t_advance = nullptr;

bool FromEngine(void* address) {
  static thread_local void* last = nullptr;
  static thread_local bool engine = false;
  if (address != last) {
    Dl_info info;
    last = address;
    engine = dladdr(address, &info) != 0 && info.dli_fname != nullptr &&
             std::strstr(info.dli_fname, "libsluice_engine") != nullptr;
  }
  return engine;
}

}  // namespace

void SleepOnSimulatedClock(decltype(&simgpu_advance_host) advance) { t_advance = advance; }

}  // namespace sluice::replay

extern "C" __attribute__((visibility("default"))) int nanosleep(const timespec* wanted, timespec* left) {
  if (sluice::replay::t_advance != nullptr && wanted != nullptr &&
      sluice::replay::FromEngine(__builtin_return_address(0))) {
    sluice::replay::t_advance(static_cast<uint64_t>(wanted->tv_sec) * 1000000000 +
                              static_cast<uint64_t>(wanted->tv_nsec));
    return 0;
  }
  return static_cast<int>(syscall(SYS_nanosleep, wanted, left));
}
