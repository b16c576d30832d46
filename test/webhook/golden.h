// A golden pair: NAME.yaml (a pod, a workload, or an old and a new pod) and the webhook's result in NAME.injected or
// NAME.denied.
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
  std::string error;  // the file itself is invalid
};

// Reads the file. Comments at its top hold settings: "# config: {aliases: true}", "# namespace: x",
// "# nodes: [{name: n1, labels: {}, gpus: [{model: L4, memory: 24Gi}]}]".
GoldenCase LoadCase(const std::string& path);

struct GoldenResult {
  bool denied = false;
  std::string text;     // the contents of the second file
  std::string problem;  // a broken invariant: idempotence, or a decision that contradicts the condition; empty: none
};
GoldenResult RunCase(const GoldenCase& c, const RuleSet& off = {});

std::vector<std::string> FindCases(const std::string& folder);
std::string ReadFile(const std::string& path);  // empty if it is unreadable

}  // namespace sluice::webhook::test

#endif  // SLUICE_TEST_WEBHOOK_GOLDEN_H_
