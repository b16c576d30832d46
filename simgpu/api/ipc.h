// Memory and events that one process exports and another imports.
#ifndef SIMGPU_API_IPC_H_
#define SIMGPU_API_IPC_H_

#include "call.h"

namespace simgpu {

bool IsOpenedMemory(CUdeviceptr p);  // by cuIpcOpenMemHandle
// A file with the contents as they are now; -1: none can be made.
int SaveContents(const ContentMap& content, uint64_t size, int card);
bool LoadContents(int file, ContentMap* content, uint64_t* size, int* card);

// For an exported event; other events give nothing and false.
void RecordShared(Call& call, CUevent e, CUstream stream);
bool WaitShared(Call& call, CUevent e, CUstream stream);
bool IsSharedDone(CUevent e);

}  // namespace simgpu

#endif  // SIMGPU_API_IPC_H_
