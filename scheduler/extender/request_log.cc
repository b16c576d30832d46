#include "scheduler/extender/request_log.h"

#include <algorithm>

#include "scheduler/placement/chains.h"

namespace sluice::scheduler {
namespace {

constexpr double kFade = 4000;          // requests in the log before all are halved
constexpr std::size_t kShapes = 48;     // that a policy looks at: more cost time and change nothing
constexpr std::int64_t kCpuStep = 500;  // requests that differ by less count as one
constexpr std::int64_t kMemoryStep = 1024;

std::int64_t Rounded(std::int64_t value, std::int64_t step) { return (value + step / 2) / step * step; }

}  // namespace

RequestLog::RequestLog() {
  // Before anything was seen: the usual fractions. They fade like the rest.
  for (int units : {25, 50, 100}) counts_[{.cards = 1, .units = units}] = 1;
  total_ = 3;
}

void RequestLog::Add(const Request& request) {
  Request shape = request;
  shape.cpu_milli = Rounded(shape.cpu_milli, kCpuStep);
  shape.memory_mib = Rounded(shape.memory_mib, kMemoryStep);
  counts_[shape] += 1;
  total_ += 1;
  seen_ += 1;
  if (total_ < kFade) return;
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
  if (mix.size() > kShapes) mix.resize(kShapes);
  double sum = 0;
  for (const auto& entry : mix) sum += entry.weight;
  for (auto& entry : mix) entry.weight /= sum;
  return mix;
}

absl::StatusOr<std::unique_ptr<PolicyMaker>> PolicyMaker::Make(const std::string& name) {
  std::unique_ptr<PolicyMaker> maker(new PolicyMaker);
  auto policy = MakePolicy(name, maker->log_.Mix(), kUnitsPerCard);
  if (!policy.ok()) return policy.status();
  maker->name_ = name;
  maker->policy_ = *std::move(policy);
  maker->thread_ = std::thread([self = maker.get()] { self->Run(); });
  return maker;
}

PolicyMaker::~PolicyMaker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void PolicyMaker::Saw(const Request& request) {
  const std::lock_guard lock(mutex_);
  log_.Add(request);
  if (log_.seen() >= made_at_ * 1.25 + 3) wake_.notify_all();
}

std::shared_ptr<const Policy> PolicyMaker::policy() const {
  const std::lock_guard lock(mutex_);
  return policy_;
}

RequestMix PolicyMaker::mix() const {
  const std::lock_guard lock(mutex_);
  return log_.Mix();
}

absl::Status PolicyMaker::SetName(const std::string& name) {
  const auto& known = PolicyNames();
  if (std::find(known.begin(), known.end(), name) == known.end()) return MakePolicy(name, {}, kUnitsPerCard).status();
  const std::lock_guard lock(mutex_);
  renamed_ = renamed_ || name != name_;
  name_ = name;
  wake_.notify_all();
  return absl::OkStatus();
}

void PolicyMaker::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || renamed_ || log_.seen() >= made_at_ * 1.25 + 3; });
    if (stop_) return;
    renamed_ = false;
    made_at_ = log_.seen();
    const std::string name = name_;
    const RequestMix mix = log_.Mix();
    lock.unlock();
    auto policy = MakePolicy(name, mix, kUnitsPerCard);
    lock.lock();
    if (policy.ok()) policy_ = *std::move(policy);
  }
}

}  // namespace sluice::scheduler
