// The driver's interface at /dev/nvidia-uvm-tools, as far as it is used: trackers that count or record what it does.
// Numbers and layouts are the same in 535 and 580.
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_UVM_TOOLS_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_UVM_TOOLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "hooklib/client/descriptor.h"

namespace sluice {

// What of the system is asked, so that tests and the simulated driver can answer.
struct KernelSide {
  int (*open)() = nullptr;  // the device; -1 with errno
  int (*control)(int device, unsigned long request, void* argument) = nullptr;
  // Descriptors of the driver's memory manager that the process has: one is the address space that CUDA uses.
  std::vector<int> (*spaces)(int device) = nullptr;
};
// The system's own, or the simulated driver's.
KernelSide TheKernelSide();

namespace uvm_tools {

// 76: as 56, with longer records.
constexpr unsigned long kInit = 56, kInitLong = 76, kEnableRecords = 58, kDisableRecords = 59, kEnableCounters = 60;

struct InitArguments {
  uint64_t queue, queue_records, page;  // no queue: counters
  unsigned char uuid[16];
  uint32_t all_cards, space, status;
};
struct Flags {  // bits: of counters by place in the page, of records by type
  uint64_t bits;
  uint32_t status;
};
static_assert(sizeof(InitArguments) == 56 && sizeof(Flags) == 16);

// A tracker with these addresses, of the card of this UUID, or of all where there is none: its descriptor, or -1 and
// why not. Waits for nothing that the GPU does.
int Open(const KernelSide& kernel, unsigned long request, InitArguments what, const unsigned char* uuid,
         std::string* why);
// False where it is refused, or the program has closed the descriptor.
bool Set(const KernelSide& kernel, const client::Descriptor& device, unsigned long request, uint64_t bits);
// Whole pages for the driver to write to. Shared: after a fork both processes see them. Null: there is no memory.
void* SharedPages(size_t bytes);

}  // namespace uvm_tools
}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_UVM_TOOLS_H_
