// What the programs over the miniature libraries share: checks, a large block that leaves the card for another one, and
// what came back for a call.
#ifndef SLUICE_TEST_LIBRARIES_PROGRAM_H_
#define SLUICE_TEST_LIBRARIES_PROGRAM_H_

#include <cstdio>
#include <cstdlib>

#include "simgpu/tests/card.h"
#include "test/libraries/fake_getters.h"

extern "C" {
int cublasSgemm_v2(void*, int, int, int, int, int, const void*, const void*, int, const void*, int, const void*, void*,
                   int);
int cublasSgemmBatched(void*, int, int, int, int, int, const void*, const void* const*, int, const void* const*, int,
                       const void*, void* const*, int, int);
int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                   void*, void*, const void*, void*, size_t, void*);
int cublasSetStream_v2(void*, void*);
void cublasFakeNames(const void*);
void cublasFakeUnseen(const void*, uint64_t bytes);
void cublasFakePasses(unsigned);
void cublasFakeDescribes(int);
void cublasFakeWay(const char*, void* side, void* event);
void cublasFakeBetween(void (*)());
void cublasLtFakeInner(int);
}

#define EXPECT(condition)                                                  \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
      std::_Exit(3);                                                       \
    }                                                                      \
  } while (false)

namespace sluice::libraries::test {

// A launch that touches this and says so.
inline void Touch(const simgpu_test::Card& card, const simgpu_touch& touch) {
  simgpu_next_launch(&touch, 1, 20000, 0);
  uint64_t words[] = {touch.address, 0};
  void* parameters[] = {&words[0], &words[1]};
  OK(cuLaunchKernel(card.work, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
}

inline bool UnderPressure() { return std::getenv("UNDER_PRESSURE") != nullptr; }

}  // namespace sluice::libraries::test

#endif  // SLUICE_TEST_LIBRARIES_PROGRAM_H_
