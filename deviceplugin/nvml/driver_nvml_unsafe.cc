// NVML through dlopen, so that the plugin runs on nodes without a driver and finds one that is installed later.
#include <nvml.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/nvml/library.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/nvml/nvml_api.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {
namespace {

const char* ModeName(nvmlComputeMode_t mode) {
  switch (mode) {
    case NVML_COMPUTEMODE_DEFAULT:
      return "Default";
    case NVML_COMPUTEMODE_EXCLUSIVE_THREAD:
      return "Exclusive_Thread";
    case NVML_COMPUTEMODE_PROHIBITED:
      return "Prohibited";
    case NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
      return "Exclusive_Process";
    default:
      return "unknown";
  }
}

std::string ArchitectureName(nvmlDeviceArchitecture_t value) {
  switch (value) {
    case NVML_DEVICE_ARCH_KEPLER:
      return "Kepler";
    case NVML_DEVICE_ARCH_MAXWELL:
      return "Maxwell";
    case NVML_DEVICE_ARCH_PASCAL:
      return "Pascal";
    case NVML_DEVICE_ARCH_VOLTA:
      return "Volta";
    case NVML_DEVICE_ARCH_TURING:
      return "Turing";
    case NVML_DEVICE_ARCH_AMPERE:
      return "Ampere";
    case NVML_DEVICE_ARCH_ADA:
      return "Ada";
    case NVML_DEVICE_ARCH_HOPPER:
      return "Hopper";
    case NVML_DEVICE_ARCH_BLACKWELL:
      return "Blackwell";
    default:
      return "";
  }
}

class DriverNvml final : public NvmlApi {
 public:
  DriverNvml(std::string library, std::string sys_root)
      : library_name_(std::move(library)), sys_(std::move(sys_root)) {}

  absl::Status Open() override {
    MutexLock lock(mutex_);
    // The old library stays mapped, since another thread's call may be inside it. A new driver comes with a new file,
    // so reopening the soname gives the new one.
    if (library_.shutdown != nullptr) library_.shutdown();
    library_ = {};
    set_ = nullptr;
    std::string error;
    switch (nvml::Load(library_name_, &library_, &error)) {
      case nvml::LoadResult::kStarted:
        return absl::OkStatus();
      case nvml::LoadResult::kNoLibrary:
        return absl::NotFoundError(error);
      case nvml::LoadResult::kLacksFunctions:
        return absl::FailedPreconditionError(error);
      case nvml::LoadResult::kDoesNotStart:
        break;
    }
    return absl::UnavailableError(error);
  }

  absl::StatusOr<std::string> DriverVersion() override {
    const nvml::Library e = Copy();
    if (e.driver_version == nullptr) return NotOpen();
    char text[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE] = {};
    if (auto s = Check(e, "nvmlSystemGetDriverVersion", e.driver_version(text, sizeof text)); !s.ok()) return s;
    return std::string(text);
  }

  absl::StatusOr<int> Count() override {
    const nvml::Library e = Copy();
    if (e.count == nullptr) return NotOpen();
    unsigned count = 0;
    if (auto s = Check(e, "nvmlDeviceGetCount", e.count(&count)); !s.ok()) return s;
    return static_cast<int>(count);
  }

  absl::StatusOr<CardReading> Read(int index) override {
    const nvml::Library e = Copy();
    if (e.by_index == nullptr) return NotOpen();
    nvmlDevice_t device = nullptr;
    if (auto s = Check(e, "nvmlDeviceGetHandleByIndex", e.by_index(static_cast<unsigned>(index), &device)); !s.ok())
      return s;
    CardReading out;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = {}, name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = {};
    if (auto s = Check(e, "nvmlDeviceGetUUID", e.uuid(device, uuid, sizeof uuid)); !s.ok()) return s;
    if (auto s = Check(e, "nvmlDeviceGetName", e.name(device, name, sizeof name)); !s.ok()) return s;
    auto memory = Memory(e, device);
    if (!memory.ok()) return memory.status();
    out.uuid = uuid;
    out.model = name;
    out.memory_bytes = *memory;
    unsigned minor = 0;
    out.minor = e.minor != nullptr && e.minor(device, &minor) == NVML_SUCCESS ? static_cast<int>(minor) : index;
    out.reserved_bytes = Reserved(e, device);
    out.architecture = Architecture(e, device);
    out.nvlink_clique = Clique(e, device);
    out.nvlink_peers = NvlinkPeers(e, device);
    const std::string bus = nvml::PciBusId(e, device);
    out.pcie_root = PcieRoot(bus);
    out.numa = Numa(e, device, bus);
    nvmlEnableState_t current = NVML_FEATURE_DISABLED, pending = NVML_FEATURE_DISABLED;
    out.ecc = e.ecc != nullptr && e.ecc(device, &current, &pending) == NVML_SUCCESS && current == NVML_FEATURE_ENABLED;
    nvmlComputeMode_t mode = NVML_COMPUTEMODE_DEFAULT;
    if (e.compute_mode != nullptr && e.compute_mode(device, &mode) == NVML_SUCCESS) {
      out.exclusive = mode != NVML_COMPUTEMODE_DEFAULT;
      out.compute_mode = ModeName(mode);
    }
    unsigned mig = NVML_DEVICE_MIG_DISABLE, mig_pending = 0;
    out.mig = e.mig != nullptr && e.mig(device, &mig, &mig_pending) == NVML_SUCCESS && mig == NVML_DEVICE_MIG_ENABLE;
    nvmlGpuVirtualizationMode_t virtualization = NVML_GPU_VIRTUALIZATION_MODE_NONE;
    // Pass-through into a VM gives a whole card. A vGPU (guest) or a host that splits its cards into vGPUs does not.
    out.vgpu = e.virtualization != nullptr && e.virtualization(device, &virtualization) == NVML_SUCCESS &&
               virtualization != NVML_GPU_VIRTUALIZATION_MODE_NONE &&
               virtualization != NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH;
    nvmlFieldValue_t action = {};
    action.fieldId = NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
    if (e.fields != nullptr && e.fields(device, 1, &action) == NVML_SUCCESS && action.nvmlReturn == NVML_SUCCESS) {
      out.recovery_needed = action.value.uiVal != NVML_GPU_RECOVERY_ACTION_NONE;
    }
    return out;
  }

  absl::StatusOr<std::optional<NvmlEvent>> WaitEvent(std::chrono::milliseconds timeout) override {
    const nvml::Library e = Copy();
    if (e.set_create == nullptr || e.wait == nullptr || e.register_events == nullptr) {
      return absl::UnimplementedError("this driver sends no events");
    }
    nvmlEventSet_t set = nullptr;
    if (auto s = EventSet(e, &set); !s.ok()) return s;
    nvmlEventData_t data = {};
    const nvmlReturn_t rc = e.wait(set, &data, static_cast<unsigned>(timeout.count()));
    if (rc == NVML_ERROR_TIMEOUT) return std::optional<NvmlEvent>();
    if (auto s = Check(e, "nvmlEventSetWait", rc); !s.ok()) return s;
    NvmlEvent event;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = {};
    if (data.device != nullptr && e.uuid(data.device, uuid, sizeof uuid) == NVML_SUCCESS) event.uuid = uuid;
    event.type =
        data.eventType == nvmlEventTypeDoubleBitEccError ? NvmlEvent::Type::kDoubleBitEcc : NvmlEvent::Type::kXid;
    event.xid = data.eventType == nvmlEventTypeXidCriticalError ? data.eventData : 0;
    return std::optional<NvmlEvent>(event);
  }

 private:
  nvml::Library Copy() {
    MutexLock lock(mutex_);
    return library_;
  }

  static absl::Status NotOpen() { return absl::UnavailableError("NVML is not loaded"); }

  static absl::Status Check(const nvml::Library& e, const char* call, nvmlReturn_t rc) {
    if (rc == NVML_SUCCESS) return absl::OkStatus();
    const std::string text = StrCat(call, ": ", e.error_string(rc));
    return rc == NVML_ERROR_GPU_IS_LOST || rc == NVML_ERROR_NOT_FOUND ? absl::NotFoundError(text)
                                                                      : absl::UnavailableError(text);
  }

  // 0: the driver knows no size, as on GPUs that use the host's memory (GB10).
  static absl::StatusOr<uint64_t> Memory(const nvml::Library& e, nvmlDevice_t device) {
    nvmlMemory_t memory = {};
    const nvmlReturn_t rc = e.memory(device, &memory);
    if (rc != NVML_ERROR_NOT_SUPPORTED) {
      if (auto s = Check(e, "nvmlDeviceGetMemoryInfo", rc); !s.ok()) return s;
      return memory.total;
    }
    nvmlMemory_v2_t newer = {};
    newer.version = nvmlMemory_v2;
    return e.memory_v2 != nullptr && e.memory_v2(device, &newer) == NVML_SUCCESS ? newer.total : 0;
  }

  static uint64_t Reserved(const nvml::Library& e, nvmlDevice_t device) {
    nvmlMemory_v2_t memory = {};
    memory.version = nvmlMemory_v2;
    return e.memory_v2 != nullptr && e.memory_v2(device, &memory) == NVML_SUCCESS ? memory.reserved : 0;
  }

  static std::string Architecture(const nvml::Library& e, nvmlDevice_t device) {
    nvmlDeviceArchitecture_t value = NVML_DEVICE_ARCH_UNKNOWN;
    if (e.architecture == nullptr || e.architecture(device, &value) != NVML_SUCCESS) return "";
    return ArchitectureName(value);
  }

  static std::string Clique(const nvml::Library& e, nvmlDevice_t device) {
    nvmlGpuFabricInfoV_t fabric = {};
    fabric.version = nvmlGpuFabricInfo_v3;
    if (e.fabric == nullptr || e.fabric(device, &fabric) != NVML_SUCCESS) return "";
    if (fabric.state != NVML_GPU_FABRIC_STATE_COMPLETED || fabric.status != NVML_SUCCESS) return "";
    // A node without a fabric manager's cluster reports zeros.
    if (std::ranges::all_of(fabric.clusterUuid, [](unsigned char byte) { return byte == 0; })) return "";
    std::string hex;
    for (const unsigned char byte : fabric.clusterUuid) {
      constexpr char kDigits[] = "0123456789abcdef";
      if (hex.size() == 8 || hex.size() == 13 || hex.size() == 18 || hex.size() == 23) hex += '-';
      hex += kDigits[byte >> 4];
      hex += kDigits[byte & 15];
    }
    return StrCat(hex, ".", fabric.cliqueId);
  }

  static std::set<std::string> NvlinkPeers(const nvml::Library& e, nvmlDevice_t device) {
    std::set<std::string> peers;
    unsigned count = 0;
    if (e.p2p == nullptr || e.count(&count) != NVML_SUCCESS) return peers;
    for (unsigned i = 0; i < count; ++i) {
      nvmlDevice_t other = nullptr;
      nvmlGpuP2PStatus_t status = NVML_P2P_STATUS_UNKNOWN;
      char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = {};
      if (e.by_index(i, &other) != NVML_SUCCESS || other == device) continue;
      if (e.p2p(device, other, NVML_P2P_CAPS_INDEX_NVLINK, &status) != NVML_SUCCESS) continue;
      if (status == NVML_P2P_STATUS_OK && e.uuid(other, uuid, sizeof uuid) == NVML_SUCCESS) peers.insert(uuid);
    }
    return peers;
  }

  // sysfs links the card to /sys/devices/pci0000:64/...: the first part below `devices` is its root.
  std::string PcieRoot(const std::string& bus) const {
    if (bus.empty()) return "";
    std::error_code error;
    const std::string path = std::filesystem::canonical(StrCat(sys_, "/bus/pci/devices/", bus), error).string();
    const size_t at = path.find("/devices/pci");
    if (error || at == std::string::npos) return "";
    const size_t begin = at + sizeof("/devices/") - 1;
    return path.substr(begin, path.find('/', begin) - begin);
  }

  int Numa(const nvml::Library& e, nvmlDevice_t device, const std::string& bus) {
    if (!bus.empty()) {
      if (auto text = ReadFile(StrCat(sys_, "/bus/pci/devices/", bus, "/numa_node"), 64); text.ok()) {
        return std::atoi(text->c_str());
      }
    }
    unsigned long nodes = 0;
    if (e.affinity != nullptr && e.affinity(device, 1, &nodes, NVML_AFFINITY_SCOPE_NODE) == NVML_SUCCESS &&
        nodes != 0) {
      return __builtin_ctzl(nodes);
    }
    return -1;
  }

  absl::Status EventSet(const nvml::Library& e, nvmlEventSet_t* out) {
    MutexLock lock(mutex_);
    if (set_ == nullptr) {
      nvmlEventSet_t set = nullptr;
      if (auto s = Check(e, "nvmlEventSetCreate", e.set_create(&set)); !s.ok()) return s;
      unsigned count = 0, registered = 0;
      e.count(&count);
      for (unsigned i = 0; i < count; ++i) {
        nvmlDevice_t device = nullptr;
        if (e.by_index(i, &device) != NVML_SUCCESS) continue;
        const auto types = nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError;
        // Cards without ECC refuse the second event type.
        registered += e.register_events(device, types, set) == NVML_SUCCESS ||
                      e.register_events(device, nvmlEventTypeXidCriticalError, set) == NVML_SUCCESS;
      }
      if (registered == 0) {
        if (e.set_free != nullptr) e.set_free(set);
        return absl::UnimplementedError("no card sends events");
      }
      set_ = set;
    }
    *out = set_;
    return absl::OkStatus();
  }

  const std::string library_name_, sys_;
  Mutex mutex_;
  nvml::Library library_ SLUICE_GUARDED_BY(mutex_);
  nvmlEventSet_t set_ SLUICE_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace

std::shared_ptr<NvmlApi> MakeDriverNvml(std::string library, std::string sys_root) {
  return std::make_shared<DriverNvml>(std::move(library), std::move(sys_root));
}

}  // namespace sluice::deviceplugin
