#include "hooklib/engine/execute/driver_port.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "hooklib/client/descriptor.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/device_lock.h"

namespace sluice {

namespace {

const sluice_driver_port_table* Extension() {
  if (!g_real.sluice_driver_port) return nullptr;
  const sluice_driver_port_table* const table = g_real.sluice_driver_port(SLUICE_DRIVER_PORT_VERSION);
  return table && table->version == SLUICE_DRIVER_PORT_VERSION ? table : nullptr;
}

// An extension has one address space, which any of its descriptors stands for.
std::vector<int> SpacesOfExtension(int tools) { return {tools >= 0 ? tools : Extension()->open_tools()}; }

int OpenTools() { return client::MoveToHighNumber(open("/dev/nvidia-uvm-tools", O_RDWR | O_CLOEXEC)); }

int Control(int descriptor, unsigned long request, void* argument) { return ioctl(descriptor, request, argument); }

// A fault of the read is an error of the call.
int Read(uint64_t address, void* out, size_t bytes) {
  const iovec to{out, bytes}, from{reinterpret_cast<void*>(address), bytes};  // NOLINT(performance-no-int-to-ptr)
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == static_cast<ssize_t>(bytes) ? 0 : -1;
}

std::vector<int> SpacesOfProcess(int) {
  std::vector<int> found;
  DIR* folder = opendir("/proc/self/fd");
  if (!folder) return found;
  const int at = dirfd(folder);
  while (const dirent* entry = at >= 0 ? readdir(folder) : nullptr) {
    char target[64];
    const ssize_t n = readlinkat(at, entry->d_name, target, sizeof target - 1);
    if (n <= 0) continue;
    target[n] = 0;
    if (std::strcmp(target, "/dev/nvidia-uvm") == 0)
      found.push_back(static_cast<int>(std::strtol(entry->d_name, nullptr, 10)));
  }
  closedir(folder);
  return found;
}

}  // namespace

DriverPort TheDriverPort() {
  if (const sluice_driver_port_table* const table = Extension()) {
    if (table->watch_locks) table->watch_locks(HeldDeviceLocks::CountInWaits);
    return {table->open_tools, table->control, SpacesOfExtension, table->evict, table->read};
  }
  return {OpenTools, Control, SpacesOfProcess, nullptr, Read};
}

}  // namespace sluice
