// Writes to the API server on a thread of its own: annotations of the node and of pods, Events, deletions of pods. Only
// that thread waits for the API server. A failed write is tried again: annotations and deletions for ever, an Event a
// few times. Thread-safe.
#ifndef SLUICE_AGENT_KUBERNETES_OUTBOX_H_
#define SLUICE_AGENT_KUBERNETES_OUTBOX_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "kube/client.h"

namespace sluice::agent {

// The object of an Event. `uid` of a node is its name, as kubelet has it.
struct Subject {
  std::string kind, ns, name, uid;
  std::string container;  // empty: the pod as a whole
  auto operator<=>(const Subject&) const = default;
};

struct EventText {
  bool warning = false;
  std::string reason, message;
};

class Outbox {
 public:
  // `trouble`: the write that fails and its reason, once a change; empty: writes work again. Called on the thread.
  Outbox(const kube::ClientConfig& config, std::string node, std::function<void(const std::string&)> trouble);
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  void Annotate(std::string value) SLUICE_EXCLUDES(mutex_);
  // The annotation sluice.dev/granted of a pod. An equal value is written again after a minute at the earliest.
  void AnnotatePod(const std::string& ns, const std::string& name, const std::string& uid, std::string value)
      SLUICE_EXCLUDES(mutex_);
  // Equal reasons on one object become one Event with a count, written at most every five seconds.
  void WriteEvent(const Subject& subject, const EventText& text) SLUICE_EXCLUDES(mutex_);
  void DeletePod(const std::string& ns, const std::string& name, const std::string& uid) SLUICE_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Series {
    EventText last;
    int count = 0, written = 0, failed = 0;
    std::string first_time, last_time, name;  // name: of the Event, once it is written
    Clock::time_point next{};
  };
  struct Deletion {
    std::string ns, name, uid;
  };
  struct Answer {
    std::string ns, name, value;
    bool due = true;
    Clock::time_point next{};  // not earlier
  };

  void Run() SLUICE_EXCLUDES(mutex_);
  // Each writes one item if one is due, without the lock meanwhile. False: nothing was due.
  bool WriteNextDeletion() SLUICE_REQUIRES(mutex_);
  bool WriteAnnotation() SLUICE_REQUIRES(mutex_);
  bool WriteNextAnswer() SLUICE_REQUIRES(mutex_);
  bool WriteNextEvent() SLUICE_REQUIRES(mutex_);
  absl::Status PutEvent(const Subject& subject, const Series& series, std::string* name);
  void Succeeded() SLUICE_REQUIRES(mutex_) { Report(""); }
  void Failed(const std::string& what, const absl::Status& status) SLUICE_REQUIRES(mutex_);
  void Report(const std::string& trouble) SLUICE_REQUIRES(mutex_);
  Clock::time_point NextDue() const SLUICE_REQUIRES(mutex_);

  const std::string node_;
  const std::function<void(const std::string&)> trouble_;
  kube::Client client_;    // used by the thread only
  kube::Backoff backoff_;  // the same

  Mutex mutex_;
  Condition wake_;
  bool stop_ SLUICE_GUARDED_BY(mutex_) = false;
  std::string annotation_ SLUICE_GUARDED_BY(mutex_);  // to be written; empty: not known yet
  std::optional<std::string> annotated_ SLUICE_GUARDED_BY(mutex_);
  Clock::time_point annotated_at_ SLUICE_GUARDED_BY(mutex_){}, not_before_ SLUICE_GUARDED_BY(mutex_){};
  std::map<std::pair<Subject, std::string>, Series> events_ SLUICE_GUARDED_BY(mutex_);  // by object and reason
  std::deque<Deletion> deletions_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::string, Answer> answers_ SLUICE_GUARDED_BY(mutex_);  // by the pod's uid
  std::string reported_ SLUICE_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses the members above
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_KUBERNETES_OUTBOX_H_
