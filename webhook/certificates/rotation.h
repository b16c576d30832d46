// Certificates that the webhook makes itself, as a state machine over the content of one Secret. Pure but for the
// random numbers of new keys: time is an argument.
//
// Every replica runs it and writes by optimistic concurrency, so it must never need two steps at once:
//   a new authority is first published (next.crt, in every caBundle), and signs only after `settle`;
//   the old one stays published until the leaf that it signed has been replaced everywhere, `settle` later.
// How long the Secret has been as it is, each replica measures itself: the dates in certificates come from another's
// clock, and one that runs an hour ahead would find everything settled at once.
#ifndef SLUICE_WEBHOOK_CERTIFICATES_ROTATION_H_
#define SLUICE_WEBHOOK_CERTIFICATES_ROTATION_H_

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace sluice::webhook {

using SecretData = std::map<std::string, std::string>;  // PEM by key: ca.crt, ca.key, tls.crt, tls.key, next.*, old.crt

struct RotationOptions {
  std::vector<std::string> names;  // the leaf's DNS names
  std::chrono::hours authority_life{24 * 730};
  std::chrono::hours leaf_life{24 * 90};
  std::chrono::seconds settle{600};  // longer than any replica or API server takes to see a change; its own steady time
};

struct RotationStep {
  SecretData data;   // what the Secret is to hold
  std::string what;  // "made the first authority and certificate"; empty: nothing to do
};

// `unchanged`: how long this replica has seen the Secret hold just this.
RotationStep Rotate(const SecretData& secret, std::chrono::system_clock::time_point now, std::chrono::seconds unchanged,
                    const RotationOptions& options);

// What API servers are to trust: every authority that signs now, did, or will.
std::string Bundle(const SecretData& secret);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_CERTIFICATES_ROTATION_H_
