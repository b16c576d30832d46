// The engine's port to the driver's memory manager below CUDA: its counters, its records of faults, and requests to
// migrate memory.
//
// On a machine with a GPU the port leads to the kernel module: /dev/nvidia-uvm-tools and the process's own descriptors
// of /dev/nvidia-uvm. A driver without a kernel module under it answers itself, by one extension: it exports the
// function sluice_driver_port.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_DRIVER_PORT_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_DRIVER_PORT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#define SLUICE_DRIVER_PORT_VERSION 3

// Answers of a driver in place of its kernel module. Plain C; every function may be called from any thread.
struct sluice_driver_port_table {
  uint32_t version;  // SLUICE_DRIVER_PORT_VERSION of the header that the driver was built with
  // In place of open("/dev/nvidia-uvm-tools"): a descriptor, or -1 with errno.
  int (*open_tools)(void);
  // In place of ioctl() on a descriptor of /dev/nvidia-uvm-tools (requests 56, 58, 59, 60, 76) or of /dev/nvidia-uvm
  // (request 51, UVM_MIGRATE): 0, or -1 with errno. The result is in the argument's status.
  int (*control)(int descriptor, unsigned long request, void* argument);
  // Evicts `count` ranges in stream order, as `threads` threads would by requests of their own. It begins when stream
  // `entry` comes to it, and stream `queue` goes on when it is done. Both are CUstreams. With no ranges: whether the
  // driver does so (CUDA_SUCCESS), or the engine's own threads are to make requests. Returns a CUresult.
  int (*evict)(void* entry, void* queue, const uint64_t* bases, const uint64_t* lengths, size_t count, int threads);
  // Told at start: `held` returns how many of the engine's locks the calling thread holds. The driver may report a call
  // that waits for the application's work meanwhile. Null: it does not look.
  void (*watch_locks)(int (*held)(void));
  // Reads unified memory as the CPU does: it takes no lock that a call of the driver holds, and may move a page.
  // 0, or -1 where the memory cannot be read.
  int (*read)(uint64_t address, void* out, size_t bytes);
};

// Exported by the driver: its table for this version of the port, or null where it does not know the version.
// extern "C" const struct sluice_driver_port_table* sluice_driver_port(uint32_t version);  (dispatch/cuda_api.h)

namespace sluice {

// The port as the engine uses it. Tests fill it with functions of their own.
struct DriverPort {
  int (*open_tools)() = nullptr;
  int (*control)(int descriptor, unsigned long request, void* argument) = nullptr;
  // Descriptors of the memory manager; one of them is the address space that CUDA uses. `tools`: open_tools' answer;
  // -1: none was opened.
  std::vector<int> (*address_spaces)(int tools) = nullptr;
  // Of an extension alone; null: the port leads to this machine's kernel.
  decltype(sluice_driver_port_table::evict) evict = nullptr;
  decltype(sluice_driver_port_table::read) read = nullptr;
};

// The driver's extension where it exports one, else the kernel's.
DriverPort TheDriverPort();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_DRIVER_PORT_H_
