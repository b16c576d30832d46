// Reads JSON from the network. Refuses deep nesting, too many values, duplicate keys, bytes that are not UTF-8, and
// text after the end.
#ifndef SLUICE_WEBHOOK_DECISION_JSON_READER_H_
#define SLUICE_WEBHOOK_DECISION_JSON_READER_H_

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::webhook {

inline constexpr int kMaxJsonDepth = 64;  // a pod's own schema is 14 deep
// Three MiB of the shortest values would take a hundred MiB of memory. An object as large as etcd stores has a tenth.
inline constexpr size_t kMaxJsonValues = 100'000;

// nullopt: `error` says why, and `beginning` gets the values before the error.
std::optional<nlohmann::json> ReadJson(std::string_view text, std::string& error, nlohmann::json* beginning = nullptr);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_JSON_READER_H_
