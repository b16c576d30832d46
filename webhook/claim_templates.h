// Makes the ResourceClaimTemplates of pods whose shares are claims, before the pods exist.
#ifndef SLUICE_WEBHOOK_CLAIM_TEMPLATES_H_
#define SLUICE_WEBHOOK_CLAIM_TEMPLATES_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/mutex.h"
#include "kube/watcher.h"
#include "webhook/decision/share_claim.h"

namespace sluice::webhook {

// Thread-safe. A template that this process has seen costs no request: a watch tells of those that are deleted.
class ClaimTemplates {
 public:
  explicit ClaimTemplates(const kube::ClientConfig& config);
  ~ClaimTemplates();

  // Creates those that are absent. Returns an empty string, or the sentence for people: then the pod must not be made.
  std::string Ensure(std::string_view name_space, const std::vector<ClaimTemplate>& templates);

 private:
  std::string EnsureOne(const std::string& key, const std::string& collection, const ClaimTemplate& wanted);
  void Forget(const kube::Json& object);

  kube::Client client_;
  Mutex mutex_;
  std::set<std::string> known_ SLUICE_GUARDED_BY(mutex_);   // "namespace/name", compared with the wanted template
  std::set<std::string> listed_ SLUICE_GUARDED_BY(mutex_);  // in the list that is being read
  uint64_t deletions_ SLUICE_GUARDED_BY(mutex_) = 0;        // a template may go while it is compared
  bool is_watched_ SLUICE_GUARDED_BY(mutex_) = false;
  std::unique_ptr<kube::Watcher> watcher_;  // last, because its functions use the others
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_CLAIM_TEMPLATES_H_
