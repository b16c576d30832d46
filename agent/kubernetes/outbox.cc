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
constexpr seconds kReaffirm{60};      // the annotation is written again: it may have been removed
constexpr seconds kAnswerAgain{60};   // a pod's annotation that was refused, or that does not appear
constexpr size_t kMaxAnswers = 1000;  // written ones go first
constexpr size_t kMaxSeries = 500;    // written series go first: most of their objects are gone
constexpr int kMaxEventAttempts = 5;
constexpr size_t kMaxMessageBytes = 1000;  // of an Event; the API server's bound is 1024

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
  options.timeout = milliseconds(4000);  // the thread ends within the pod's grace period
  options.attempts = 1;                  // Run() tries again
  return options;
}

}  // namespace

Outbox::Outbox(const kube::ClientConfig& config, std::string node, std::function<void(const std::string&)> trouble)
    : node_(std::move(node)), trouble_(std::move(trouble)), client_(config, Options()), thread_([this] { Run(); }) {}

Outbox::~Outbox() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

void Outbox::Annotate(std::string value) {
  {
    const MutexLock lock(mutex_);
    annotation_ = std::move(value);
  }
  wake_.NotifyAll();
}

void Outbox::AnnotatePod(const std::string& ns, const std::string& name, const std::string& uid, std::string value) {
  {
    const MutexLock lock(mutex_);
    Answer& answer = answers_[uid];
    if (answer.value == value && (answer.due || Clock::now() < answer.next)) return;
    answer = {ns, name, std::move(value)};
    for (auto it = answers_.begin(); answers_.size() > kMaxAnswers && it != answers_.end();) {
      it = it->second.due ? std::next(it) : answers_.erase(it);
    }
  }
  wake_.NotifyAll();
}

void Outbox::WriteEvent(const Subject& subject, const EventText& text) {
  {
    const MutexLock lock(mutex_);
    Series& series = events_[{subject, text.reason}];
    series.last = text;
    if (series.last.message.size() > kMaxMessageBytes) series.last.message.resize(kMaxMessageBytes);
    series.last_time = Now();
    if (series.first_time.empty()) series.first_time = series.last_time;
    ++series.count;
    series.failed = 0;
    for (auto it = events_.begin(); events_.size() > kMaxSeries && it != events_.end();) {
      it = it->second.count == it->second.written ? events_.erase(it) : std::next(it);
    }
  }
  wake_.NotifyAll();
}

void Outbox::DeletePod(const std::string& ns, const std::string& name, const std::string& uid) {
  {
    const MutexLock lock(mutex_);
    deletions_.push_back({ns, name, uid});
  }
  wake_.NotifyAll();
}

Outbox::Clock::time_point Outbox::NextDue() const {
  Clock::time_point due = annotated_ ? annotated_at_ + kReaffirm : Clock::time_point::max();
  if (!annotation_.empty() && annotated_ != annotation_) due = Clock::time_point{};
  if (!deletions_.empty()) due = Clock::time_point{};
  for (const auto& [uid, answer] : answers_) {
    if (answer.due) due = std::min(due, answer.next);
  }
  for (const auto& [key, series] : events_) {
    if (series.count > series.written && series.failed < kMaxEventAttempts) due = std::min(due, series.next);
  }
  return std::max(due, not_before_);
}

void Outbox::Run() {
  const MutexLock lock(mutex_);
  while (!stop_) {
    const Clock::time_point due = NextDue();
    if (due > Clock::now()) {
      if (due == Clock::time_point::max()) {
        wake_.Wait(mutex_);
      } else {
        wake_.WaitUntil(mutex_, due);
      }
      continue;
    }
    // Deletions first: a container without limits does more harm than a late value.
    if (!WriteNextDeletion() && !WriteAnnotation() && !WriteNextAnswer()) WriteNextEvent();
  }
}

void Outbox::Failed(const std::string& what, const absl::Status& status) {
  not_before_ = Clock::now() + backoff_.Next();
  Report(what + ": " + std::string(status.message()));
}

void Outbox::Report(const std::string& trouble) {
  if (trouble.empty()) backoff_.Reset();
  if (trouble == reported_) return;
  reported_ = trouble;
  const MutexUnlock unlocked(mutex_);
  trouble_(trouble);
}

bool Outbox::WriteNextDeletion() {
  if (deletions_.empty()) return false;
  const Deletion d = deletions_.front();
  absl::Status status;
  {
    const MutexUnlock unlocked(mutex_);
    // The uid keeps a new pod of the same name.
    status = client_.Delete("/api/v1/namespaces/" + d.ns + "/pods/" + d.name,
                            {{"apiVersion", "v1"}, {"kind", "DeleteOptions"}, {"preconditions", {{"uid", d.uid}}}});
  }
  if (status.ok() || absl::IsNotFound(status) || absl::IsAborted(status)) {
    deletions_.pop_front();
    Succeeded();
  } else {
    Failed("pod " + d.ns + "/" + d.name + " cannot be deleted", status);
  }
  return true;
}

bool Outbox::WriteAnnotation() {
  const bool fresh = annotated_ == annotation_ && Clock::now() - annotated_at_ < kReaffirm;
  if (annotation_.empty() || fresh) return false;
  const std::string value = annotation_;
  absl::Status status;
  {
    const MutexUnlock unlocked(mutex_);
    // nodes/status: the agent has no right to other parts of a node.
    status = client_
                 .Patch("/api/v1/nodes/" + node_ + "/status",
                        {{"metadata", {{"annotations", {{SLUICE_NODE_ANNOTATION_GPUS, value}}}}}},
                        kube::PatchType::kMerge, "sluice-agent")
                 .status();
  }
  if (status.ok()) {
    annotated_ = value;
    annotated_at_ = Clock::now();
    Succeeded();
  } else {
    Failed("the node's annotation " SLUICE_NODE_ANNOTATION_GPUS " cannot be written", status);
  }
  return true;
}

bool Outbox::WriteNextAnswer() {
  const Clock::time_point now = Clock::now();
  auto it = answers_.begin();
  while (it != answers_.end() && (!it->second.due || it->second.next > now)) ++it;
  if (it == answers_.end()) return false;
  const std::string uid = it->first;
  const Answer answer = it->second;
  absl::Status status;
  {
    const MutexUnlock unlocked(mutex_);
    // pods/status: the agent has no right to other parts of a pod. The uid keeps a new pod of the same name as it is.
    status =
        client_
            .Patch(
                "/api/v1/namespaces/" + answer.ns + "/pods/" + answer.name + "/status",
                {{"metadata", {{"uid", uid}, {"annotations", {{SLUICE_DOMAIN "/" SLUICE_KEY_GRANTED, answer.value}}}}}},
                kube::PatchType::kMerge, "sluice-agent")
            .status();
  }
  it = answers_.find(uid);
  if (absl::IsUnavailable(status)) {
    Failed("pod " + answer.ns + "/" + answer.name + " cannot be annotated", status);
    return true;
  }
  // A refusal concerns this pod alone and must not delay other writes.
  const bool gone = absl::IsNotFound(status) || absl::IsAborted(status);
  if (it != answers_.end() && it->second.value == answer.value) {
    it->second.due = !status.ok() && !gone;
    it->second.next = Clock::now() + kAnswerAgain;
  }
  Report(status.ok() || gone
             ? ""
             : "pod " + answer.ns + "/" + answer.name + " cannot be annotated: " + std::string(status.message()));
  return true;
}

absl::Status Outbox::PutEvent(const Subject& subject, const Series& series, std::string* name) {
  const std::string space = subject.ns.empty() ? "default" : subject.ns;  // of objects without a namespace
  const std::string folder = "/api/v1/namespaces/" + space + "/events";
  if (!name->empty()) {
    absl::Status patched =
        client_
            .Patch(folder + "/" + *name,
                   {{"count", series.count}, {"lastTimestamp", series.last_time}, {"message", series.last.message}},
                   kube::PatchType::kMerge, "sluice-agent")
            .status();
    if (!absl::IsNotFound(patched)) return patched;  // not found: the API server drops Events after an hour
  }
  char tail[24];
  std::snprintf(tail, sizeof(tail), ".%016llx",
                static_cast<unsigned long long>(std::chrono::system_clock::now().time_since_epoch().count()));
  *name = subject.name + tail;
  Json object = {{"kind", subject.kind}, {"apiVersion", "v1"}, {"name", subject.name}, {"uid", subject.uid}};
  if (!subject.ns.empty()) object["namespace"] = subject.ns;
  if (!subject.container.empty()) object["fieldPath"] = "spec.containers{" + subject.container + "}";
  return client_
      .Create(folder, {{"apiVersion", "v1"},
                       {"kind", "Event"},
                       {"metadata", {{"name", *name}, {"namespace", space}}},
                       {"involvedObject", object},
                       {"reason", series.last.reason},
                       {"message", series.last.message},
                       {"type", series.last.warning ? "Warning" : "Normal"},
                       {"source", {{"component", "sluice-agent"}, {"host", node_}}},
                       {"firstTimestamp", series.first_time},
                       {"lastTimestamp", series.last_time},
                       {"count", series.count}})
      .status();
}

bool Outbox::WriteNextEvent() {
  const Clock::time_point now = Clock::now();
  auto it = events_.begin();
  while (it != events_.end() &&
         (it->second.count == it->second.written || it->second.failed >= kMaxEventAttempts || it->second.next > now)) {
    ++it;
  }
  if (it == events_.end()) return false;
  const auto key = it->first;
  const Series series = it->second;
  std::string name = series.name;
  absl::Status status;
  {
    const MutexUnlock unlocked(mutex_);
    status = PutEvent(key.first, series, &name);
  }
  it = events_.find(key);  // WriteEvent() may have changed the map meanwhile
  if (it != events_.end()) {
    it->second.next = Clock::now() + kEventInterval;
    if (status.ok()) {
      it->second.written = series.count;
      it->second.name = name;
    } else if (!absl::IsUnavailable(status) || ++it->second.failed >= kMaxEventAttempts) {
      it->second.failed = kMaxEventAttempts;  // for good: a namespace that is ending takes no Events
    }
  }
  if (status.ok()) {
    Succeeded();
  } else {
    Failed("an Event on " + key.first.kind + " " + key.first.name + " cannot be written", status);
  }
  return true;
}

}  // namespace sluice::agent
