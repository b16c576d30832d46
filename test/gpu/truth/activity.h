// CUPTI's activity records: the transfers of measured launches, and the durations of the others.
#ifndef SLUICE_TEST_GPU_TRUTH_ACTIVITY_H_
#define SLUICE_TEST_GPU_TRUTH_ACTIVITY_H_

#include <cstdint>

#include "state.h"

namespace sluice::truth {

uint64_t Now();  // ns of CUPTI's clock

// Registers the buffers. Once, before any record is enabled.
void RegisterActivity();

// Enables the records. To be called before the first managed allocation: CUPTI then follows it from its beginning.
void ConfigureOnce();

// Waits for the context's work and flushes its records.
void Synchronise();

// The ranges, rounded to `align` and merged.
Ranges Merged(Ranges ranges, uint64_t align);

// Writes a measured launch's ranges to the trace. With g_data held.
void WriteOut(const Measured& m);
void WriteAll();  // takes g_data

}  // namespace sluice::truth

#endif  // SLUICE_TEST_GPU_TRUTH_ACTIVITY_H_
