// Reads JSON from the network. Refuses deep nesting, duplicate keys, bytes that are not UTF-8, and text after the end.
#ifndef SLUICE_WEBHOOK_DECISION_JSON_READER_H_
#define SLUICE_WEBHOOK_DECISION_JSON_READER_H_

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::webhook {

inline constexpr int kMaxJsonDepth = 64;  // a pod's own schema is 14 deep

// nullopt: `error` says why.
std::optional<nlohmann::json> ReadJson(std::string_view text, std::string& error);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_JSON_READER_H_
