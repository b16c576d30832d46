// YAML and JSON manifests, as kubectl reads and writes them.
#ifndef SLUICE_WEBHOOK_DECISION_MANIFEST_H_
#define SLUICE_WEBHOOK_DECISION_MANIFEST_H_

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::webhook {

// Reads all documents of a YAML (or JSON) text and skips empty ones. Scalars, anchors and merge keys (`<<`) are read as
// kubectl reads them, but a key that occurs twice is an error. nullopt: `error` says where.
std::optional<std::vector<nlohmann::json>> ReadManifests(std::string_view text, std::string& error);

// Writes one document as YAML; every string value is quoted.
std::string WriteManifest(const nlohmann::json& json);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_MANIFEST_H_
