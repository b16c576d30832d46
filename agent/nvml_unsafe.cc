#include "agent/nvml_unsafe.h"

#include <dlfcn.h>
#include <nvml.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <utility>

#include "common/nvml/library.h"

namespace sluice::agent {
namespace {

constexpr time_t kBusySeconds = 3;

int NumaNode(const std::string& bus) {
  std::ifstream in("/sys/bus/pci/devices/" + bus + "/numa_node");
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

std::unique_ptr<Nvml> Nvml::Load(const std::string& name, std::string* error) {
  auto library = std::make_unique<nvml::Library>();
  if (nvml::Load(name, library.get(), error) != nvml::LoadResult::kStarted) return nullptr;
  return std::unique_ptr<Nvml>(new Nvml(std::move(library)));
}

Nvml::Nvml(std::unique_ptr<const nvml::Library> library) : library_(std::move(library)) {}

Nvml::~Nvml() {
  library_->shutdown();
  dlclose(library_->handle);
}

bool Nvml::Find(const std::string& uuid, nvmlDevice_st** device) const {
  return library_->by_uuid != nullptr && library_->by_uuid(uuid.c_str(), device) == NVML_SUCCESS;
}

std::vector<Card> Nvml::Cards() const {
  std::vector<Card> out;
  unsigned n = 0;
  if (library_->count(&n) != NVML_SUCCESS) return out;
  for (unsigned i = 0; i < n; ++i) {
    nvmlDevice_t device{};
    char uuid[96] = {}, name[96] = {};
    if (library_->by_index(i, &device) != NVML_SUCCESS || library_->uuid(device, uuid, sizeof(uuid)) != NVML_SUCCESS)
      continue;
    Card card;
    card.uuid = uuid;
    if (library_->name(device, name, sizeof(name)) == NVML_SUCCESS) card.model = name;
    nvmlMemory_v2_t v2{};
    v2.version = nvmlMemory_v2;
    nvmlMemory_t v1{};
    if (library_->memory(device, &v1) == NVML_SUCCESS) card.memory = v1.total;
    if (library_->memory_v2 && library_->memory_v2(device, &v2) == NVML_SUCCESS) {
      // From driver 615 on this may be the limit of the agent's own cgroup.
      if (v2.total + v2.reserved < card.memory) card.cgroup_memory = v2.total;
      card.memory = std::max<Bytes>(card.memory, v2.total);
      card.driver_reserved = v2.reserved;
    }
    card.numa = NumaNode(nvml::PciBusId(*library_, device));
    unsigned generation = 0, width = 0;
    if (library_->link_generation && library_->link_width &&
        library_->link_generation(device, &generation) == NVML_SUCCESS &&
        library_->link_width(device, &width) == NVML_SUCCESS)
      card.link_bytes_per_s = LaneRate(generation) * width;
    if (card.memory > 0) out.push_back(std::move(card));
  }
  return out;
}

uint64_t Nvml::UsedBytes(const std::string& uuid) const {
  nvmlDevice_t device{};
  nvmlMemory_t v1{};
  if (!Find(uuid, &device) || library_->memory(device, &v1) != NVML_SUCCESS) return 0;
  return v1.used;
}

std::optional<std::vector<GpuProcess>> Nvml::Processes(const std::string& uuid) const {
  nvmlDevice_t device{};
  if (!library_->processes || !Find(uuid, &device)) return std::nullopt;
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
  if (!read(library_->processes)) return std::nullopt;
  if (library_->mps_processes) read(library_->mps_processes);  // clients of MPS are in this list alone
  ReadBusy(device, &out);
  return out;
}

// The driver keeps some samples a second for each process, and gives those since a time in microseconds.
void Nvml::ReadBusy(nvmlDevice_st* device, std::vector<GpuProcess>* processes) const {
  if (!library_->utilization || processes->empty()) return;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const uint64_t since = static_cast<uint64_t>(now.tv_sec - kBusySeconds) * 1000000u;
  unsigned n = 0;
  nvmlReturn_t r = library_->utilization(device, nullptr, &n, since);
  std::vector<nvmlProcessUtilizationSample_t> samples(n);
  if (r != NVML_SUCCESS && r != NVML_ERROR_INSUFFICIENT_SIZE) return;
  if (n > 0 && library_->utilization(device, samples.data(), &n, since) != NVML_SUCCESS) return;
  samples.resize(std::min<size_t>(samples.size(), n));
  for (GpuProcess& p : *processes) {
    p.busy_percent = 0;
    for (const auto& s : samples) {
      if (s.pid == p.pid) p.busy_percent = std::max(p.busy_percent, static_cast<int>(s.smUtil));
    }
  }
}

bool Nvml::CanLimitMemory() const { return library_->set_memory_limits != nullptr; }

bool Nvml::SetMemoryLimit(const std::string& uuid, const std::string& cgroup, uint64_t bytes, bool* supported) const {
  nvmlDevice_t device{};
  *supported = false;
  if (!library_->set_memory_limits || !Find(uuid, &device)) return false;
  // No soft limit: between it and the hard one the driver would let containers take each other's memory.
  nvmlSetMemoryLimits_v1_t limits{cgroup.c_str(), bytes, bytes};
  const nvmlReturn_t r = library_->set_memory_limits(device, &limits);
  *supported = r != NVML_ERROR_NOT_SUPPORTED && r != NVML_ERROR_FUNCTION_NOT_FOUND;
  return r == NVML_SUCCESS;
}

std::string Nvml::DriverVersion() const {
  char text[96] = {};
  return library_->driver_version(text, sizeof(text)) == NVML_SUCCESS ? text : "";
}

}  // namespace sluice::agent
