// Whose code called an entry.
#ifndef SLUICE_HOOKLIB_DISPATCH_CALLER_H_
#define SLUICE_HOOKLIB_DISPATCH_CALLER_H_

namespace sluice {

// Give it __builtin_return_address(0) of the entry itself (entries are tail-jumped to). True for code in libnccl,
// libnvshmem*, libuct*, libcufile*: their buffers are shared by handles or RDMA and stay plain. Thread-safe, lock-free
// on the fast path; about 20 ns, so only for allocations.
bool CalledFromUnmanagedLibrary(const void* return_address);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_DISPATCH_CALLER_H_
