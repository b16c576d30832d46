// libFuzzer target: manifests, through the reader and the decision.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "webhook/decision/decision.h"
#include "webhook/decision/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::webhook;  // NOLINT(google-build-using-namespace): the library under test
  if (size > 65536) return 0;
  std::string error;
  const auto documents = ReadManifests({reinterpret_cast<const char*>(data), size}, error);
  if (!documents) return 0;
  static const Config config = [] {
    Config c;
    c.aliases = true;
    c.assumed_gpu_memory = uint64_t{40} << 30;
    return c;
  }();
  for (const Json& pod : *documents) {
    const Decision d = Decide({pod, "team-a", config, {}});
    if (d.verdict == Verdict::kDeny && d.Message().empty()) std::abort();
    if (d.patch.empty()) continue;
    const Json result = pod.patch(Json::parse(d.patch));
    const Decision again = Decide({result, "team-a", config, {}});
    if (!again.patch.empty() || again.verdict == Verdict::kDeny) std::abort();  // idempotent
    if (!IsHandled(result)) std::abort();
  }
  return 0;
}
