// What processes share.
#ifndef SIMGPU_API_IPC_H_
#define SIMGPU_API_IPC_H_

#include "call.h"

namespace simgpu {

bool IsOpenedMemory(CUdeviceptr p);  // by cuIpcOpenMemHandle
// A file with the contents as they are now; -1: none can be made.
int SaveContents(const ContentMap& content, uint64_t size, int card);
bool LoadContents(int file, ContentMap* content, uint64_t* size, int* card);

// Of an event that other processes know; nothing and false for other events.
void RecordShared(Call& call, CUevent e, CUstream stream);
bool WaitShared(Call& call, CUevent e, CUstream stream);
bool IsSharedDone(CUevent e);

}  // namespace simgpu

#endif  // SIMGPU_API_IPC_H_
