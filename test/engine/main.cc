// engine_scenarios NAME: one scenario; what it prints must not depend on the hook.
#include "test/engine/scenario.h"

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
