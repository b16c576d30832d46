#include "pace.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>

namespace simgpu {

bool Paced() {
  static const bool paced = [] {
    const char* text = std::getenv("SIMGPU_PACE");
    return text != nullptr && std::strcmp(text, "1") == 0;
  }();
  return paced;
}

int64_t PacedNow() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

void PacedSleep(int64_t ns) {
  if (ns <= 0) return;
  const timespec t{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
  syscall(SYS_nanosleep, &t, nullptr);  // not through the function that a replayer replaces
}

}  // namespace simgpu
