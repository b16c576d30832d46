#include "hooklib/engine/share.h"

#include <algorithm>
#include <vector>

#include "hooklib/client/agent_client.h"
#include "hooklib/client/container_view.h"
#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/engine.h"
#include "sluice/version.h"

namespace sluice {

namespace {

constexpr uint32_t kMillionthsAPercent = 10000;

// Of a process without devices: it only uses NVML, or was forked from one that uses CUDA. Null: no agent's socket.
client::ContainerView* g_view = nullptr;

// The device of this process's own; null: it has none.
Device* OwnDevice(const char* uuid) {
  EnsureStarted();
  for (const auto& device : Devices()) {
    if (device->uuid == uuid) return device.get();
  }
  return nullptr;
}

// By the environment alone, as Device's constructor has it.
bool ShareOfEnvironment(uint64_t card_bytes, Share* share) {
  const settings::Settings& set = GetConfig().settings;
  if (!set.gpu_memory && !set.gpu_percent) return false;
  share->total = set.gpu_memory           ? std::min(*set.gpu_memory, card_bytes)
                 : *set.gpu_percent < 100 ? card_bytes / 100 * *set.gpu_percent
                                          : card_bytes;
  if (set.visible == settings::Visible::kLimit)
    share->total = std::min(set.memory_limit.value_or(card_bytes), card_bytes);
  share->is_use_known = false;
  return true;
}

}  // namespace

void InitShare() {
  if (!GetConfig().socket.empty()) g_view = new client::ContainerView(GetConfig().socket.c_str(), SLUICE_VERSION);
}

bool ShareOf(const char* uuid, std::uint64_t card_bytes, Share* share) {
  *share = {};
  if (Device* const device = OwnDevice(uuid)) {
    uint64_t free = 0;
    device->View(&share->total, &free);
    share->used = share->total - free;
    return true;
  }
  sluice_memory memory;
  const bool has_memory = g_view && g_view->Memory(uuid, &memory, &share->is_use_known);
  if (has_memory && (share->is_use_known || !InheritedDevices())) {
    share->total = memory.total_bytes;
    share->used = std::min(memory.used_bytes, memory.total_bytes);
    return memory.total_bytes != 0;
  }
  share->is_use_known = true;
  if (const auto* const devices = InheritedDevices()) {
    for (const auto& device : *devices) {
      if (device->uuid != uuid) continue;
      uint64_t free = 0;
      device->ViewUnlocked(0, &share->total, &free);
      share->used = share->total - free;
      return true;
    }
    return false;
  }
  if (!Devices().empty()) return false;  // CUDA does not show this GPU, and no agent gave it to the container
  return ShareOfEnvironment(card_bytes, share);
}

int ShareUsers(const char* uuid, ShareUser* users, int max) {
  constexpr int kMaxWaitMs = 200;
  std::vector<sluice_process> list(static_cast<size_t>(std::max(max, 0)));
  int count = -1;
  if (Device* const device = OwnDevice(uuid)) {
    if (device->lease >= 0) count = Client()->AskProcesses(device->lease, list.data(), max, kMaxWaitMs);
  } else if (g_view) {
    count = g_view->Processes(uuid, list.data(), max);
  }
  for (int i = 0; i < count; ++i)
    users[i] = {static_cast<uint32_t>(list[static_cast<size_t>(i)].pid),
                list[static_cast<size_t>(i)].utilization / kMillionthsAPercent,
                list[static_cast<size_t>(i)].charged_bytes};
  return count;
}

int ShareUtilization(const char* uuid) {
  if (Device* const device = OwnDevice(uuid)) {
    return device->lease < 0 ? -1 : static_cast<int>(device->ContainerUtilization() / kMillionthsAPercent);
  }
  sluice_memory memory;
  bool is_known = false;
  if (!g_view || !g_view->Memory(uuid, &memory, &is_known) || !is_known || memory.total_bytes == 0) return -1;
  return static_cast<int>(memory.utilization / kMillionthsAPercent);
}

}  // namespace sluice
