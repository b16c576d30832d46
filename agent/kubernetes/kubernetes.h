// The agent's side towards Kubernetes: this node's pods are watched, so that allocations have names and annotations are
// followed; Events, the node's annotation and removals go out; the device plugin is told what the extender reserved.
// Lives on the agent's event loop; the watch and the writes have threads of their own.
#ifndef SLUICE_AGENT_KUBERNETES_KUBERNETES_H_
#define SLUICE_AGENT_KUBERNETES_KUBERNETES_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/config.h"
#include "agent/event_loop.h"
#include "agent/kubernetes/facts.h"
#include "agent/kubernetes/outbox.h"
#include "agent/node.h"
#include "kube/watcher.h"

namespace sluice::agent {

class Kubernetes {
 public:
  // Loop's thread, as all else here. `configuration`: the agent's own, as it is now.
  Kubernetes(EventLoop* loop, Node* node, std::string node_name, std::string run_dir, const Config* configuration);
  ~Kubernetes();
  Kubernetes(const Kubernetes&) = delete;
  Kubernetes& operator=(const Kubernetes&) = delete;

  // False with a sentence: there is no API server to speak to. One that does not answer yet is waited for.
  bool Start(std::string* error);
  // Something happened on the node: what concerns a pod becomes an Event on it.
  void Saw(const Event& event);

 private:
  struct Holder {
    std::string pod_uid, container;
  };

  kube::WatchHandler Handler();
  void Replaced(Pods pods);
  void Changed(bool gone, PodRecord pod);
  void Trouble(const char* about, const std::string& text);
  void Look();  // Reconcile(), every second
  void Soon();  // Reconcile() in a moment: several causes come at once
  void Reconcile();
  void ReadCheckpoint();
  void ReadPlugin();
  void NameAllocations();
  void WriteReservations();
  void Annotate();
  void AnnotateAgain();
  void Speak(const std::string& allocation, const Said& said);
  void Evict(const std::string& allocation);
  About AboutPod(const PodRecord& pod, const std::string& container) const;

  EventLoop* const loop_;
  Node* const node_;
  const std::string name_, run_dir_;
  const Config* const config_;
  // Work that is posted here by other threads, or by timers, dies with this.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  Pods pods_;            // those that ask for units
  bool listed_ = false;  // the first list of pods is here
  GivenOut given_;
  std::map<std::string, Holder> holders_;  // by allocation
  PluginCards plugin_;
  std::string checkpoint_stamp_, plugin_stamp_, reservations_, annotation_;
  std::map<std::string, std::string> troubles_, refused_;  // said already: by subject, by pod's uid
  std::set<std::string> evicted_;                          // pods' uids
  std::vector<std::pair<std::string, Said>> unnamed_;      // of allocations whose pod is not known yet
  int inotify_ = -1;
  bool soon_ = false;
  bool spaced_ = false;   // the annotation ends in a space
  uint64_t changes_ = 0;  // of what the extender counts with

  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<kube::Watcher> watcher_;  // last: ends first
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_KUBERNETES_KUBERNETES_H_
