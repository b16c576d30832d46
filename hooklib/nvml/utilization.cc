// Utilisation of the GPU and of each process.
#include <algorithm>
#include <ctime>
#include <vector>

#include "hooklib/nvml/nvml_view.h"
#include "hooklib/nvml/processes.h"
#include "hooklib/nvml/share_of_device.h"

namespace sluice {
namespace {

unsigned long long NowUs() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<unsigned long long>(now.tv_sec) * 1000000 + static_cast<unsigned long long>(now.tv_nsec) / 1000;
}

// The agent's figures; without one, the driver's for processes of this container. `read(samples)` asks the driver.
template <typename Sample, typename Read>
nvmlReturn_t Samples(const DeviceShare& view, Read read, unsigned* count, Sample* samples) {
  const Container here;
  std::vector<Sample> kept;
  if (const auto users = UsersOf(view)) {
    for (const ShareUser& user : *users) {
      if (!here.Holds(user.pid) || (user.bytes == 0 && user.utilization == 0)) continue;
      Sample sample{};
      sample.pid = user.pid;
      sample.timeStamp = NowUs();
      sample.smUtil = user.utilization;
      kept.push_back(sample);
    }
  } else {
    const nvmlReturn_t result = read(&kept);
    if (result != NVML_SUCCESS) return result;
    std::erase_if(kept, [&](const Sample& sample) { return !here.Holds(sample.pid); });
  }
  if (kept.empty()) {
    *count = 0;
    return NVML_ERROR_NOT_FOUND;  // as the driver says it of a GPU without a sample
  }
  const unsigned offered = samples == nullptr ? 0 : *count;
  *count = static_cast<unsigned>(kept.size());
  if (kept.size() > offered) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::ranges::copy(kept, samples);
  return NVML_SUCCESS;
}

constexpr unsigned kMaxSamples = 4096;

}  // namespace

namespace nvml_entry {

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* rates) {
  if (g_nvml.nvmlDeviceGetUtilizationRates == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
  const nvmlReturn_t result = g_nvml.nvmlDeviceGetUtilizationRates(device, rates);
  if (result != NVML_SUCCESS) return result;
  const auto view = ShareOfDevice(device);
  const int percent = view ? ShareUtilization(view->uuid.data()) : -1;
  if (percent < 0) return result;
  rates->gpu = static_cast<unsigned>(percent);
  rates->memory = std::min(rates->memory, rates->gpu);  // the driver's is that of all containers
  return result;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t* samples,
                                             unsigned* count, unsigned long long last_seen) {
  const auto real = g_nvml.nvmlDeviceGetProcessUtilization;
  if (real == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
  const auto view = count == nullptr ? std::nullopt : ShareOfDevice(device);
  if (!view) return real(device, samples, count, last_seen);
  const auto read = [&](std::vector<nvmlProcessUtilizationSample_t>* all) {
    unsigned listed = kMaxSamples;
    all->resize(listed);
    const nvmlReturn_t result = real(device, all->data(), &listed, last_seen);
    all->resize(std::min(listed, kMaxSamples));
    return result;
  };
  return Samples(*view, read, count, samples);
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t* info) {
  const auto real = g_nvml.nvmlDeviceGetProcessesUtilizationInfo;
  if (real == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
  const bool is_known = info != nullptr && info->version == nvmlProcessesUtilizationInfo_v1;
  const auto view = is_known ? ShareOfDevice(device) : std::nullopt;
  if (!view) return real(device, info);
  const auto read = [&](std::vector<nvmlProcessUtilizationInfo_v1_t>* all) {
    all->resize(kMaxSamples);
    nvmlProcessesUtilizationInfo_t own{info->version, kMaxSamples, info->lastSeenTimeStamp, all->data()};
    const nvmlReturn_t result = real(device, &own);
    all->resize(std::min(own.processSamplesCount, kMaxSamples));
    return result;
  };
  return Samples(*view, read, &info->processSamplesCount, info->procUtilArray);
}

}  // namespace nvml_entry
}  // namespace sluice
