#include "scheduler/extender/request_log.h"

#include <algorithm>

#include "scheduler/placement/chains.h"

namespace sluice::scheduler {
namespace {

constexpr double kMaxCountedRequests = 4000;  // all counts are halved when their sum reaches this
constexpr std::size_t kMaxShapes = 48;        // shapes per mix; more cost time and change no decision
constexpr std::int64_t kCpuStepMilli = 500;   // requests that differ by less count as equal
constexpr std::int64_t kMemoryStepMib = 1024;

std::int64_t Rounded(std::int64_t value, std::int64_t step) { return (value + step / 2) / step * step; }

}  // namespace

RequestLog::RequestLog() {
  // The usual fractions, until real requests have been seen. They fade like the rest.
  for (int units : {25, 50, 100}) counts_[{.cards = 1, .units = units}] = 1;
  total_ = 3;
}

void RequestLog::Add(const Request& request) {
  Request shape = request;
  shape.cpu_milli = Rounded(shape.cpu_milli, kCpuStepMilli);
  shape.memory_mib = Rounded(shape.memory_mib, kMemoryStepMib);
  counts_[shape] += 1;
  total_ += 1;
  seen_ += 1;
  if (total_ < kMaxCountedRequests) return;
  total_ = 0;
  for (auto entry = counts_.begin(); entry != counts_.end();) {
    entry->second /= 2;
    if (entry->second < 0.3) {
      entry = counts_.erase(entry);
    } else {
      total_ += entry->second;
      ++entry;
    }
  }
}

RequestMix RequestLog::Mix() const {
  RequestMix mix;
  for (const auto& [request, count] : counts_) mix.push_back({request, count});
  std::stable_sort(mix.begin(), mix.end(), [](const auto& a, const auto& b) { return a.weight > b.weight; });
  if (mix.size() > kMaxShapes) mix.resize(kMaxShapes);
  double sum = 0;
  for (const auto& entry : mix) sum += entry.weight;
  for (auto& entry : mix) entry.weight /= sum;
  return mix;
}

absl::StatusOr<std::unique_ptr<PolicyRefresher>> PolicyRefresher::Make(const std::string& name) {
  std::unique_ptr<PolicyRefresher> made(new PolicyRefresher);
  auto policy = MakePolicy(name, made->mix(), kUnitsPerCard);
  if (!policy.ok()) return policy.status();
  {
    const MutexLock lock(made->mutex_);
    made->name_ = name;
    made->policy_ = *std::move(policy);
  }
  made->thread_ = std::thread([self = made.get()] { self->Run(); });
  return made;
}

PolicyRefresher::~PolicyRefresher() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void PolicyRefresher::RecordRequest(const Request& request) {
  const MutexLock lock(mutex_);
  log_.Add(request);
  if (RefreshIsDue()) wake_.NotifyAll();
}

std::shared_ptr<const PlacementPolicy> PolicyRefresher::policy() const {
  const MutexLock lock(mutex_);
  return policy_;
}

RequestMix PolicyRefresher::mix() const {
  const MutexLock lock(mutex_);
  return log_.Mix();
}

absl::Status PolicyRefresher::SetName(const std::string& name) {
  const auto& known = PolicyNames();
  if (std::find(known.begin(), known.end(), name) == known.end()) return MakePolicy(name, {}, kUnitsPerCard).status();
  const MutexLock lock(mutex_);
  renamed_ = renamed_ || name != name_;
  name_ = name;
  wake_.NotifyAll();
  return absl::OkStatus();
}

// When the mix has grown by a quarter.
bool PolicyRefresher::RefreshIsDue() const { return log_.seen() >= seen_at_refresh_ * 1.25 + 3; }

void PolicyRefresher::Run() {
  const MutexLock lock(mutex_);
  while (true) {
    while (!stop_ && !renamed_ && !RefreshIsDue()) wake_.Wait(mutex_);
    if (stop_) return;
    renamed_ = false;
    seen_at_refresh_ = log_.seen();
    const std::string name = name_;
    const RequestMix mix = log_.Mix();
    absl::StatusOr<std::unique_ptr<PlacementPolicy>> policy;
    {
      const MutexUnlock unlock(mutex_);  // learning takes some tens of milliseconds
      policy = MakePolicy(name, mix, kUnitsPerCard);
    }
    if (policy.ok()) policy_ = *std::move(policy);
  }
}

}  // namespace sluice::scheduler
