#include "deviceplugin/nvml/bounded_nvml.h"

#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {

// Owned by the caller's slot and by its own thread: the last owner frees it, so a stuck call never touches freed
// memory.
struct BoundedNvml::Worker {
  Mutex mutex;
  Condition changed;
  std::function<void()> job SLUICE_GUARDED_BY(mutex);
  bool done SLUICE_GUARDED_BY(mutex) = false;
  bool ended SLUICE_GUARDED_BY(mutex) = false;

  // The next job; empty: the worker must end.
  std::function<void()> AwaitJob() {
    MutexLock lock(mutex);
    while (!job && !ended) changed.Wait(mutex);
    return std::exchange(job, nullptr);
  }
  // Reports the job as done. False: its caller had abandoned it.
  bool Finish() {
    MutexLock lock(mutex);
    done = true;
    changed.NotifyAll();
    return !ended;
  }
  // False: the job did not finish in time. It is abandoned, and counted until it returns.
  bool Execute(std::function<void()> call, std::chrono::milliseconds bound, std::atomic<int>& stuck_calls) {
    MutexLock lock(mutex);
    done = false;
    job = std::move(call);
    changed.NotifyAll();
    const auto end = std::chrono::steady_clock::now() + bound;
    while (!done && std::chrono::steady_clock::now() < end) changed.WaitUntil(mutex, end);
    if (done) return true;
    ended = true;
    stuck_calls.fetch_add(1);
    return false;
  }
  void End() {
    MutexLock lock(mutex);
    ended = true;
    changed.NotifyAll();
  }
};

BoundedNvml::BoundedNvml(std::shared_ptr<NvmlApi> inner, std::chrono::milliseconds bound)
    : inner_(std::move(inner)), bound_(bound), stuck_calls_(std::make_shared<std::atomic<int>>(0)) {}

BoundedNvml::~BoundedNvml() {
  for (auto& worker : {worker_, event_worker_}) {
    if (worker) worker->End();
  }
}

int BoundedNvml::stuck_calls() const { return stuck_calls_->load(); }

bool BoundedNvml::Run(std::shared_ptr<Worker>* slot, std::function<void()> call, std::chrono::milliseconds bound) {
  if (!*slot) {
    *slot = std::make_shared<Worker>();
    std::thread([worker = *slot, stuck_calls = stuck_calls_] {
      while (auto job = worker->AwaitJob()) {
        job();
        job = nullptr;  // frees the captures of the call, before its caller continues
        if (worker->Finish()) continue;
        stuck_calls->fetch_sub(1);  // abandoned, and the call returned after all
        return;
      }
    }).detach();
  }
  if ((*slot)->Execute(std::move(call), bound, *stuck_calls_)) return true;
  slot->reset();
  return false;
}

template <class T>
T BoundedNvml::Call(std::shared_ptr<Worker>* slot, const char* what, std::chrono::milliseconds bound,
                    const std::function<T(NvmlApi&)>& call) {
  if (stuck_calls() >= kMaxStuckCalls) {
    return absl::UnavailableError(
        StrCat("NVML hangs: ", stuck_calls(), " calls have not returned; ", what, " was not called"));
  }
  // Shared, so that the result outlives a caller that has given up.
  auto result = std::make_shared<T>(absl::UnknownError("no result"));
  if (Run(slot, [result, inner = inner_, call] { *result = call(*inner); }, bound)) return std::move(*result);
  return absl::DeadlineExceededError(StrCat("NVML hangs: ", what, " did not return within ", bound.count(), " ms"));
}

absl::Status BoundedNvml::Open() {
  return Call<absl::Status>(&worker_, "Open", bound_, [](NvmlApi& api) { return api.Open(); });
}

absl::StatusOr<std::string> BoundedNvml::DriverVersion() {
  return Call<absl::StatusOr<std::string>>(&worker_, "DriverVersion", bound_,
                                           [](NvmlApi& api) { return api.DriverVersion(); });
}

absl::StatusOr<int> BoundedNvml::Count() {
  return Call<absl::StatusOr<int>>(&worker_, "Count", bound_, [](NvmlApi& api) { return api.Count(); });
}

absl::StatusOr<CardReading> BoundedNvml::Read(int index) {
  return Call<absl::StatusOr<CardReading>>(&worker_, "Read", bound_, [index](NvmlApi& api) { return api.Read(index); });
}

absl::StatusOr<std::optional<NvmlEvent>> BoundedNvml::WaitEvent(std::chrono::milliseconds timeout) {
  return Call<absl::StatusOr<std::optional<NvmlEvent>>>(&event_worker_, "WaitEvent", bound_ + timeout,
                                                        [timeout](NvmlApi& api) { return api.WaitEvent(timeout); });
}

}  // namespace sluice::deviceplugin
