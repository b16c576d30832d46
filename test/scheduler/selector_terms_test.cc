// Comparisons of attributes in the CEL selectors of claims.
#include "scheduler/extender/selector_terms.h"

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

namespace sluice::scheduler {
namespace {

TEST_CASE("claims: comparisons of attributes are read from selectors, and other terms left out") {
  const TextHash model = HashText("sluice.dev/model"), numa = HashText("sluice.dev/numaNode");
  const TextHash h200 = HashText(R"({"string":"NVIDIA H200"})"), one = HashText(R"({"int":1})");
  const std::string a = "device.attributes['sluice.dev']";
  const auto read = [](const std::string& text) { return ReadSelector(text); };
  auto terms = read("device.driver == 'sluice.dev' && " + a + ".model == 'NVIDIA H200' && (" + a + ".numaNode != 1)");
  REQUIRE(terms.size() == 2);
  CHECK_FALSE(terms[0].is_negated);
  REQUIRE(terms[0].all.size() == 1);
  CHECK(terms[0].all[0].attribute == model);
  CHECK(terms[0].all[0].values == std::vector{h200});
  CHECK(terms[1].is_negated);
  CHECK(terms[1].all[0].attribute == numa);
  CHECK(terms[1].all[0].values == std::vector{one});
  terms = read("1 == device.attributes[\"sluice.dev\"].numaNode");
  REQUIRE(terms.size() == 1);
  CHECK(terms[0].all[0].attribute == numa);
  terms = read("'model' in " + a);
  REQUIRE(terms.size() == 1);
  CHECK(terms[0].all[0].values.empty());
  for (const std::string& left_out : std::vector<std::string>{
           a + ".model.startsWith('NVIDIA')", a + ".model == 'A' || " + a + ".model == 'B'", std::string(),
           "!" + a + ".ok", a + ".model == 'it\\'s'", a + ".model == '", "(" + a + ".model == 'A'", a + ".model in []",
           "!(" + a + ".model == 'A' && device.driver == 'x')", a + ".?model.orValue('') == 'A'",
           std::string("device.capacity['sluice.dev'].memory.isGreaterThan(quantity('40Gi'))"), std::string(5000, '('),
           std::string(40, '(') + a + ".model == 'A'" + std::string(40, ')')}) {
    CAPTURE(left_out);
    CHECK(read(left_out).empty());
  }
}

}  // namespace
}  // namespace sluice::scheduler
