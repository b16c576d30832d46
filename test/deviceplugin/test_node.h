// A node with kubelet and the built plugin, for the contract suite. There is one suite and two kubelets: the one in the
// test's process, and, with SLUICE_CONTRACT_NODE=cluster, the local cluster's (contract_cluster sets it).
#ifndef SLUICE_TEST_DEVICEPLUGIN_TEST_NODE_H_
#define SLUICE_TEST_DEVICEPLUGIN_TEST_NODE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "test/deviceplugin/fake_kubelet.h"
#include "test/deviceplugin/plugin_process.h"

namespace sluice::deviceplugin {

struct ContainerOrder {
  std::string name;
  int units = 0;
  bool init = false;
  bool sidecar = false;  // an init container that keeps running
};

struct AdmittedPod {
  std::string refusal;  // kubelet's message about the pod; empty: it runs
  std::vector<Admitted> containers;
};

class TestNode {
 public:
  static std::unique_ptr<TestNode> Make(int cards, const std::string& yaml);
  virtual ~TestNode() = default;

  // Waits for kubelet's counts: healthy units, used or not, and unhealthy ones.
  virtual bool AwaitUnits(size_t healthy, size_t unhealthy = 0) = 0;
  virtual void RestartKubelet() = 0;
  // Admission and first start.
  virtual AdmittedPod Admit(const std::string& pod, const std::vector<ContainerOrder>& containers) = 0;
  // The pod's last container ends and is restarted. Empty, or kubelet's message.
  virtual std::string Restart(const std::string& pod) = 0;
  virtual void Delete(const std::string& pod) = 0;
  // Starts another device plugin with these devices; it stops with the node.
  virtual void OfferFromOtherPlugin(const std::string& resource, const std::vector<std::string>& ids) = 0;

  AdmittedPod Admit(const std::string& pod, int units) { return Admit(pod, {{"main", units}}); }
  bool Await(const std::function<bool()>& predicate);
  std::vector<std::string> Allocations() const;
  int Registrations() const;  // registrations that kubelet accepted, over all runs of the plugin
  // The end of the plugin's log, for failure messages.
  std::string Log() const;

  TempDir dir;
  std::unique_ptr<PluginProcess> plugin;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_TEST_DEVICEPLUGIN_TEST_NODE_H_
