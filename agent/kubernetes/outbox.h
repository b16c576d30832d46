// What goes to the API server, from a thread of its own: the node's annotation, Events on pods, removal of pods.
// Nothing here waits for the API server but that thread; what it cannot write it tries again, the annotation and
// removals for ever, an Event a few times.
#ifndef SLUICE_AGENT_KUBERNETES_OUTBOX_H_
#define SLUICE_AGENT_KUBERNETES_OUTBOX_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "kube/client.h"

namespace sluice::agent {

// What an Event is about; `uid` of a node is its name, as kubelet has it.
struct About {
  std::string kind, ns, name, uid;
  std::string container;  // empty: the pod as a whole
  auto operator<=>(const About&) const = default;
};

struct Said {
  bool warning = false;
  std::string reason, message;
};

class Outbox {
 public:
  // `trouble`: what could not be written and why, once a change; empty: it works again. Called from the thread.
  Outbox(const kube::ClientConfig& config, std::string node, std::function<void(const std::string&)> trouble);
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Thread-safe, all of them.
  void Annotate(std::string value);
  // Equal reasons on one object become one Event with a count, written at most every five seconds.
  void Tell(const About& about, const Said& said);
  void Remove(const std::string& ns, const std::string& name, const std::string& uid);

 private:
  using Clock = std::chrono::steady_clock;
  struct Series {
    Said last;
    int count = 0, written = 0, failed = 0;
    std::string first_time, last_time, name;  // name: of the Event, once it is there
    Clock::time_point next{};
  };
  struct Removal {
    std::string ns, name, uid;
  };

  void Run();
  bool WriteAnnotation(std::unique_lock<std::mutex>& lock);
  bool WriteRemoval(std::unique_lock<std::mutex>& lock);
  bool WriteEvent(std::unique_lock<std::mutex>& lock);
  static absl::Status Unlocked(std::unique_lock<std::mutex>& lock, const std::function<absl::Status()>& call);
  void Worked(std::unique_lock<std::mutex>& lock) { Report(lock, ""); }
  void Failed(std::unique_lock<std::mutex>& lock, const std::string& what, const absl::Status& status);
  void Report(std::unique_lock<std::mutex>& lock, const std::string& trouble);
  Clock::time_point NextDue() const;

  const std::string node_;
  const std::function<void(const std::string&)> trouble_;
  kube::Client client_;
  kube::Backoff backoff_;

  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  bool stop_ = false;
  std::string annotation_;  // wanted; empty: not known yet
  std::optional<std::string> annotated_;
  Clock::time_point annotated_at_{}, not_before_{};
  std::map<std::pair<About, std::string>, Series> events_;  // by object and reason
  std::deque<Removal> removals_;
  std::string said_;
  std::thread thread_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_KUBERNETES_OUTBOX_H_
