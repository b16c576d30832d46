// Device: construction, budget and mode.
#include "hooklib/engine/device/device.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "hooklib/client/agent_client.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/observe/library_launches.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

// Why memory of this card stays as the driver makes it; "": it does not.
const char* ReasonForUnmanaged(CUdevice ordinal) {
  int concurrent = 0, host_page_tables = 0;
  g_real.cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, ordinal);
  // Coherent platforms (Grace Hopper) use the host's page tables: residency is the kernel's there, not ours.
  g_real.cuDeviceGetAttribute(&host_page_tables, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
                              ordinal);
  if (GetConfig().unmanaged) return "SLUICE_UNMANAGED=1";
  if (!concurrent) return "this GPU has no concurrent managed access (vGPU, WSL2)";
  if (host_page_tables) return "this GPU uses the host's page tables";
  // Accesses of kernels would be unknown: pages would be faulted in, past any budget.
  if (!g_real.cuFuncGetParamInfo && !g_real.cuKernelGetParamInfo)
    return "this driver does not describe kernels' parameters (550 and later do)";
  return "";
}

}  // namespace

Device::Device(CUdevice number) : ordinal(number), fences(this), residency(this, &fences) {
  CUuuid raw{};
  const auto get_uuid = g_real.cuDeviceGetUuid_v2 ? g_real.cuDeviceGetUuid_v2 : g_real.cuDeviceGetUuid;
  if (get_uuid && get_uuid(&raw, number) == CUDA_SUCCESS) {
    const auto* b = reinterpret_cast<const unsigned char*>(raw.bytes);
    std::memcpy(raw_uuid_, b, sizeof raw_uuid_);
    char text[SLUICE_UUID_CHARS];
    std::snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                  b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    uuid = text;
  }
  if (Client()) lease = Client()->Lease(uuid.c_str());
  size_t bytes = 0;
  if (g_real.cuDeviceTotalMem_v2) g_real.cuDeviceTotalMem_v2(&bytes, number);
  total_bytes = bytes;
  unmanaged_reason = ReasonForUnmanaged(number);
  managed = !*unmanaged_reason;
  if (managed) {  // the first window of its calls (UseWatch)
    use_watch_.Open(MonotonicNs());
    watches_use = true;
  }

  const settings::Settings& set = GetConfig().settings;
  std::snprintf(budget.uuid, sizeof budget.uuid, "%s", uuid.c_str());
  budget.budget_bytes = set.gpu_memory                              ? std::min(*set.gpu_memory, total_bytes)
                        : set.gpu_percent && *set.gpu_percent < 100 ? total_bytes / 100 * *set.gpu_percent
                                                                    : total_bytes;
  budget.guaranteed_bytes = budget.budget_bytes;
  budget.limit_bytes = set.memory_limit ? *set.memory_limit : total_bytes;
  budget.host_bytes = UINT64_MAX;
  settings::FillBudget(set, budget);
  budget.compute_limit = 1000000;
  residency.set_prefetch(static_cast<policy::Prefetch>(budget.prefetch));
  residency.set_can_discard(g_real.cuMemDiscardBatchAsync != nullptr && GetConfig().discard);
  residency.set_repopulates(GetConfig().overwrites);
  residency.set_remote_access(GetConfig().host_access);
  residency.set_read_mostly(managed && GetConfig().read_mostly);
  residency.set_capacity(Capacity());
}

const unsigned char* Device::UuidForDriver() const { return Devices().size() > 1 ? raw_uuid_ : nullptr; }

uint64_t Device::Capacity() const {
  const uint64_t unmanaged = unmanaged_bytes.load(std::memory_order_relaxed);
  const uint64_t room = budget.budget_bytes > unmanaged ? budget.budget_bytes - unmanaged : 0;
  if (live_bytes + unmanaged <= budget.budget_bytes && !memory_factor.IsLowered()) return room;
  return std::min(room, budget.budget_bytes / 100 * memory_factor.Percent());
}

void Device::UpdateMode() {
  residency.set_capacity(Capacity());
  const uint64_t unmanaged = unmanaged_bytes.load(std::memory_order_relaxed);
  const uint64_t usable = total_bytes - total_bytes / 16;  // contexts and the driver itself take the rest
  residency.set_max_resident(usable > unmanaged ? usable - unmanaged : 0);
  residency.set_share(budget.guaranteed_bytes > unmanaged ? budget.guaranteed_bytes - unmanaged : 0);
  if (managed && requested_bytes + unmanaged > budget.budget_bytes) Activate();
}

void Device::Activate() {
  if (active.exchange(true)) return;
  watches_use = false;
  WantLibraryCalls();
  StartCounting();
  residency.set_names_launches(LogEnabled(settings::LogLevel::kDebug));
  residency.NoteUnseenUse();
  if (CountLaunches() != launches_at_unplanned_copy_) residency.ForgetAllCopies();
  SLUICE_LOG(kInfo, "%s: %.2f GiB requested, budget %.2f GiB: residency is managed from here on", uuid.c_str(),
             static_cast<double>(requested_bytes) / 0x1p30, static_cast<double>(budget.budget_bytes) / 0x1p30);
}

void Device::ApplyBudget(const sluice_budget& next) {
  DeviceLock lock(mutex);
  const bool raised = budget.generation != 0 && next.budget_bytes > budget.budget_bytes;
  raise_expected_until_ns = 0;
  if (raised && next.budget_bytes < live_bytes + unmanaged_bytes.load()) ExpectRaise();
  residency.set_budget_rising(raise_expected_until_ns != 0);
  if (next.budget_bytes != budget.budget_bytes) memory_factor.Restart();
  FollowParked(next);
  budget = next;
  link_meter.SetRate(next.link_bytes_per_s, LinkBytes(), MonotonicNs());
  if (budget.limit_bytes == 0) budget.limit_bytes = total_bytes;
  residency.set_prefetch(static_cast<policy::Prefetch>(std::min<uint8_t>(next.prefetch, 2)));
  g_log_level = static_cast<settings::LogLevel>(std::min<uint8_t>(next.log_level, 3));
  UpdateMode();  // the excess is evicted by the follower's thread (Evict), and by launches
}

sluice_budget Device::Budget() {
  DeviceLock lock(mutex);
  return budget;
}

void Device::View(uint64_t* total, uint64_t* free) {
  const uint64_t others = free ? OthersBytes() : 0;
  DeviceLock lock(mutex);
  ViewUnlocked(others, total, free);
}

void Device::ViewUnlocked(uint64_t others_bytes, uint64_t* total, uint64_t* free) const {
  const uint64_t visible =
      budget.visible == SLUICE_VISIBLE_LIMIT ? std::min(budget.limit_bytes, total_bytes) : budget.guaranteed_bytes;
  const uint64_t used = allocated_bytes + unmanaged_bytes.load();
  *total = visible;
  if (free) *free = used < visible && others_bytes < visible - used ? visible - used - others_bytes : 0;
}

Context* Device::ContextFor(CUcontext handle) {
  std::unique_ptr<Context>& entry = contexts[handle];
  if (!entry) {
    entry = std::make_unique<Context>();
    entry->handle = handle;
    entry->device = this;
    entry->managed = std::make_unique<memory::ArenaAllocator>(&fences);
    entry->unevictable = std::make_unique<memory::ArenaAllocator>(&fences);
  }
  return entry.get();
}

CUstream Device::Housekeeping(Context* context) {
  if (!context->housekeeping) g_real.cuStreamCreate(&context->housekeeping, CU_STREAM_NON_BLOCKING);
  return context->housekeeping;
}

Stream* Device::StreamById(memory::StreamId id) {
  if (id == 0 || id > streams.size()) return nullptr;
  Stream* stream = streams[id - 1].get();
  return stream->context ? stream : nullptr;
}

void Device::LogIfTooLarge(const std::vector<libraries::Reach>& reaches) {
  DeviceLock lock(mutex);
  if (logged_large_graph_) return;
  std::vector<memory::Extent> all;
  for (const libraries::Reach& reach : reaches) {
    if (const auto extent = Resolve(reach)) all.push_back(*extent);
  }
  std::sort(all.begin(), all.end(), [](const memory::Extent& a, const memory::Extent& b) { return a.base < b.base; });
  uint64_t bytes = 0, end = 0;
  for (const memory::Extent& extent : all) {
    if (extent.end() <= end) continue;
    bytes += extent.end() - std::max(extent.base, end);
    end = extent.end();
  }
  if (bytes <= residency.capacity()) return;
  logged_large_graph_ = true;
  SLUICE_LOG(
      kWarn,
      "%s: a CUDA graph uses %.2f GiB, and %.2f GiB can be resident: chunks that most of its nodes use stay on the "
      "GPU; the others are fetched for each launch, used in host memory or faulted in, whichever is measured to be the "
      "fastest; a larger fraction or smaller graphs help",
      uuid.c_str(), static_cast<double>(bytes) / 0x1p30, static_cast<double>(residency.capacity()) / 0x1p30);
}

}  // namespace sluice
