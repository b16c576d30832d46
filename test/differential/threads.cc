// The threads of a program. They take turns: a step ends before the next begins, on whichever thread.
#include <dlfcn.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <memory>
#include <thread>

#include "machine.h"
#include "simgpu/simgpu.h"

// On the simulated GPU the engine's short pauses while it waits pass in virtual time.
extern "C" int nanosleep(const timespec* time, timespec* left) {
  static auto* const advance =
      reinterpret_cast<decltype(&simgpu_advance_host)>(dlsym(RTLD_DEFAULT, "simgpu_advance_host"));
  if (advance == nullptr || time->tv_sec != 0 || time->tv_nsec > 1'000'000)
    return static_cast<int>(syscall(SYS_nanosleep, time, left));
  advance(static_cast<uint64_t>(time->tv_nsec));
  return 0;
}

namespace differential {
namespace {

class Worker {
 public:
  Worker() {
    sem_init(&begin_, 0, 0);
    sem_init(&done_, 0, 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Worker() {
    step_ = nullptr;
    sem_post(&begin_);
    thread_.join();
    sem_destroy(&begin_);
    sem_destroy(&done_);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  CUresult Do(const std::function<CUresult()>& step) {
    step_ = &step;
    sem_post(&begin_);
    Wait(&done_);
    return result_;
  }

 private:
  static void Wait(sem_t* semaphore) {
    while (sem_wait(semaphore) != 0) continue;  // a signal
  }
  void Run() {
    for (;;) {
      Wait(&begin_);
      if (step_ == nullptr) return;
      result_ = (*step_)();
      sem_post(&done_);
    }
  }

  sem_t begin_, done_;
  const std::function<CUresult()>* step_ = nullptr;
  CUresult result_ = CUDA_SUCCESS;
  std::thread thread_;
};

std::unique_ptr<Worker> g_workers[kMaxThreads];

// On the simulated GPU each thread has a clock. A turn begins after the end of the turn before.
CUresult InTurn(const std::function<CUresult()>& step) {
  static auto* const now = reinterpret_cast<decltype(&simgpu_now_ns)>(dlsym(RTLD_DEFAULT, "simgpu_now_ns"));
  static auto* const advance =
      reinterpret_cast<decltype(&simgpu_advance_host)>(dlsym(RTLD_DEFAULT, "simgpu_advance_host"));
  if (now == nullptr) return step();
  static uint64_t last = 0;
  if (now() < last) advance(last - now());
  const CUresult result = step();
  last = now();
  return result;
}

}  // namespace

CUresult On(int thread, const std::function<CUresult()>& step) {
  const auto turn = [&step] { return InTurn(step); };
  if (thread == 0) return turn();
  auto& worker = g_workers[thread];
  if (worker == nullptr) worker = std::make_unique<Worker>();
  return worker->Do(turn);
}
CUresult Beside(const std::vector<std::function<CUresult()>>& steps) {
  std::vector<std::thread> callers;
  std::vector<CUresult> results(steps.size(), CUDA_SUCCESS);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i] == nullptr) continue;
    auto& worker = g_workers[i];
    if (worker == nullptr) worker = std::make_unique<Worker>();
    callers.emplace_back([&, i] { results[i] = g_workers[i]->Do(steps[i]); });
  }
  for (auto& caller : callers) caller.join();
  // The clocks of the simulated GPU's threads: the next turn begins after the last of these.
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i] != nullptr) On(static_cast<int>(i), [] { return CUDA_SUCCESS; });
  }
  for (const CUresult result : results) {
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
CUresult EndThread(int thread) {
  g_workers[thread].reset();
  return CUDA_SUCCESS;
}
void EndThreads() {
  for (auto& worker : g_workers) worker.reset();
}

}  // namespace differential
