// NVML with every call bounded in time. A driver in trouble may keep a call for ever: the thread that made it is given
// up, the caller gets DEADLINE_EXCEEDED. While kMostLost threads are stuck, calls fail at once.
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
  static constexpr int kMostLost = 3;

  BoundedNvml(std::shared_ptr<NvmlApi> inner, std::chrono::milliseconds bound);
  ~BoundedNvml() override;

  absl::Status Open() override;
  absl::StatusOr<std::string> DriverVersion() override;
  absl::StatusOr<int> Count() override;
  absl::StatusOr<CardReading> Read(int index) override;
  // Bounded by patience and the bound together.
  absl::StatusOr<std::optional<NvmlEvent>> WaitEvent(std::chrono::milliseconds patience) override;

  int lost() const;  // threads that are stuck now

 private:
  struct Worker;
  // Runs the call on a thread; false: it did not come back in time.
  bool Run(std::shared_ptr<Worker>* slot, std::function<void()> call, std::chrono::milliseconds bound);
  template <class T>
  T Call(std::shared_ptr<Worker>* slot, const char* what, std::chrono::milliseconds bound,
         const std::function<T(NvmlApi&)>& call);

  std::shared_ptr<NvmlApi> inner_;
  std::chrono::milliseconds bound_;
  std::shared_ptr<std::atomic<int>> lost_;
  std::shared_ptr<Worker> worker_;        // for the calls of one thread
  std::shared_ptr<Worker> event_worker_;  // WaitEvent runs beside them, on another
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_NVML_BOUNDED_NVML_H_
