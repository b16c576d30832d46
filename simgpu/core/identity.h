// The identity of a simulated card, the same in CUDA and NVML, and the names of errors.
#ifndef SIMGPU_CORE_IDENTITY_H_
#define SIMGPU_CORE_IDENTITY_H_

#include <cstdint>
#include <string>

namespace simgpu {

void UuidBytes(int card, uint8_t out[16]);
std::string Uuid(int card);      // "GPU-..."
std::string PciBusId(int card);  // "00000000:10:00.0"

const char* ErrorName(int error);  // nullptr: unknown
const char* ErrorText(int error);

}  // namespace simgpu

#endif  // SIMGPU_CORE_IDENTITY_H_
