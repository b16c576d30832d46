// Cases of lifetimes.cu in a file of their own.
#ifndef SLUICE_TEST_GPU_WORKLOADS_WAITS_AND_ENDS_H_
#define SLUICE_TEST_GPU_WORKLOADS_WAITS_AND_ENDS_H_

int EarlyReturns();
int ResidentKernel();
int LateThreads();
int ResetReleased();
int ContextsByThreads();
int GraphMemory();
int CopiesOfOtherContexts();
int FreeBesideCapture();

#endif  // SLUICE_TEST_GPU_WORKLOADS_WAITS_AND_ENDS_H_
