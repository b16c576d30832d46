// Which library called an entry.
#ifndef SLUICE_HOOKLIB_DISPATCH_CALLER_H_
#define SLUICE_HOOKLIB_DISPATCH_CALLER_H_

namespace sluice {

// The address to which the driver entry that the thread has called last returns: in front of each of the engine's
// entries it is noted (table.cc). An entry asks before it calls anything that may call another.
extern constinit thread_local const void* t_caller;
inline const void* Caller() { return t_caller; }
inline void NoteCaller(const void* return_address) { t_caller = return_address; }

// `return_address`: Caller(). True for code in libnccl, libnvshmem*, libuct* and libcufile*: their buffers are shared
// by handles or RDMA and stay unmanaged. Thread-safe, and lock-free unless a library was loaded since the last call.
// About 20 ns, so only for allocations.
bool CalledFromUnmanagedLibrary(const void* return_address);
// The same for code that makes VMM memory only to export it: PyTorch's symmetric memory (libtorch_cuda,
// libtorch_nvshmem). PyTorch's allocator is in libc10_cuda.
bool CalledFromVmmExporter(const void* return_address);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_DISPATCH_CALLER_H_
