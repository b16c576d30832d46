// The output of the misuse detector: one message on stderr, then the end of the process (SIMGPU_MISUSE=abort, the
// default) or a count (SIMGPU_MISUSE=report).
#ifndef SIMGPU_CORE_MISUSE_H_
#define SIMGPU_CORE_MISUSE_H_

#include <cstdint>
#include <string>

namespace simgpu {

// Reports each distinct message once if it only counts. Exit status: SIMGPU_MISUSE_EXIT, default 86.
void Misuse(const std::string& message);
// Exits with 2 and a message if SIMGPU_MISUSE is wrong.
void CheckMisuseSettings();
uint64_t MisuseCount();
const char* LastMisuse();
// `flush` is called before misuse ends the process: it writes figures and timeline.
void SetMisuseFlush(void (*flush)());

}  // namespace simgpu

#endif  // SIMGPU_CORE_MISUSE_H_
