// The agent's side towards Kubernetes. It watches this node's pods, which gives allocations their names and
// annotations. It writes Events and the node's annotation, deletes pods, and writes the extender's reservations for the
// device plugin. Used by the loop's thread; the watch and the writes have threads of their own.
#ifndef SLUICE_AGENT_KUBERNETES_KUBERNETES_H_
#define SLUICE_AGENT_KUBERNETES_KUBERNETES_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/attestation.h"
#include "agent/config.h"
#include "agent/event_loop.h"
#include "agent/kubernetes/facts.h"
#include "agent/kubernetes/outbox.h"
#include "agent/kubernetes/resize.h"
#include "agent/node.h"
#include "kube/watcher.h"

namespace sluice::agent {

class Kubernetes {
 public:
  // `configuration`: the agent's own; it may change later.
  Kubernetes(EventLoop* loop, Node* node, std::string node_name, std::string run_dir, const Config* configuration);
  ~Kubernetes();
  Kubernetes(const Kubernetes&) = delete;
  Kubernetes& operator=(const Kubernetes&) = delete;

  // False with a sentence: no API server is configured. One that does not answer yet is tried again.
  bool Start(std::string* error);
  // The API server, once started.
  const kube::ClientConfig& api() const { return api_; }
  // A pod of this node, whether or not it asks for units. Empty: not known.
  Attestation::PodName NameOf(const std::string& uid) const;
  // Writes an Event on the pod that the node's event is about, if any.
  void OnEvent(const Event& event);

 private:
  struct Holder {
    std::string pod_uid, container;
  };

  kube::WatchHandler Handler();
  void Replaced(Pods pods);  // all of the node
  void Changed(bool gone, PodRecord pod);
  void ReportState(const char* about, const std::string& text);
  void ReconcilePeriodically();
  void ReconcileSoon();  // in a moment: causes come in batches
  void Reconcile();
  void ReadCheckpoint();
  void ReadPlugin();
  void PublishSizes(const SizeGrants& before);
  void NameAllocations();
  void WriteReservations(const std::map<std::string, CardUse>& uses);
  void Annotate();
  void AnnotateAgain();
  void WriteEvent(const std::string& allocation, const EventText& text);
  void DeletePod(const Subject& pod, const std::string& why);
  Subject SubjectOf(const PodRecord& pod, const std::string& container) const;

  EventLoop* const loop_;
  Node* const node_;
  const std::string name_, run_dir_;
  const Config* const config_;
  // Work posted by other threads and by timers does nothing after this is destroyed.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  kube::ClientConfig api_;
  Pods pods_;                                           // those that ask for units
  std::map<std::string, Attestation::PodName> others_;  // the node's other pods, by uid
  bool listed_ = false;                                 // the first list of pods has arrived
  GivenOut given_;
  SizeGrants grants_;
  std::map<std::string, Holder> holders_;  // by allocation
  std::map<std::string, PodInfo> named_;   // as the node has it, by allocation
  PluginCards plugin_;
  std::string offer_problem_;
  std::string checkpoint_stamp_, plugin_stamp_, reservations_, annotation_;
  std::map<std::string, std::string> reported_states_, refused_;  // reported already: by subject, by the pod's uid
  std::set<std::string> deleted_;                                 // the pods' uids
  std::vector<std::pair<std::string, EventText>> unnamed_;        // of allocations whose pod is not known yet
  int inotify_ = -1;
  uint64_t last_order_ = 0;  // PodRecord::order
  bool soon_ = false;
  bool spaced_ = false;   // the annotation ends in a space
  uint64_t changes_ = 0;  // that concern the extender

  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<kube::Watcher> watcher_;  // last: it ends first
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_KUBERNETES_KUBERNETES_H_
