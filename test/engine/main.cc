// engine_scenarios NAME: runs one scenario. Its output must not depend on the hook.
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

#include "test/engine/scenario.h"

// The engine's short pauses while it waits for the GPU pass in virtual time; its own threads sleep in real time.
extern "C" int nanosleep(const timespec* time, timespec* left) {
  pthread_testcancel();  // as libc's
  if (time->tv_sec != 0 || time->tv_nsec > 1'000'000) return static_cast<int>(syscall(SYS_nanosleep, time, left));
  simgpu_advance_host(static_cast<uint64_t>(time->tv_nsec));
  return 0;
}

int main(int argc, char** argv) {
  const auto& all = scenario::All();
  const auto found = argc > 1 ? all.find(argv[1]) : all.end();
  if (found == all.end()) {
    for (const auto& [name, run] : all) std::fprintf(stderr, "%s\n", name.c_str());
    return 64;
  }
  found->second();
  struct simgpu_stats stats{};
  stats.size = sizeof stats;
  EXPECT(simgpu_stats(0, &stats) == 0);
  EXPECT(stats.misuses == 0);
  std::printf("done %s\n", argv[1]);
  std::fflush(stdout);
  return 0;
}
