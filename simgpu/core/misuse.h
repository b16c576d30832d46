// The misuse detector's mouth: one sentence on stderr, then the end of the process (SIMGPU_MISUSE=abort, the default)
// or a count (SIMGPU_MISUSE=report).
#ifndef SIMGPU_CORE_MISUSE_H_
#define SIMGPU_CORE_MISUSE_H_

#include <cstdint>
#include <string>

namespace simgpu {

// Reports once per distinct sentence when counting. Exit code: SIMGPU_MISUSE_EXIT, default 86.
void Misuse(const std::string& sentence);
// Exits with 2 and a sentence when SIMGPU_MISUSE is wrong.
void CheckMisuseSettings();
uint64_t MisuseCount();
const char* LastMisuse();
// Called before the process ends by misuse, so that figures and timeline are written.
void SetMisuseFlush(void (*flush)());

}  // namespace simgpu

#endif  // SIMGPU_CORE_MISUSE_H_
