// Base64 (RFC 4648, with padding), as Kubernetes carries bytes in JSON.
#ifndef SLUICE_WEBHOOK_DECISION_BASE64_H_
#define SLUICE_WEBHOOK_DECISION_BASE64_H_

#include <string>
#include <string_view>

namespace sluice::webhook {

std::string Base64(std::string_view bytes);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_BASE64_H_
