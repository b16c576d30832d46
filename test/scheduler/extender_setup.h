// The extender with a cluster in memory behind it, for tests.
#ifndef SLUICE_TEST_SCHEDULER_EXTENDER_SETUP_H_
#define SLUICE_TEST_SCHEDULER_EXTENDER_SETUP_H_

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "fake_cluster.h"
#include "scheduler/extender/extender.h"

namespace sluice::scheduler {

class ExtenderSetup {
 public:
  // Without this constructor a list of one node would be ambiguous, because JSON converts to everything.
  ExtenderSetup(std::initializer_list<Json> nodes) : ExtenderSetup(std::vector<Json>(nodes), "best-fit") {}
  ExtenderSetup(const std::vector<Json>& nodes, const std::string& policy)
      : policies(*PolicyRefresher::Make(policy)), cluster(*policies), extender(cluster, binder) {
    for (const Json& node : nodes) names.push_back(node["metadata"]["name"]);
    ReplaceNodes(cluster, nodes);
    ReplacePods(cluster, {});
  }

  void Create(const Json& pod) {
    binder.Create(pod);
    cluster.PutPod(ReadPod(pod));
  }
  Json Filter(const Json& pod) { return Json::parse(extender.Filter(Args(pod)).body); }
  Json Prioritize(const Json& pod) { return Json::parse(extender.Prioritize(Args(pod)).body); }
  std::string Bind(const Json& pod, const std::string& node) {
    const Json args = {{"PodName", pod["metadata"]["name"]},
                       {"PodNamespace", "default"},
                       {"PodUID", pod["metadata"]["uid"]},
                       {"Node", node}};
    return Json::parse(extender.Bind(args.dump()).body)["Error"];
  }
  std::string Args(const Json& pod) const { return Json{{"Pod", pod}, {"NodeNames", names}}.dump(); }
  // The watch shows the pod as the API server holds it.
  void Show(const std::string& uid) { cluster.PutPod(ReadPod(binder.Pod(uid))); }

  std::vector<std::string> names;
  std::unique_ptr<PolicyRefresher> policies;
  ClusterState cluster;
  FakeBinder binder;
  Extender extender;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_TEST_SCHEDULER_EXTENDER_SETUP_H_
