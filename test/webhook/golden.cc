#include "golden.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/settings/settings.h"
#include "sluice/version.h"
#include "webhook/decision/manifest.h"
#include "webhook/decision/validate.h"

namespace sluice::webhook::test {
namespace {

void ReadNodes(const Json& list, GoldenCase& c) {
  for (const Json& n : list) {
    Node node;
    node.name = n.at("name");
    const Json labels = n.value("labels", Json::object());
    const Json gpus = n.value("gpus", Json::array());
    for (const auto& [key, value] : labels.items()) node.labels.Set(key, value.get<std::string>());
    for (const Json& g : gpus) {
      node.gpus.push_back({g.at("model"), settings::ParseQuantity(g.at("memory").get<std::string>()).value()});
    }
    for (const Json& mib : n.value("offered", Json::array())) node.offered.push_back(mib.get<uint64_t>());
    c.nodes[node.name] = node;
  }
}

void ReadHeader(const std::string& line, GoldenCase& c) {
  const auto value = [&](std::string_view key) -> std::optional<std::string> {
    const std::string prefix = "# " + std::string(key) + ": ";
    return line.starts_with(prefix) ? std::optional(line.substr(prefix.size())) : std::nullopt;
  };
  if (const auto text = value("config")) {
    const auto file = ParseConfig(*text, "config", c.error);
    if (file) c.config = file->decision;
  } else if (const auto nodes = value("nodes")) {
    const auto documents = ReadManifests(*nodes, c.error);
    if (documents) ReadNodes(documents->at(0), c);
  } else if (const auto name_space = value("namespace")) {
    c.name_space = *name_space;
  }
}

std::string Comments(const std::vector<std::string>& warnings) {
  std::string out;
  for (const std::string& w : warnings) out += "# warning: " + w + "\n";
  return out;
}

GoldenResult Render(const std::vector<Finding>& denials, const std::vector<std::string>& warnings,
                    const std::string& allowed) {
  GoldenResult r;
  r.denied = !denials.empty();
  for (const Finding& f : denials) r.text += std::string(RuleName(f.rule)) + ": " + f.text + "\n";
  r.text += Comments(warnings);
  if (!r.denied) r.text += allowed;
  return r;
}

GoldenResult RunPod(const GoldenCase& c, const RuleSet& off) {
  const Json& pod = c.documents[0];
  const Decision d = Decide({pod, c.name_space, c.config, c.nodes, Mode::kCreate, off});
  if (d.verdict == Verdict::kNothing) {
    GoldenResult r = Render({}, d.warnings, "# untouched\n");
    const auto& excluded = c.config.excluded_namespaces;
    const bool is_excluded = std::find(excluded.begin(), excluded.end(), c.name_space) != excluded.end();
    if (ConcernsSluice(pod, c.config.aliases) && !is_excluded) {
      r.problem = "the pod concerns sluice, but has no decision";
    }
    if (!d.patch.empty()) r.problem = "the decision changes nothing, but has a patch";
    return r;
  }
  if (d.verdict == Verdict::kDeny) {
    GoldenResult r = Render(d.denials, d.warnings, {});
    if (!NeedsDecision(pod, c.config.aliases)) r.problem = "denied, but the API server would not ask";
    return r;
  }
  const Json result = d.patch.empty() ? pod : pod.patch(Json::parse(d.patch));
  // A new version must not change every pair.
  std::string yaml = WriteManifest(result);
  const std::string version = R"(\"version\":\")";
  if (const size_t at = yaml.find(version + SLUICE_VERSION); at != std::string::npos) {
    yaml.replace(at + version.size(), std::string_view(SLUICE_VERSION).size(), "VERSION");
  }
  std::string templates;  // they are made first
  for (const ClaimTemplate& claim : d.claims) templates += WriteManifest(claim.object) + "---\n";
  yaml = templates + yaml;
  GoldenResult r = Render({}, d.warnings, yaml);
  if (!ConcernsSluice(pod, c.config.aliases)) r.problem = "patched, but the API server would not ask";
  if (!IsHandled(result)) r.problem = "the result lacks the marker or the library";
  const Decision again = Decide({result, c.name_space, c.config, c.nodes});
  if (again.verdict == Verdict::kDeny) r.problem = "a second pass denies: " + again.Message();
  if (!again.patch.empty()) r.problem = "a second pass changes: " + again.patch;
  return r;
}

}  // namespace

GoldenCase LoadCase(const std::string& path) {
  GoldenCase c;
  c.name = std::filesystem::path(path).stem();
  const std::string text = ReadFile(path);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && line.starts_with('#');) ReadHeader(line, c);
  const auto documents = ReadManifests(text, c.error);
  if (documents) c.documents = *documents;
  if (c.error.empty() && c.documents.empty()) c.error = "no document";
  return c;
}

GoldenResult RunCase(const GoldenCase& c, const RuleSet& off) {
  const Json& first = c.documents[0];
  if (c.documents.size() == 2) {
    const ValidationResult v =
        ValidateUpdate(first, {c.documents[1], c.name_space, c.config, c.nodes, Mode::kUpdate, off}, {});
    return Render(v.denials, v.warnings, "# allowed\n");
  }
  if (first.value("kind", "") != "Pod") {
    const ValidationResult v =
        ValidateTemplate(nullptr, {first, c.name_space, c.config, c.nodes, Mode::kTemplate, off});
    return Render(v.denials, v.warnings, "# allowed\n");
  }
  return RunPod(c, off);
}

std::vector<std::string> FindCases(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".yaml") out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

}  // namespace sluice::webhook::test
