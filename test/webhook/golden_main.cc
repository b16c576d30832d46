// golden FOLDER            compares each pair with the webhook's result
// golden FOLDER --rewrite  rewrites the second files (read the difference before you commit it)
// golden FOLDER --expect   prints one line of JSON for each pair, for the test on a real API server
// golden FOLDER --rules    disables each rule in turn; at least one pair must differ then
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "common/settings/settings.h"
#include "golden.h"
#include "sluice/names.h"

namespace {

using namespace sluice::webhook;        // NOLINT(google-build-using-namespace): the program under test
using namespace sluice::webhook::test;  // NOLINT(google-build-using-namespace)

constexpr size_t kMinPairs = 80;

struct Pair {
  GoldenCase input;
  std::string base;  // path without extension
};

bool Differs(const Pair& p, const GoldenResult& r) {
  return !r.problem.empty() || ReadFile(p.base + (r.denied ? ".denied" : ".injected")) != r.text;
}

// Whether one of the annotations of this pod, or of this template, is sluice.dev/<key> or <key>.sluice.dev/<name>.
bool Mentions(const Json& object, std::string_view key) {
  if (object.is_object() && object.contains("annotations") && object["annotations"].is_object()) {
    for (const auto& [annotation, value] : object["annotations"].items()) {
      if (const auto ours = ParseOwnKey(annotation); ours && ours->key == key) return true;
    }
  }
  return object.is_structured() &&
         std::any_of(object.begin(), object.end(), [&](const Json& child) { return Mentions(child, key); });
}

// The number of settings without a pair that is accepted, or without one that is denied for its value.
size_t SettingsWithoutPairs(const std::vector<Pair>& pairs) {
  size_t bad = 0;
  for (const sluice::settings::Key& key : sluice::settings::Table()) {
    bool accepted = false, denied = false;
    const std::string refused = SLUICE_DOMAIN "/" + std::string(key.name) + ": '";
    for (const Pair& p : pairs) {
      const GoldenResult r = RunCase(p.input);
      accepted |= !r.denied && Mentions(p.input.documents.back(), key.name);
      denied |= r.denied && r.text.find(refused) != std::string::npos &&
                r.text.find("is not accepted; accepted: " + std::string(key.accepted)) != std::string::npos;
    }
    if (accepted && denied) continue;
    ++bad;
    std::cout << key.name << ": no " << (accepted ? "denied" : "accepted") << " pair\n";
  }
  return bad;
}

int Check(const std::vector<Pair>& pairs) {
  size_t bad = SettingsWithoutPairs(pairs);
  for (const Pair& p : pairs) {
    const GoldenResult r = RunCase(p.input);
    const std::string wanted = ReadFile(p.base + (r.denied ? ".denied" : ".injected"));
    const bool both = std::filesystem::exists(p.base + (r.denied ? ".injected" : ".denied"));
    if (wanted == r.text && r.problem.empty() && !both) continue;
    ++bad;
    std::cout << p.input.name << ": " << (r.problem.empty() ? "differs" : r.problem) << "\n--- actual\n"
              << r.text << "--- expected" << (both ? " (and the pair has both a .denied and an .injected)" : "") << "\n"
              << wanted;
  }
  std::cout << pairs.size() << " golden pairs, " << bad << " differ\n";
  if (pairs.size() < kMinPairs) std::cout << "fewer than " << kMinPairs << " pairs\n";
  return bad == 0 && pairs.size() >= kMinPairs ? 0 : 1;
}

int Rewrite(const std::vector<Pair>& pairs) {
  int status = 0;
  for (const Pair& p : pairs) {
    const GoldenResult r = RunCase(p.input);
    if (!r.problem.empty()) {
      std::cout << p.input.name << ": " << r.problem << "\n";
      status = 1;
    }
    std::filesystem::remove(p.base + ".denied");
    std::filesystem::remove(p.base + ".injected");
    std::ofstream(p.base + (r.denied ? ".denied" : ".injected"), std::ios::binary) << r.text;
  }
  std::cout << pairs.size() << " pairs written\n";
  return status;
}

int Rules(const std::vector<Pair>& pairs) {
  int unused = 0;
  for (size_t i = 0; i < static_cast<size_t>(Rule::kCount); ++i) {
    RuleSet off;
    off.set(i);
    const Pair* broken = nullptr;
    for (const Pair& p : pairs) {
      if (broken == nullptr && Differs(p, RunCase(p.input, off))) broken = &p;
    }
    std::cout << kRuleNames[i] << ": " << (broken == nullptr ? "NO PAIR NEEDS IT" : "breaks " + broken->input.name)
              << "\n";
    unused += broken == nullptr ? 1 : 0;
  }
  return unused == 0 ? 0 : 1;
}

// Prints the decisions, for a test that compares them with a real API server's.
int Expect(const std::vector<Pair>& pairs) {
  for (const Pair& p : pairs) {
    Json line = {{"name", p.input.name},
                 {"aliases", p.input.config.aliases},
                 {"namespace", p.input.name_space},
                 {"config", ReadFile(p.base + ".yaml")},
                 {"documents", p.input.documents}};
    Json nodes = Json::array();
    for (const auto& [name, node] : p.input.nodes) {
      Json gpus = Json::array();
      for (const Gpu& g : node.gpus) gpus.push_back({{"uuid", "GPU-0"}, {"model", g.model}, {"memory", g.memory}});
      Json labels = Json::object();
      for (const auto& label : node.labels.all()) labels[label->key] = label->value;
      nodes.push_back({{"name", name}, {"labels", labels}, {"gpus", gpus.dump()}, {"offered", node.offered}});
    }
    line["nodes"] = nodes;
    const Json& first = p.input.documents[0];
    line["concerns"] = ConcernsSluice(first, p.input.config.aliases);
    line["handled"] = IsHandled(first);
    const GoldenResult r = RunCase(p.input);
    line["denied"] = r.denied;
    line["text"] = r.text;
    if (p.input.documents.size() == 1 && first.value("kind", "") == "Pod") {
      const Decision d = Decide({first, p.input.name_space, p.input.config, p.input.nodes});
      line["message"] = d.Message();
      line["warnings"] = d.warnings;
      line["result"] = d.patch.empty() ? first : first.patch(Json::parse(d.patch));
    }
    std::cout << line.dump() << "\n";
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "golden: the folder of the pairs is missing\n";
    return 2;
  }
  const std::string mode = argc > 2 ? argv[2] : "";
  std::vector<Pair> pairs;
  for (const std::string& path : FindCases(argv[1])) {
    Pair p{LoadCase(path), path.substr(0, path.size() - 5)};
    if (!p.input.error.empty()) {
      std::cout << path << ": " << p.input.error << "\n";
      return 1;
    }
    pairs.push_back(std::move(p));
  }
  if (mode == "--rewrite") return Rewrite(pairs);
  if (mode == "--expect") return Expect(pairs);
  if (mode == "--rules") return Rules(pairs);
  return Check(pairs);
}
