// Host memory that a scenario's rounds leave behind.
#ifndef SLUICE_TEST_ENGINE_GROWTH_H_
#define SLUICE_TEST_ENGINE_GROWTH_H_

#include <cstdio>

#include "test/engine/scenario.h"

namespace scenario {

inline long ResidentKib() {
  long pages = 0, resident = 0;
  FILE* const file = std::fopen("/proc/self/statm", "r");
  EXPECT(file != nullptr && std::fscanf(file, "%ld %ld", &pages, &resident) == 2);
  std::fclose(file);
  return resident * 4;
}

// Runs round(0), round(1), ...: a fifth of the rounds first, for buffers that stay. Prints on stderr how much memory
// the others took.
template <typename Round>
void PrintGrowth(int rounds, Round round) {
  for (int i = 0; i < rounds / 5; ++i) round(i);
  const long before = ResidentKib();
  for (int i = 0; i < rounds - rounds / 5; ++i) round(i);
  const long grown = ResidentKib() - before;
  std::fprintf(stderr, "grown by %ld KiB\n", grown);
}

}  // namespace scenario

#endif  // SLUICE_TEST_ENGINE_GROWTH_H_
