// Pod templates in workloads of any kind, found by their shape. Pure.
#ifndef SLUICE_WEBHOOK_DECISION_TEMPLATE_SEARCH_H_
#define SLUICE_WEBHOOK_DECISION_TEMPLATE_SEARCH_H_

#include <string>
#include <string_view>
#include <vector>

#include "webhook/decision/pod.h"

namespace sluice::webhook {

// JSON pointers of the objects with spec.containers, a list of objects: Kubeflow's
// /spec/pytorchReplicaSpecs/Worker/template. At most 100, none inside another.
std::vector<std::string> FindTemplates(const Json& workload);

// The object at a pointer of FindTemplates, or nullptr. The pointer may be another object's, as that of an update:
// nlohmann's own look-up throws where an object became a list.
const Json* FindAt(const Json& workload, std::string_view pointer);

// An annotation of sluice's that stands in no pod template.
struct StrayAnnotation {
  std::string pointer;  // of the map of annotations
  std::string key;
};
std::vector<StrayAnnotation> FindStrayAnnotations(const Json& workload, const std::vector<std::string>& templates,
                                                  bool aliases);

// The template as a pod. Knative's container may have no name; it is "user-container" in the pod.
Json TemplateAsPod(const Json& found);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_TEMPLATE_SEARCH_H_
