#include "agent/nvml_unsafe.h"

#include <dlfcn.h>
#include <nvml.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <fstream>

namespace sluice::agent {
namespace {

constexpr time_t kBusySeconds = 3;

// nvml.h renames functions by macro. Looks up the name in the library, or an older one where an old driver lacks it.
template <typename F>
F* Symbol(void* library, const char* name, const char* older = nullptr) {
  void* p = dlsym(library, name);
  if (p == nullptr && older != nullptr) p = dlsym(library, older);
  return reinterpret_cast<F*>(p);
}

int NumaNode(const std::string& bus) {
  // "00000000:3B:00.0" in NVML is "0000:3b:00.0" in sysfs.
  if (bus.size() < 12) return -1;
  std::string id = bus.substr(bus.size() - 12);
  std::ranges::transform(id, id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream in("/sys/bus/pci/devices/" + id + "/numa_node");
  int node = -1;
  in >> node;
  return in ? node : -1;
}

// One way, bytes a second, by the generation of PCI Express. 0: not known.
Bytes LaneRate(unsigned generation) {
  constexpr Bytes kMega = 1'000'000;
  constexpr Bytes kRates[] = {0, 250 * kMega, 500 * kMega, 985 * kMega, 1969 * kMega, 3938 * kMega, 7563 * kMega};
  return generation < std::size(kRates) ? kRates[generation] : kRates[std::size(kRates) - 1];
}

}  // namespace

struct Nvml::Api {
  void* library = nullptr;
  decltype(&nvmlInit_v2) init = nullptr;
  decltype(&nvmlShutdown) shutdown = nullptr;
  decltype(&nvmlErrorString) error_string = nullptr;
  decltype(&nvmlSystemGetDriverVersion) driver_version = nullptr;
  decltype(&nvmlDeviceGetCount_v2) count = nullptr;
  decltype(&nvmlDeviceGetHandleByIndex_v2) by_index = nullptr;
  decltype(&nvmlDeviceGetHandleByUUID) by_uuid = nullptr;
  decltype(&nvmlDeviceGetUUID) uuid = nullptr;
  decltype(&nvmlDeviceGetName) name = nullptr;
  decltype(&nvmlDeviceGetMemoryInfo) memory = nullptr;
  decltype(&nvmlDeviceGetMemoryInfo_v2) memory_v2 = nullptr;
  decltype(&nvmlDeviceGetPciInfo_v3) pci = nullptr;
  decltype(&nvmlDeviceGetMaxPcieLinkGeneration) link_generation = nullptr;
  decltype(&nvmlDeviceGetMaxPcieLinkWidth) link_width = nullptr;
  decltype(&nvmlDeviceGetComputeRunningProcesses_v3) processes = nullptr;
  decltype(&nvmlDeviceGetMPSComputeRunningProcesses_v3) mps_processes = nullptr;
  decltype(&nvmlDeviceGetProcessUtilization) utilization = nullptr;
  decltype(&nvmlDeviceSetMemoryLimits_v1) set_memory_limits = nullptr;  // 615
};

std::unique_ptr<Nvml> Nvml::Load(const std::string& library, std::string* error) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    *error = "NVML: '" + library + "' was not found: " + (why == nullptr ? "unknown" : why);
    return nullptr;
  }
  auto api = std::make_unique<Api>();
  api->library = handle;
  api->init = Symbol<decltype(nvmlInit_v2)>(handle, "nvmlInit_v2");
  api->shutdown = Symbol<decltype(nvmlShutdown)>(handle, "nvmlShutdown");
  api->error_string = Symbol<decltype(nvmlErrorString)>(handle, "nvmlErrorString");
  api->driver_version = Symbol<decltype(nvmlSystemGetDriverVersion)>(handle, "nvmlSystemGetDriverVersion");
  api->count = Symbol<decltype(nvmlDeviceGetCount_v2)>(handle, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount");
  api->by_index = Symbol<decltype(nvmlDeviceGetHandleByIndex_v2)>(handle, "nvmlDeviceGetHandleByIndex_v2");
  api->by_uuid = Symbol<decltype(nvmlDeviceGetHandleByUUID)>(handle, "nvmlDeviceGetHandleByUUID");
  api->uuid = Symbol<decltype(nvmlDeviceGetUUID)>(handle, "nvmlDeviceGetUUID");
  api->name = Symbol<decltype(nvmlDeviceGetName)>(handle, "nvmlDeviceGetName");
  api->memory = Symbol<decltype(nvmlDeviceGetMemoryInfo)>(handle, "nvmlDeviceGetMemoryInfo");
  api->memory_v2 = Symbol<decltype(nvmlDeviceGetMemoryInfo_v2)>(handle, "nvmlDeviceGetMemoryInfo_v2");
  api->pci = Symbol<decltype(nvmlDeviceGetPciInfo_v3)>(handle, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2");
  api->link_generation =
      Symbol<decltype(nvmlDeviceGetMaxPcieLinkGeneration)>(handle, "nvmlDeviceGetMaxPcieLinkGeneration");
  api->link_width = Symbol<decltype(nvmlDeviceGetMaxPcieLinkWidth)>(handle, "nvmlDeviceGetMaxPcieLinkWidth");
  api->processes =
      Symbol<decltype(nvmlDeviceGetComputeRunningProcesses_v3)>(handle, "nvmlDeviceGetComputeRunningProcesses_v3");
  api->mps_processes = Symbol<decltype(nvmlDeviceGetMPSComputeRunningProcesses_v3)>(
      handle, "nvmlDeviceGetMPSComputeRunningProcesses_v3");
  api->utilization = Symbol<decltype(nvmlDeviceGetProcessUtilization)>(handle, "nvmlDeviceGetProcessUtilization");
  api->set_memory_limits = Symbol<decltype(nvmlDeviceSetMemoryLimits_v1)>(handle, "nvmlDeviceSetMemoryLimits_v1");
  const bool whole =
      api->init && api->shutdown && api->count && api->by_index && api->by_uuid && api->uuid && api->memory;
  if (!whole) {
    dlclose(handle);
    *error = "NVML: '" + library + "' lacks functions that every driver since 450 has";
    return nullptr;
  }
  const nvmlReturn_t r = api->init();
  if (r != NVML_SUCCESS) {
    *error =
        "NVML: '" + library + "' does not start: " + (api->error_string ? api->error_string(r) : std::to_string(r));
    dlclose(handle);
    return nullptr;
  }
  std::unique_ptr<Nvml> nvml(new Nvml());
  nvml->api_ = std::move(api);
  return nvml;
}

Nvml::~Nvml() {
  if (!api_) return;
  api_->shutdown();
  dlclose(api_->library);
}

std::vector<Card> Nvml::Cards() const {
  std::vector<Card> out;
  unsigned n = 0;
  if (api_->count(&n) != NVML_SUCCESS) return out;
  for (unsigned i = 0; i < n; ++i) {
    nvmlDevice_t device{};
    char uuid[96] = {}, name[96] = {};
    if (api_->by_index(i, &device) != NVML_SUCCESS || api_->uuid(device, uuid, sizeof(uuid)) != NVML_SUCCESS) continue;
    Card card;
    card.uuid = uuid;
    if (api_->name && api_->name(device, name, sizeof(name)) == NVML_SUCCESS) card.model = name;
    nvmlMemory_v2_t v2{};
    v2.version = nvmlMemory_v2;
    nvmlMemory_t v1{};
    if (api_->memory(device, &v1) == NVML_SUCCESS) card.memory = v1.total;
    if (api_->memory_v2 && api_->memory_v2(device, &v2) == NVML_SUCCESS) {
      // From driver 615 on this may be the limit of the agent's own cgroup.
      if (v2.total + v2.reserved < card.memory) card.cgroup_memory = v2.total;
      card.memory = std::max<Bytes>(card.memory, v2.total);
      card.driver_reserved = v2.reserved;
    }
    nvmlPciInfo_t pci{};
    if (api_->pci && api_->pci(device, &pci) == NVML_SUCCESS) card.numa = NumaNode(pci.busId);
    unsigned generation = 0, width = 0;
    if (api_->link_generation && api_->link_width && api_->link_generation(device, &generation) == NVML_SUCCESS &&
        api_->link_width(device, &width) == NVML_SUCCESS)
      card.link_bytes_per_s = LaneRate(generation) * width;
    if (card.memory > 0) out.push_back(std::move(card));
  }
  return out;
}

uint64_t Nvml::UsedBytes(const std::string& uuid) const {
  nvmlDevice_t device{};
  nvmlMemory_t v1{};
  if (api_->by_uuid(uuid.c_str(), &device) != NVML_SUCCESS || api_->memory(device, &v1) != NVML_SUCCESS) return 0;
  return v1.used;
}

std::optional<std::vector<GpuProcess>> Nvml::Processes(const std::string& uuid) const {
  nvmlDevice_t device{};
  if (!api_->processes || api_->by_uuid(uuid.c_str(), &device) != NVML_SUCCESS) return std::nullopt;
  std::vector<GpuProcess> out;
  const auto read = [&](auto* list) {
    std::vector<nvmlProcessInfo_t> info(64);
    unsigned n = static_cast<unsigned>(info.size());
    nvmlReturn_t r = list(device, &n, info.data());
    for (int round = 0; r == NVML_ERROR_INSUFFICIENT_SIZE && round < 4; ++round) {
      info.resize(n + 64);
      n = static_cast<unsigned>(info.size());
      r = list(device, &n, info.data());
    }
    if (r != NVML_SUCCESS) return false;
    for (unsigned i = 0; i < n; ++i) {
      const bool known = info[i].usedGpuMemory != static_cast<unsigned long long>(-1);
      const bool twice = std::ranges::any_of(out, [&](const GpuProcess& p) { return p.pid == info[i].pid; });
      if (!twice) out.push_back({info[i].pid, known ? info[i].usedGpuMemory : 0});
    }
    return true;
  };
  if (!read(api_->processes)) return std::nullopt;
  if (api_->mps_processes) read(api_->mps_processes);  // clients of MPS are in this list alone
  ReadBusy(device, &out);
  return out;
}

// The driver keeps some samples a second for each process, and gives those since a time in microseconds.
void Nvml::ReadBusy(nvmlDevice_st* device, std::vector<GpuProcess>* processes) const {
  if (!api_->utilization || processes->empty()) return;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const uint64_t since = static_cast<uint64_t>(now.tv_sec - kBusySeconds) * 1000000u;
  unsigned n = 0;
  nvmlReturn_t r = api_->utilization(device, nullptr, &n, since);
  std::vector<nvmlProcessUtilizationSample_t> samples(n);
  if (r != NVML_SUCCESS && r != NVML_ERROR_INSUFFICIENT_SIZE) return;
  if (n > 0 && api_->utilization(device, samples.data(), &n, since) != NVML_SUCCESS) return;
  samples.resize(std::min<size_t>(samples.size(), n));
  for (GpuProcess& p : *processes) {
    p.busy_percent = 0;
    for (const auto& s : samples) {
      if (s.pid == p.pid) p.busy_percent = std::max(p.busy_percent, static_cast<int>(s.smUtil));
    }
  }
}

bool Nvml::CanLimitMemory() const { return api_->set_memory_limits != nullptr; }

bool Nvml::SetMemoryLimit(const std::string& uuid, const std::string& cgroup, uint64_t bytes, bool* supported) const {
  nvmlDevice_t device{};
  *supported = false;
  if (!api_->set_memory_limits || api_->by_uuid(uuid.c_str(), &device) != NVML_SUCCESS) return false;
  // No soft limit: between it and the hard one the driver would let containers take each other's memory.
  nvmlSetMemoryLimits_v1_t limits{cgroup.c_str(), bytes, bytes};
  const nvmlReturn_t r = api_->set_memory_limits(device, &limits);
  *supported = r != NVML_ERROR_NOT_SUPPORTED && r != NVML_ERROR_FUNCTION_NOT_FOUND;
  return r == NVML_SUCCESS;
}

std::string Nvml::DriverVersion() const {
  char text[96] = {};
  return api_->driver_version && api_->driver_version(text, sizeof(text)) == NVML_SUCCESS ? text : "";
}

}  // namespace sluice::agent
