// A golden pair: NAME.yaml (a pod, a workload, or an old and a new pod) and what the webhook makes of it, in
// NAME.injected or NAME.denied.
#ifndef SLUICE_TEST_WEBHOOK_GOLDEN_H_
#define SLUICE_TEST_WEBHOOK_GOLDEN_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "webhook/decision/decision.h"

namespace sluice::webhook::test {

struct GoldenCase {
  std::string name;
  Config config;
  std::string name_space = "team-a";
  Nodes nodes;
  std::vector<Json> documents;
  std::string error;  // the file itself is wrong
};

// Reads the file. Settings stand in comments at its top: "# config: {aliases: true}", "# namespace: x",
// "# nodes: [{name: n1, labels: {}, gpus: [{model: L4, memory: 24Gi}]}]".
GoldenCase LoadCase(const std::string& path);

struct GoldenResult {
  bool denied = false;
  std::string text;     // what the second file holds
  std::string problem;  // a broken invariant (idempotence, condition and decision at odds); empty: none
};
GoldenResult RunCase(const GoldenCase& c, const RuleSet& off = {});

std::vector<std::string> FindCases(const std::string& folder);
std::string ReadFile(const std::string& path);  // empty where it cannot be read

}  // namespace sluice::webhook::test

#endif  // SLUICE_TEST_WEBHOOK_GOLDEN_H_
