// Keeps the self-made certificate: the Secret that replicas share, the certificate in use, the caBundles.
#ifndef SLUICE_WEBHOOK_CERTIFICATES_RECONCILER_H_
#define SLUICE_WEBHOOK_CERTIFICATES_RECONCILER_H_

#include <absl/status/status.h>

#include <chrono>
#include <string>

#include "kube/client.h"
#include "webhook/certificates/key_pair.h"
#include "webhook/certificates/rotation.h"
#include "webhook/decision/config.h"

namespace sluice::webhook {

class CertificateKeeper {
 public:
  CertificateKeeper(kube::Client& client, SelfSigned settings, CertificateStore& store);

  // One look: reads the Secret, takes at most one step of the rotation, publishes the authorities. `said` gets what was
  // done. Fails where the API server cannot be reached or refuses; the certificate in use stays. `now` is for what
  // certificates say, `tick` for how long the Secret is as it is.
  absl::Status Tick(std::chrono::system_clock::time_point now, std::chrono::steady_clock::time_point tick,
                    std::string& said);

  RotationOptions& options() { return options_; }

 private:
  absl::Status Publish(const std::string& path, const std::string& bundle, std::string& said);

  kube::Client& client_;
  const SelfSigned settings_;
  CertificateStore& store_;
  RotationOptions options_;
  std::string certificate_;                        // as loaded into the store
  SecretData seen_;                                // the Secret at the last look
  std::chrono::steady_clock::time_point since_{};  // when it was first like that
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_CERTIFICATES_RECONCILER_H_
