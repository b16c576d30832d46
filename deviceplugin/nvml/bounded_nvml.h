// NVML with every call bounded in time. A failing driver may never return from a call: the thread that made it is
// abandoned, and the caller gets DEADLINE_EXCEEDED. While kMaxStuckCalls threads are stuck, calls fail at once.
#ifndef SLUICE_DEVICEPLUGIN_NVML_BOUNDED_NVML_H_
#define SLUICE_DEVICEPLUGIN_NVML_BOUNDED_NVML_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "deviceplugin/nvml/nvml_api.h"

namespace sluice::deviceplugin {

class BoundedNvml final : public NvmlApi {
 public:
  static constexpr int kMaxStuckCalls = 3;

  BoundedNvml(std::shared_ptr<NvmlApi> inner, std::chrono::milliseconds bound);
  ~BoundedNvml() override;

  absl::Status Open() override;
  absl::StatusOr<std::string> DriverVersion() override;
  absl::StatusOr<int> Count() override;
  absl::StatusOr<CardReading> Read(int index) override;
  // Bounded by `timeout` plus the bound.
  absl::StatusOr<std::optional<NvmlEvent>> WaitEvent(std::chrono::milliseconds timeout) override;

  int stuck_calls() const;  // threads that are stuck now

 private:
  struct Worker;
  // Runs the call on a thread; false: it did not return in time.
  bool Run(std::shared_ptr<Worker>* slot, std::function<void()> call, std::chrono::milliseconds bound);
  template <class T>
  T Call(std::shared_ptr<Worker>* slot, const char* what, std::chrono::milliseconds bound,
         const std::function<T(NvmlApi&)>& call);

  std::shared_ptr<NvmlApi> inner_;
  std::chrono::milliseconds bound_;
  std::shared_ptr<std::atomic<int>> stuck_calls_;
  std::shared_ptr<Worker> worker_;        // for calls from one thread
  std::shared_ptr<Worker> event_worker_;  // for WaitEvent, which runs in parallel on another thread
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_NVML_BOUNDED_NVML_H_
