// The driver's interface at /dev/nvidia-uvm-tools, as far as the engine uses it: trackers that count or record the
// driver's events. Numbers and layouts are the same in 535 and 580.
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_UVM_TOOLS_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_UVM_TOOLS_H_

#include <cstdint>
#include <string>

#include "hooklib/client/descriptor.h"
#include "hooklib/engine/execute/driver_port.h"

namespace sluice::uvm_tools {

// 76: as 56, with longer records.
constexpr unsigned long kInit = 56, kInitLong = 76, kEnableRecords = 58, kDisableRecords = 59, kEnableCounters = 60;

struct InitArguments {
  uint64_t queue, queue_records, page;  // without a queue: counters
  unsigned char uuid[16];
  uint32_t all_cards, space, status;
};
struct FlagArguments {  // bits: of counters by place in the page, of records by type
  uint64_t bits;
  uint32_t status;
};
static_assert(sizeof(InitArguments) == 56 && sizeof(FlagArguments) == 16);

// A tracker with these arguments, for the card of this UUID, or for all cards where it is null: its descriptor; -1, and
// `*why` not. Waits for nothing that the GPU does.
int Open(const DriverPort& port, unsigned long request, InitArguments arguments, const unsigned char* uuid,
         std::string* why);
// False where it is refused, or the program has closed the descriptor.
bool SetFlags(const DriverPort& port, const client::Descriptor& tracker, unsigned long request, uint64_t bits);
// Whole pages for the driver to write to. Shared: after a fork both processes see them. Null: there is no memory.
void* SharedPages(size_t bytes);

}  // namespace sluice::uvm_tools

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_UVM_TOOLS_H_
