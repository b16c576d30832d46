// A node with kubelet and the built plugin, as the contract suite sees it. The suite is one; the kubelet is the one in
// the test's process, or, with SLUICE_CONTRACT_NODE=cluster, that of the local cluster (contract_cluster starts it so).
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
  bool sidecar = false;  // an init container that stays
};

struct AdmittedPod {
  std::string refusal;  // what kubelet says of the pod; empty: it runs
  std::vector<Admitted> containers;
};

class Node {
 public:
  static std::unique_ptr<Node> Make(int cards, const std::string& yaml);
  virtual ~Node() = default;

  // Units that kubelet would give out, taken or not, and those that it holds to be unhealthy.
  virtual bool AwaitUnits(size_t healthy, size_t unhealthy = 0) = 0;
  virtual void RestartKubelet() = 0;
  // Admission and first start.
  virtual AdmittedPod Admit(const std::string& pod, const std::vector<ContainerOrder>& containers) = 0;
  // The pod's last container ends and is started again. Empty, or kubelet's words.
  virtual std::string Restart(const std::string& pod) = 0;
  virtual void Delete(const std::string& pod) = 0;
  // Another device plugin comes with these devices, and goes with the node.
  virtual void OfferForeign(const std::string& resource, const std::vector<std::string>& ids) = 0;

  AdmittedPod Admit(const std::string& pod, int units) { return Admit(pod, {{"main", units}}); }
  bool Await(const std::function<bool()>& predicate);
  std::vector<std::string> Allocations() const;
  int Registrations() const;  // that kubelet took, of all the plugin's lives
  // The plugin's own words, for a failure.
  std::string Log() const;

  TempDir dir;
  std::unique_ptr<PluginProcess> plugin;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_TEST_DEVICEPLUGIN_TEST_NODE_H_
