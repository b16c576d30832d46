// libFuzzer target: bytes from the network, on both paths. fuzz_replay.cc runs it without libFuzzer.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "webhook/decision/review.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::webhook;  // NOLINT(google-build-using-namespace): the library under test
  static const Config config = [] {
    Config c;
    c.aliases = true;
    return c;
  }();
  static const Nodes nodes = {{"n1", {"n1", {{"pool", "4"}}, {{"NVIDIA L4", uint64_t{24} << 30}}}}};
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const Path path : {Path::kMutate, Path::kValidate}) {
    const Answer answer = Review(path, body, config, nodes);
    if (answer.status == 400) {
      if (answer.body.empty()) std::abort();  // an error needs a message
      continue;
    }
    const Json review = Json::parse(answer.body, nullptr, false);
    if (!review.is_object() || review["response"]["uid"].get<std::string>().empty()) std::abort();
  }
  return 0;
}
