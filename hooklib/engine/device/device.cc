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

Device::Device(CUdevice number) : DeviceMemory(this, number) {
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

}  // namespace sluice
