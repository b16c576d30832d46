// Another process that shares memory and events with a program, by IPC handles, pools and VMM memory made for export.
// The process is forked before CUDA is initialised and serves one request at a time. It reads shared memory only: the
// simulated GPU gives an importer the contents of the time of the export.
#ifndef SLUICE_TEST_DIFFERENTIAL_PEER_H_
#define SLUICE_TEST_DIFFERENTIAL_PEER_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace differential {

// Forks the process. `exports`: under the hook its memory is unmanaged, so that it can give a block of cuMemAlloc. The
// process closes `pipe`, if that is 0 or above.
void StartPeer(bool exports, int pipe = -1);
// Ends it. How it ended is an observation.
void EndPeer();

// The peer reads a block and sends a digest, which is an observation. The hook may refuse to export memory of
// cuMemAlloc, and VMM memory: the digest is then the program's own.
CUresult ShareBlock(CUdeviceptr block, size_t bytes, int device);
CUresult ShareMapped(CUdeviceptr at, size_t bytes, int device);
CUresult SharePooled(CUdeviceptr block, size_t bytes, int device, CUmemoryPool from);
// The peer waits for an event that is recorded in `stream`; so does the call.
CUresult ShareEvent(CUstream stream);
// A pool whose memory can be shared.
CUresult MakeSharedPool(CUmemoryPool* out, int device);

// Memory of the peer, filled with bytes that follow from `seed`. CloseBlock() ends a block of OpenBlock(),
// Unmap() (machine.h) the other.
CUresult OpenBlock(CUdeviceptr* out, size_t bytes, int device, uint64_t seed);
CUresult CloseBlock(CUdeviceptr block);
CUresult ImportMapped(CUdeviceptr* out, size_t bytes, int device, uint64_t seed);

}  // namespace differential

#endif  // SLUICE_TEST_DIFFERENTIAL_PEER_H_
