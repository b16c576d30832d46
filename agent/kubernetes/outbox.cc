#include "agent/kubernetes/outbox.h"

#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "sluice/names.h"

namespace sluice::agent {
namespace {

using kube::Json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kEventInterval{5};  // between two writes of one series
constexpr seconds kReaffirm{60};      // somebody may have taken the annotation away
constexpr size_t kMaxSeries = 500;    // of objects that are gone most of them; the oldest written ones go
constexpr int kEventTries = 5;
constexpr size_t kMaxMessage = 1000;  // of an Event; the API server's bound is 1024

std::string Now() {
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&t, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

kube::ClientOptions Options() {
  kube::ClientOptions options;
  options.user_agent = "sluice-agent";
  options.timeout = milliseconds(4000);  // the thread ends within the pod's grace
  options.attempts = 1;                  // Run() waits by itself
  return options;
}

}  // namespace

Outbox::Outbox(const kube::ClientConfig& config, std::string node, std::function<void(const std::string&)> trouble)
    : node_(std::move(node)),
      trouble_(std::move(trouble)),
      client_(config, Options()),
      backoff_(static_cast<uint64_t>(Clock::now().time_since_epoch().count())),
      thread_([this] { Run(); }) {}

Outbox::~Outbox() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Outbox::Annotate(std::string value) {
  {
    const std::lock_guard lock(mutex_);
    annotation_ = std::move(value);
  }
  wake_.notify_all();
}

void Outbox::Tell(const About& about, const Said& said) {
  {
    const std::lock_guard lock(mutex_);
    Series& series = events_[{about, said.reason}];
    series.last = said;
    if (series.last.message.size() > kMaxMessage) series.last.message.resize(kMaxMessage);
    series.last_time = Now();
    if (series.first_time.empty()) series.first_time = series.last_time;
    ++series.count;
    series.failed = 0;
    for (auto it = events_.begin(); events_.size() > kMaxSeries && it != events_.end();) {
      it = it->second.count == it->second.written ? events_.erase(it) : std::next(it);
    }
  }
  wake_.notify_all();
}

void Outbox::Remove(const std::string& ns, const std::string& name, const std::string& uid) {
  {
    const std::lock_guard lock(mutex_);
    removals_.push_back({ns, name, uid});
  }
  wake_.notify_all();
}

Outbox::Clock::time_point Outbox::NextDue() const {
  Clock::time_point due = annotated_ ? annotated_at_ + kReaffirm : Clock::time_point::max();
  if (!annotation_.empty() && annotated_ != annotation_) due = Clock::time_point{};
  if (!removals_.empty()) due = Clock::time_point{};
  for (const auto& [key, series] : events_) {
    if (series.count > series.written && series.failed < kEventTries) due = std::min(due, series.next);
  }
  return std::max(due, not_before_);
}

void Outbox::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const Clock::time_point due = NextDue();
    if (due > Clock::now()) {
      if (due == Clock::time_point::max()) {
        wake_.wait(lock);
      } else {
        wake_.wait_until(lock, due);
      }
      continue;
    }
    // A removal first: a container that is not held is worse than a late figure.
    if (!WriteRemoval(lock) && !WriteAnnotation(lock)) WriteEvent(lock);
  }
}

absl::Status Outbox::Unlocked(std::unique_lock<std::mutex>& lock, const std::function<absl::Status()>& call) {
  lock.unlock();
  absl::Status status = call();
  lock.lock();
  return status;
}

void Outbox::Failed(std::unique_lock<std::mutex>& lock, const std::string& what, const absl::Status& status) {
  not_before_ = Clock::now() + backoff_.Next();
  Report(lock, what + ": " + std::string(status.message()));
}

void Outbox::Report(std::unique_lock<std::mutex>& lock, const std::string& trouble) {
  if (trouble.empty()) backoff_.Reset();
  if (trouble == said_) return;
  said_ = trouble;
  lock.unlock();
  trouble_(trouble);
  lock.lock();
}

bool Outbox::WriteRemoval(std::unique_lock<std::mutex>& lock) {
  if (removals_.empty()) return false;
  const Removal r = removals_.front();
  const absl::Status status = Unlocked(lock, [&] {
    // The uid: a new pod of the same name is none of ours.
    return client_.Delete("/api/v1/namespaces/" + r.ns + "/pods/" + r.name,
                          {{"apiVersion", "v1"}, {"kind", "DeleteOptions"}, {"preconditions", {{"uid", r.uid}}}});
  });
  if (status.ok() || absl::IsNotFound(status) || absl::IsAborted(status)) {
    removals_.pop_front();
    Worked(lock);
  } else {
    Failed(lock, "pod " + r.ns + "/" + r.name + " cannot be removed", status);
  }
  return true;
}

bool Outbox::WriteAnnotation(std::unique_lock<std::mutex>& lock) {
  const bool fresh = annotated_ == annotation_ && Clock::now() - annotated_at_ < kReaffirm;
  if (annotation_.empty() || fresh) return false;
  const std::string value = annotation_;
  // nodes/status: the agent has no right to anything else of a node.
  const absl::Status status = Unlocked(lock, [&] {
    return client_
        .Patch("/api/v1/nodes/" + node_ + "/status",
               {{"metadata", {{"annotations", {{SLUICE_NODE_ANNOTATION_GPUS, value}}}}}}, kube::PatchType::kMerge,
               "sluice-agent")
        .status();
  });
  if (status.ok()) {
    annotated_ = value;
    annotated_at_ = Clock::now();
    Worked(lock);
  } else {
    Failed(lock, "the node's annotation " SLUICE_NODE_ANNOTATION_GPUS " cannot be written", status);
  }
  return true;
}

bool Outbox::WriteEvent(std::unique_lock<std::mutex>& lock) {
  const Clock::time_point now = Clock::now();
  auto it = events_.begin();
  while (it != events_.end() &&
         (it->second.count == it->second.written || it->second.failed >= kEventTries || it->second.next > now)) {
    ++it;
  }
  if (it == events_.end()) return false;
  const auto key = it->first;
  const About& about = key.first;
  const Series series = it->second;
  const std::string space = about.ns.empty() ? "default" : about.ns;  // of objects without a namespace
  const std::string folder = "/api/v1/namespaces/" + space + "/events";
  std::string name = series.name;
  const absl::Status status = Unlocked(lock, [&] {
    if (!name.empty()) {
      absl::Status patched =
          client_
              .Patch(folder + "/" + name,
                     {{"count", series.count}, {"lastTimestamp", series.last_time}, {"message", series.last.message}},
                     kube::PatchType::kMerge, "sluice-agent")
              .status();
      if (!absl::IsNotFound(patched)) return patched;  // else it was forgotten after an hour: a new one
    }
    char tail[24];
    std::snprintf(tail, sizeof(tail), ".%016llx",
                  static_cast<unsigned long long>(std::chrono::system_clock::now().time_since_epoch().count()));
    name = about.name + tail;
    Json object = {{"kind", about.kind}, {"apiVersion", "v1"}, {"name", about.name}, {"uid", about.uid}};
    if (!about.ns.empty()) object["namespace"] = about.ns;
    if (!about.container.empty()) object["fieldPath"] = "spec.containers{" + about.container + "}";
    return client_
        .Create(folder, {{"apiVersion", "v1"},
                         {"kind", "Event"},
                         {"metadata", {{"name", name}, {"namespace", space}}},
                         {"involvedObject", object},
                         {"reason", series.last.reason},
                         {"message", series.last.message},
                         {"type", series.last.warning ? "Warning" : "Normal"},
                         {"source", {{"component", "sluice-agent"}, {"host", node_}}},
                         {"firstTimestamp", series.first_time},
                         {"lastTimestamp", series.last_time},
                         {"count", series.count}})
        .status();
  });
  it = events_.find(key);  // Tell() may have come between
  if (it != events_.end()) {
    it->second.next = Clock::now() + kEventInterval;
    if (status.ok()) {
      it->second.written = series.count;
      it->second.name = name;
    } else if (!absl::IsUnavailable(status) || ++it->second.failed >= kEventTries) {
      it->second.failed = kEventTries;  // a namespace that is ending takes no Events: it will not change its mind
    }
  }
  if (status.ok()) {
    Worked(lock);
  } else {
    Failed(lock, "an Event on " + about.kind + " " + about.name + " cannot be written", status);
  }
  return true;
}

}  // namespace sluice::agent
