// The rotation of self-made certificates: a state machine over the contents of one Secret. Pure except for the random
// numbers of new keys; time is an argument.
//
// Every replica runs it and writes with optimistic concurrency, so each step must be safe alone:
//   - A new CA is published first (next.crt, in every caBundle). It signs only after `settle_time`.
//   - The old CA stays published for another `settle_time`, until every replica has replaced its certificate.
// Each replica measures itself how long the Secret has been unchanged. The dates in certificates come from another
// replica's clock: a clock an hour ahead would end every wait at once.
#ifndef SLUICE_COMMON_TLS_ROTATION_H_
#define SLUICE_COMMON_TLS_ROTATION_H_

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace sluice {

using SecretData = std::map<std::string, std::string>;  // PEM by key: ca.crt, ca.key, tls.crt, tls.key, next.*, old.crt

struct RotationOptions {
  std::vector<std::string> names;  // the server certificate's DNS names
  std::chrono::hours ca_lifetime{24 * 730};
  std::chrono::hours leaf_lifetime{24 * 90};
  std::chrono::seconds settle_time{600};  // longer than any replica or API server needs to notice a change
};

struct RotationStep {
  SecretData data;     // the Secret's new contents
  std::string action;  // "made the first CA and certificate"; empty: no change
};

// Takes at most one step. `unchanged`: how long this replica has seen these contents of the Secret.
RotationStep Rotate(const SecretData& secret, std::chrono::system_clock::time_point now, std::chrono::seconds unchanged,
                    const RotationOptions& options);

// The caBundle that API servers need: the current CA, the next one and the old one, as PEM.
std::string CaBundle(const SecretData& secret);

}  // namespace sluice

#endif  // SLUICE_COMMON_TLS_ROTATION_H_
