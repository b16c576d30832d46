// The threads that answer whole requests. Internal to common/http.
#ifndef SLUICE_COMMON_HTTP_WORKER_POOL_H_
#define SLUICE_COMMON_HTTP_WORKER_POOL_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/http/http_dispatch.h"
#include "common/http/http_server.h"
#include "common/mutex.h"

namespace sluice::http {

// A whole request of connection `id`.
struct Job {
  uint64_t id;
  std::string request;
  bool close;  // the client's last request
  std::chrono::steady_clock::time_point queued_at;
  bool is_first;  // before those that wait already
  bool is_cut;    // without the end of its body
};

// The whole reply to a job.
struct FinishedJob {
  uint64_t id;
  std::string reply;
  bool close;
};

// Adds to the calling thread's nice value. 0 changes nothing.
void SetNice(int more);

// Thread-safe.
class WorkerPool {
 public:
  // Uses workers, max_queued, queue_timeout and on_refused of `options`. Workers call `wake` after each job.
  WorkerPool(const HttpOptions& options, HttpDispatch& dispatch, std::function<void()> wake);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Start();
  // Answers the queued jobs, then ends the threads.
  void Stop();

  // False: the queue is full, and `job` is unchanged.
  bool Submit(Job& job);
  // The jobs that were finished since the last call. `freed_bytes`: the size of their requests.
  std::deque<FinishedJob> TakeFinished(size_t& freed_bytes);

 private:
  void Run();

  const HttpOptions& options_;
  HttpDispatch& dispatch_;
  const std::function<void()> wake_;
  std::vector<std::thread> threads_;

  Mutex mutex_;
  Condition has_work_;
  std::deque<Job> queue_ SLUICE_GUARDED_BY(mutex_);
  std::deque<FinishedJob> finished_ SLUICE_GUARDED_BY(mutex_);
  size_t freed_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool is_stopping_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::http

#endif  // SLUICE_COMMON_HTTP_WORKER_POOL_H_
