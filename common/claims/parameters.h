// The opaque configuration of a ResourceClaim for the driver sluice.dev: `parameters` holds the annotations' keys. The
// webhook judges it when the claim is created, the DRA driver when it prepares the claim, with the same sentences.
// Pure functions: thread-safe.
#ifndef SLUICE_COMMON_CLAIMS_PARAMETERS_H_
#define SLUICE_COMMON_CLAIMS_PARAMETERS_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/settings/settings.h"

namespace sluice::claims {

inline constexpr std::string_view kApiVersion = "sluice.dev/v1";
inline constexpr std::string_view kKind = "ShareSettings";
// Capacities of a device, in the ResourceSlice and in requests.
inline constexpr char kMemory[] = "memory";    // bytes
inline constexpr char kCompute[] = "compute";  // percent of the card's time
// Attribute of a device: MiB of the card that claims may have in all.
inline constexpr char kMemoryMiB[] = "memoryMiB";

// A parameter beside the settings: libraries for LD_PRELOAD behind sluice's, since the claim's variables replace those
// of the container.
inline constexpr char kPreload[] = "preload";
inline constexpr size_t kMaxPreload = 4096;  // characters

// The webhook's claims of annotated pods: the entry in spec.resourceClaims is "sluice-<container>", at most 63
// characters. A longer name is cut, and ends with a hash.
inline constexpr std::string_view kEntryPrefix = "sluice-";
inline constexpr size_t kMaxEntryName = 63;
// The container of an entry's name; empty: another entry, or a name that was cut.
std::string ContainerOf(std::string_view entry);

// Whether a claim's parameters may hold the setting. A share's size is a request's capacity, which the scheduler books.
bool IsAccepted(const settings::Key& key);
std::string AcceptedKeys();  // "memory-limit, visible-memory, ..."

// `parameters` is the object below config[].opaque; `field` is its path, for messages. Values are texts, numbers or
// truth values, as YAML reads them.
settings::Parsed ParseParameters(const nlohmann::json& parameters, std::string_view field);

// The settings of a claim, by all entries of `config` that are for the driver sluice.dev, in their order: a later entry
// wins. `requests` are the claim's requests that sluice serves. An entry for some of them only is an error, since one
// claim is one share.
settings::Parsed ParseConfig(const nlohmann::json& config, const std::vector<std::string>& requests,
                             std::string_view field);

// The libraries that `config` names for the requests; a later entry wins. ParseConfig has judged them.
std::string PreloadOf(const nlohmann::json& config, const std::vector<std::string>& requests);

// Whether the text can follow sluice's library in LD_PRELOAD: paths without variables and control characters.
bool IsPreload(std::string_view text);

// A capacity in a request or a result: "20Gi", "25". nullopt: it is not accepted.
std::optional<uint64_t> ParseCapacity(const nlohmann::json& value);

// Denials for the spec of a ResourceClaim, or the one in a ResourceClaimTemplate: configuration, and capacities that
// are no quantity or differ between the requests that sluice serves. `field` is the path of the spec. Empty if the
// claim is accepted or not for sluice.
std::vector<std::string> CheckSpec(const nlohmann::json& spec, std::string_view field);

}  // namespace sluice::claims

#endif  // SLUICE_COMMON_CLAIMS_PARAMETERS_H_
