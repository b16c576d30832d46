#include "hooklib/engine/observe/uvm_tools.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace sluice::uvm_tools {

int Open(const DriverPort& port, unsigned long request, InitArguments arguments, const unsigned char* uuid,
         std::string* why) {
  const int tracker = port.open_tools();
  if (tracker < 0) {
    *why = std::string("/dev/nvidia-uvm-tools: ") + std::strerror(errno);
    return -1;
  }
  *why = "no descriptor of /dev/nvidia-uvm";
  for (const int space : port.address_spaces(tracker)) {
    InitArguments init = arguments;
    if (uuid) std::memcpy(init.uuid, uuid, sizeof init.uuid);
    init.all_cards = uuid ? 0 : 1;
    init.space = static_cast<uint32_t>(space);
    if (port.control(tracker, request, &init) != 0) {
      *why = std::string("it takes no tracker: ") + std::strerror(errno);
    } else if (init.status != 0) {
      *why = "it answers status " + std::to_string(init.status);  // a descriptor of another kind, or no permission
    } else {
      return tracker;
    }
  }
  close(tracker);
  return -1;
}

bool SetFlags(const DriverPort& port, const client::Descriptor& tracker, unsigned long request, uint64_t bits) {
  FlagArguments flags{bits, 0};
  return tracker.IsOurs() && port.control(tracker.fd(), request, &flags) == 0 && flags.status == 0;
}

void* SharedPages(size_t bytes) {
  void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

}  // namespace sluice::uvm_tools
