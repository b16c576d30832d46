#include "common/http/worker_pool.h"

#include <unistd.h>

namespace sluice::http {

void SetNice(int more) {
  // Of a thread, on Linux. A lower priority is always permitted.
  if (more > 0) (void)!nice(more);
}

WorkerPool::WorkerPool(const HttpOptions& options, HttpDispatch& dispatch, std::function<void()> wake)
    : options_(options), dispatch_(dispatch), wake_(std::move(wake)) {}

WorkerPool::~WorkerPool() { Stop(); }

void WorkerPool::Start() {
  for (int i = 0; i < options_.workers; ++i) threads_.emplace_back([this] { Run(); });
}

void WorkerPool::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  has_work_.NotifyAll();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
}

bool WorkerPool::Submit(Job& job) {
  {
    const MutexLock lock(mutex_);
    if (queue_.size() >= options_.max_queued) return false;
    job.is_first ? queue_.push_front(std::move(job)) : queue_.push_back(std::move(job));
  }
  has_work_.NotifyOne();
  return true;
}

std::deque<FinishedJob> WorkerPool::TakeFinished(size_t& freed_bytes) {
  std::deque<FinishedJob> out;
  const MutexLock lock(mutex_);
  out.swap(finished_);
  freed_bytes = freed_bytes_;
  freed_bytes_ = 0;
  return out;
}

void WorkerPool::Run() {
  SetNice(options_.nice);
  while (true) {
    Job job{};
    {
      const MutexLock lock(mutex_);
      while (!is_stopping_ && queue_.empty()) has_work_.Wait(mutex_);
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    FinishedJob finished{job.id, {}, job.close};
    if (std::chrono::steady_clock::now() - job.queued_at > options_.queue_timeout) {
      finished.reply = ErrorReply(503, "the request waited too long", job.close);
      if (options_.on_refused) options_.on_refused("queue-timeout");
    } else {
      finished.reply = dispatch_.Answer(job.request, job.is_cut, job.close, finished.close);
    }
    {
      const MutexLock lock(mutex_);
      finished_.push_back(std::move(finished));
      freed_bytes_ += job.request.size();
    }
    wake_();
  }
}

}  // namespace sluice::http
