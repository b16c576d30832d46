// Reconciles the self-made certificates: the Secret that all replicas share, the certificate in use, the caBundles.
#ifndef SLUICE_WEBHOOK_CERTIFICATES_RECONCILER_H_
#define SLUICE_WEBHOOK_CERTIFICATES_RECONCILER_H_

#include <absl/status/status.h>

#include <chrono>
#include <string>

#include "common/tls/key_pair.h"
#include "common/tls/rotation.h"
#include "kube/client.h"
#include "webhook/decision/config.h"

namespace sluice::webhook {

// For one thread. `client` and `store` must outlive it.
class CertificateReconciler {
 public:
  CertificateReconciler(kube::Client& client, SelfSigned settings, CertificateStore& store);

  // Reads the Secret, takes at most one step of the rotation, publishes the CAs and loads the certificate. `actions`
  // lists the changes, for the log. Fails if the API server is unreachable or refuses; the certificate in use stays.
  // `now` is for the dates in certificates, `tick` for the time that the Secret is unchanged.
  absl::Status Reconcile(std::chrono::system_clock::time_point now, std::chrono::steady_clock::time_point tick,
                         std::string& actions);

 private:
  absl::Status PublishCaBundle(const std::string& path, const std::string& bundle, std::string& actions);

  kube::Client& client_;
  const SelfSigned settings_;
  CertificateStore& store_;
  RotationOptions options_;
  std::string loaded_certificate_;                           // in the store
  SecretData last_secret_;                                   // contents at the last call
  std::chrono::steady_clock::time_point unchanged_since_{};  // first sight of these contents
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_CERTIFICATES_RECONCILER_H_
