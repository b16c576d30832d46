#include "deviceplugin/nvml/bounded_nvml.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {

// Owned by the caller's slot and by its own thread: the last owner frees it, so a stuck call never touches freed
// memory.
struct BoundedNvml::Worker {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> job;
  bool done = false, ended = false;
};

BoundedNvml::BoundedNvml(std::shared_ptr<NvmlApi> inner, std::chrono::milliseconds bound)
    : inner_(std::move(inner)), bound_(bound), stuck_calls_(std::make_shared<std::atomic<int>>(0)) {}

BoundedNvml::~BoundedNvml() {
  for (auto& worker : {worker_, event_worker_}) {
    if (!worker) continue;
    std::lock_guard lock(worker->mutex);
    worker->ended = true;
    worker->changed.notify_all();
  }
}

int BoundedNvml::stuck_calls() const { return stuck_calls_->load(); }

bool BoundedNvml::Run(std::shared_ptr<Worker>* slot, std::function<void()> call, std::chrono::milliseconds bound) {
  if (!*slot) {
    *slot = std::make_shared<Worker>();
    std::thread([worker = *slot, stuck_calls = stuck_calls_] {
      std::unique_lock lock(worker->mutex);
      while (true) {
        worker->changed.wait(lock, [&] { return worker->job || worker->ended; });
        if (!worker->job) return;
        auto job = std::move(worker->job);
        worker->job = nullptr;
        lock.unlock();
        job();
        job = nullptr;
        lock.lock();
        worker->done = true;
        worker->changed.notify_all();
        if (worker->ended) {
          // Its caller had abandoned it, and the call returned after all.
          stuck_calls->fetch_sub(1);
          return;
        }
      }
    }).detach();
  }
  Worker& worker = **slot;
  std::unique_lock lock(worker.mutex);
  worker.done = false;
  worker.job = std::move(call);
  worker.changed.notify_all();
  if (worker.changed.wait_for(lock, bound, [&] { return worker.done; })) return true;
  worker.ended = true;
  stuck_calls_->fetch_add(1);
  lock.unlock();
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
