#include "driver_port.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "../../hooklib/engine/execute/driver_port.h"
#include "../core/misuse.h"
#include "call.h"

using simgpu::Sim;

namespace {

// UVM_MIGRATE, number and layout as in NVIDIA's open kernel modules.
constexpr unsigned long kMigrate = 51;
struct Migrate {
  uint64_t base, length;
  uint8_t to[16];
  uint32_t flags;
  uint64_t semaphore;
  uint32_t payload;
  int32_t node;
  uint64_t user_start, user_length;
  uint32_t status;
};

// UVM_DISCARD, likewise.
constexpr unsigned long kDiscard = 80;
struct Discard {
  uint64_t base, length, flags;
  uint32_t status;
};

// Works under SIMGPU_REQUESTS=threads.
uint32_t DiscardRange(simgpu::Simulator::Lock& lock, const Discard& request) {
  constexpr uint32_t kNotSupported = 86, kInvalidArgument = 31;
  const char* how = std::getenv("SIMGPU_REQUESTS");
  if (how == nullptr || std::strcmp(how, "threads") != 0) return kNotSupported;
  if (request.flags > 1) return kInvalidArgument;
  simgpu::Allocation* a = simgpu::FindAllocation(request.base);
  if (a == nullptr || a->kind != simgpu::MemoryKind::kManaged) return kNotSupported;
  Sim().DiscardByRequest(lock, a, request.base, request.length);
  return 0;
}

// Works under SIMGPU_REQUESTS=threads. Under "fail" all requests but the first fail.
uint32_t MigrateToHost(simgpu::Simulator::Lock& lock, const Migrate& request) {
  constexpr uint32_t kNotSupported = 86, kNoMemory = 81;
  static int made = 0;
  const char* how = std::getenv("SIMGPU_REQUESTS");
  const bool fails = how != nullptr && std::strcmp(how, "fail") == 0;
  if (how == nullptr || (!fails && std::strcmp(how, "threads") != 0)) return kNotSupported;
  if (fails && ++made > 1) return kNoMemory;
  simgpu::Allocation* a = simgpu::FindAllocation(request.base);
  if (a == nullptr || a->kind != simgpu::MemoryKind::kManaged) return kNotSupported;
  Sim().EvictByRequest(lock, a, request.base, request.length);
  return 0;
}

// Requests of threads that are late, in real time: base and length. The simulator's lock is held.
std::vector<std::pair<uint64_t, uint64_t>>& Late() {
  static auto& late = *new std::vector<std::pair<uint64_t, uint64_t>>;
  return late;
}

void AwaitDelay(simgpu::Simulator::Lock& lock, uint64_t base, uint64_t length) {
  static const long us = [] {
    const char* text = std::getenv("SIMGPU_REQUEST_DELAY_US");
    return text != nullptr ? std::strtol(text, nullptr, 10) : 0;
  }();
  if (us <= 0) return;
  Late().emplace_back(base, length);
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(us));
  lock.lock();
  std::erase(Late(), std::pair{base, length});
}

int Control(int descriptor, unsigned long request, void* argument) {
  if (!simgpu::TheDriver().initialised || simgpu::TheDriver().visible.empty()) {
    errno = ENODEV;
    return -1;
  }
  simgpu::Simulator::Lock lock(Sim().mutex);
  if (request == kMigrate) {
    const auto* const migrate = static_cast<const Migrate*>(argument);
    AwaitDelay(lock, migrate->base, migrate->length);
    static_cast<Migrate*>(argument)->status = MigrateToHost(lock, *static_cast<const Migrate*>(argument));
    return 0;
  }
  if (request == kDiscard) {
    const auto* const discard = static_cast<const Discard*>(argument);
    AwaitDelay(lock, discard->base, discard->length);
    static_cast<Discard*>(argument)->status = DiscardRange(lock, *static_cast<const Discard*>(argument));
    return 0;
  }
  return Sim().uvm_tools().Control(descriptor, request, argument);
}

void WatchLocks(int (*held)()) { simgpu::Simulator::locks_held = held; }

int Read(uint64_t address, void* out, size_t bytes) {
  simgpu::Simulator::Lock lock(Sim().mutex);
  const simgpu::Allocation* a = simgpu::FindAllocation(address);
  if (a == nullptr || a->kind != simgpu::MemoryKind::kManaged) return -1;
  Sim().CatchUp(lock);
  a->content->Read(address - a->base, address - a->base + bytes, static_cast<uint8_t*>(out), 0);
  return 0;
}

constexpr sluice_driver_port_table kTable = {
    SLUICE_DRIVER_PORT_VERSION, simgpu::UvmTools::Open, Control, simgpu::EvictByThreads, WatchLocks, Read};

}  // namespace

void simgpu::CheckLateRequests(uint64_t base, uint64_t length) {
  for (const auto& [late_base, late_length] : Late()) {
    if (late_base < base + length && base < late_base + late_length)
      Misuse("memory is freed while a request of a thread for it is under way: it would meet the next owner's");
  }
}

extern "C" __attribute__((visibility("default"))) const struct sluice_driver_port_table* sluice_driver_port(
    uint32_t version) {
  return version == SLUICE_DRIVER_PORT_VERSION ? &kTable : nullptr;
}
