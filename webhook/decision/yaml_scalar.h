// Values of unquoted YAML text, as clients of the API server read them (go-yaml v2, by sigs.k8s.io/yaml). Pure.
#ifndef SLUICE_WEBHOOK_DECISION_YAML_SCALAR_H_
#define SLUICE_WEBHOOK_DECISION_YAML_SCALAR_H_

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace sluice::webhook {

// A number, true, false, null, or the text itself: 0644 and 0o644 are 420, 8_080 is 8080, yes is true, 2001-01-01 is
// text. A float that is a whole number becomes one.
nlohmann::json ResolveScalar(std::string_view text);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_YAML_SCALAR_H_
