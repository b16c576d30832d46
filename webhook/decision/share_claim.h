// The ResourceClaimTemplate that carries a container's share where the DRA driver serves the nodes. Pure.
#ifndef SLUICE_WEBHOOK_DECISION_SHARE_CLAIM_H_
#define SLUICE_WEBHOOK_DECISION_SHARE_CLAIM_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/settings/settings.h"
#include "webhook/decision/nodes.h"

namespace sluice::webhook {

// The scheduler's allocator takes as many alternatives of a request (resource.k8s.io/v1).
inline constexpr size_t kMaxAlternatives = 8;

struct ClaimTemplate {
  std::string name;  // by the content: equal requests of a namespace have one template
  Json object;
};

struct ShareClaimInput {
  settings::Settings settings;      // gpu_percent or gpu_memory is set
  uint32_t cards = 1;               // the share is of each of so many
  std::string preload;              // the container's own LD_PRELOAD, without sluice's library
  std::vector<uint64_t> sizes;      // MiB of the cards that the pod may get, ascending, each once
  std::optional<uint64_t> assumed;  // bytes of a card if `sizes` is empty
};

struct ShareClaim {
  Json spec;                     // of a ResourceClaim
  std::string error;             // completes "<field>: "; empty: `spec` is the request
  bool is_unknown = false;       // the error is a lack of known cards, not a wrong value
  bool is_compute = false;       // the error is about compute-limit
  bool is_memory_limit = false;  // the error is about memory-limit
};

// A share of bytes or of whole cards needs no known card. A fraction becomes one alternative for each size of card, as
// capacities are bytes; smaller cards come first.
ShareClaim RequestShare(const ShareClaimInput& input);

// Sizes, as ShareClaimInput has them, of cards that the driver offers on the nodes that the pod may go to and that have
// `at_least` cards.
std::vector<uint64_t> FindSizes(const Json& spec, const Nodes& nodes, size_t at_least);

// Bytes of each card that the driver offers, in MiB: of a ResourceSlice.
std::vector<uint64_t> ReadSizes(const Json& slice);

ClaimTemplate MakeTemplate(std::string_view name_space, Json spec);

// Whether a stored template's spec is that of `wanted`: the API server adds members.
bool IsTemplate(const Json& stored, const Json& wanted);

// Why a stored template cannot serve: completes "the ResourceClaimTemplate NAME ". Empty: it can.
std::string TemplateProblem(const Json& stored, const Json& wanted);

// The entry in the pod's spec.resourceClaims for a container's share; at most 63 characters.
std::string ClaimEntryName(std::string_view container);

// Whether the webhook wrote this entry of spec.resourceClaims.
bool IsOwnEntry(const Json& entry);

// Whether the pod has such an entry.
bool HasOwnClaim(const Json& pod);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_SHARE_CLAIM_H_
