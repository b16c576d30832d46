#include "webhook/admit_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/read_file.h"
#include "common/settings/settings.h"
#include "webhook/decision/config.h"
#include "webhook/decision/convert.h"
#include "webhook/decision/manifest.h"
#include "webhook/decision/template_search.h"
#include "webhook/decision/validate.h"

namespace {

using namespace sluice::webhook;  // NOLINT(google-build-using-namespace): this file is that namespace's command

// Exit statuses.
constexpr int kDenied = 1;
constexpr int kUnreadable = 2;

struct Options {
  std::vector<std::string> files;
  std::string config;
  std::string output = "yaml";
  std::string name_space = "default";
  std::string gpu_memory;
  bool aliases = false;
  bool convert = false;
};

std::optional<std::string> Read(const std::string& path, std::string& error) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  return sluice::ReadWholeFile(path, error);
}

class Admit {
 public:
  explicit Admit(const Options& options) : o_(options) {}

  // Returns the exit status.
  int Run() {
    if (!Configure()) return kUnreadable;
    std::vector<std::pair<std::string, Json>> objects;
    for (const std::string& path : o_.files) {
      std::string error;
      const auto text = Read(path, error);
      if (!text) return Fail(error);
      auto documents = ReadManifests(*text, error);
      if (!documents) return Fail(path + ": " + error);
      if (documents->empty()) return Fail(path + ": the file holds no manifest");
      for (Json& document : *documents) Collect(std::move(document), path, objects);
    }
    // An object may come before the one that it refers to.
    for (const auto& [path, object] : objects) Learn(object);
    for (const auto& [path, object] : objects) AdmitObject(object, path);
    return status_;
  }

 private:
  static int Fail(const std::string& error) {
    std::cerr << "sluice: " << error << "\n";
    return kUnreadable;
  }

  bool Configure() {
    if (!o_.config.empty()) {
      std::string error;
      const auto text = Read(o_.config, error);
      const auto file = text ? ParseConfig(*text, o_.config, error) : std::nullopt;
      if (!file) {
        Fail(error);
        return false;
      }
      config_ = file->decision;
    }
    config_.aliases |= o_.aliases;
    if (o_.gpu_memory.empty()) return true;
    config_.assumed_gpu_memory = sluice::settings::ParseQuantity(o_.gpu_memory);
    if (config_.assumed_gpu_memory) return true;
    Fail("--gpu-memory: '" + o_.gpu_memory + "' is not accepted; accepted: a Kubernetes quantity of bytes, as 24Gi");
    return false;
  }

  // Adds the document, or the items of a list.
  static void Collect(Json document, const std::string& path, std::vector<std::pair<std::string, Json>>& objects) {
    const auto items = document.is_object() ? document.find("items") : document.end();
    if (Text(document, "kind").ends_with("List") && items != document.end() && items->is_array()) {
      for (Json& item : *items) Collect(std::move(item), path, objects);
      return;
    }
    objects.emplace_back(path, std::move(document));
  }

  // Keeps the cluster's knowledge from this object.
  void Learn(const Json& object) {
    const Json* metadata = Member(object, "metadata");
    if (Text(object, "kind") != "RuntimeClass" || metadata == nullptr) return;
    config_.runtime_handlers[std::string(Text(*metadata, "name"))] = Text(object, "handler");
  }

  void AdmitObject(const Json& object, const std::string& path) {
    const std::string_view kind = Text(object, "kind");
    if (kind.empty()) {
      status_ = Fail(path + ": a document is no Kubernetes object; accepted: maps with apiVersion, kind and metadata");
      return;
    }
    const Json* metadata = Member(object, "metadata");
    std::string name(metadata == nullptr ? std::string_view() : Text(*metadata, "name"));
    if (name.empty() && metadata != nullptr) name = std::string(Text(*metadata, "generateName"));
    label_ = path + ": " + std::string(kind) + " " + name;
    const std::string_view own = metadata == nullptr ? std::string_view() : Text(*metadata, "namespace");
    const std::string_view name_space = own.empty() ? std::string_view(o_.name_space) : own;
    if (o_.convert) {
      Convert(object);
      return;
    }
    if (kind == "Pod") {
      AdmitPod(object, name_space);
      return;
    }
    AdmitTemplates(object, name_space);
  }

  // Prints the manifest with sluice's annotations instead of other systems' sizes.
  void Convert(const Json& object) {
    Json patch = Json::array();
    bool is_denied = false;
    for (const std::string& pointer :
         Text(object, "kind") == "Pod" ? std::vector<std::string>{""} : TemplatesOf(object)) {
      const Conversion conversion =
          ConvertAliases(TemplateAsPod(object[Json::json_pointer(pointer)]), ConversionScope::kManifest);
      Warn(conversion.warnings);
      if (!conversion.denials.empty()) Deny(conversion.denials);
      is_denied |= !conversion.denials.empty();
      if (!conversion.has_changes) continue;
      for (Json& operation : Json::parse("[" + conversion.patch + "]")) {
        operation["path"] = pointer + operation["path"].get<std::string>();
        patch.push_back(std::move(operation));
      }
    }
    if (is_denied) return;
    std::cerr << label_ << (patch.empty() ? ": unchanged\n" : ": converted\n");
    Print(object, patch);
  }

  // Adds the flag of this command to a message about unknown GPUs.
  std::string WithHint(const std::string& text) const {
    const bool is_about_memory = o_.gpu_memory.empty() && text.find("webhook.assumedGpuMemory") != std::string::npos;
    return is_about_memory ? text + "; for this command: --gpu-memory 24Gi" : text;
  }

  void Warn(const std::vector<std::string>& warnings) const {
    for (const std::string& w : warnings) std::cerr << label_ << ": warning: " << WithHint(w) << "\n";
  }

  void Deny(const std::vector<Finding>& denials) {
    for (const Finding& f : denials) std::cerr << label_ << ": denied: " << WithHint(f.text) << "\n";
    if (status_ == 0) status_ = kDenied;
  }

  void AdmitPod(const Json& pod, std::string_view name_space) {
    const Decision d = Decide({pod, name_space, config_, nodes_});
    Warn(d.warnings);
    if (d.verdict == Verdict::kDeny) {
      Deny(d.denials);
      return;
    }
    std::cerr << label_ << ": " << (d.verdict == Verdict::kPatch ? d.reason : "unchanged") << "\n";
    if (o_.output == "yaml") {
      for (const ClaimTemplate& claim : d.claims) Print(claim.object, Json::array());
    }
    Print(pod, d.patch.empty() ? Json::array() : Json::parse(d.patch));
  }

  void AdmitTemplates(const Json& workload, std::string_view name_space) {
    const ValidationResult result = ValidateTemplate(nullptr, {workload, name_space, config_, nodes_, Mode::kTemplate});
    Warn(result.warnings);
    if (!result.denials.empty()) {
      Deny(result.denials);
      return;
    }
    const std::vector<std::string> templates = TemplatesOf(workload);
    if (templates.empty()) {
      const bool is_workload = IsWorkloadKind(workload);
      std::cerr << label_
                << (is_workload ? ": the workload has no pod template\n" : ": unchanged: this kind has no pods\n");
      if (!is_workload) Print(workload, {});
      return;
    }
    Json patch = Json::array();
    for (const std::string& pointer : templates) {
      const Json pod = TemplateAsPod(workload[Json::json_pointer(pointer)]);
      const Decision d = Decide({pod, name_space, config_, nodes_, Mode::kTemplate});
      const std::string where = templates.size() == 1 ? "" : " (" + pointer.substr(1) + ")";
      std::cerr << label_ << ": its pods" << where << ": " << (d.verdict == Verdict::kPatch ? d.reason : "unchanged")
                << "\n";
      for (Json& operation : d.patch.empty() ? Json::array() : Json::parse(d.patch)) {
        operation["path"] = pointer + operation["path"].get<std::string>();
        patch.push_back(std::move(operation));
      }
    }
    Print(workload, patch);
  }

  void Print(const Json& object, const Json& patch) {
    if (o_.output == "none") return;
    if (o_.output == "patch") {
      std::cout << (patch.is_array() ? patch : Json::array()).dump() << "\n";
      return;
    }
    if (has_printed_) std::cout << "---\n";
    has_printed_ = true;
    std::cout << WriteManifest(patch.is_array() ? object.patch(patch) : object);
  }

  const Options& o_;
  Config config_;
  Nodes nodes_;
  std::string label_;
  bool has_printed_ = false;
  int status_ = 0;
};

}  // namespace

void AddAdmitCommand(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* admit = app.add_subcommand("admit", "show the webhook's decision about manifests, without a cluster");
  admit->add_option("-f,--filename", options->files, "Manifests, YAML or JSON, several documents; - is stdin")
      ->required();
  admit->add_option("--config", options->config, "The webhook's configuration");
  admit->add_option("-n,--namespace", options->name_space, "Namespace of manifests that name none");
  admit->add_option("--gpu-memory", options->gpu_memory, "The smallest GPU's memory, for pods with gpu-memory");
  admit->add_option("-o,--output", options->output, "yaml: the changed manifest; patch: JSON Patch; none")
      ->check(CLI::IsMember({"yaml", "patch", "none"}));
  admit->add_flag("--aliases", options->aliases, "Read the sizes of HAMi, KAI, Run:ai and nvshare");
  admit->add_flag("--convert", options->convert,
                  "Print the manifest with sluice's annotations instead of the sizes of HAMi, KAI, Run:ai and nvshare");
  admit->footer("Exit status: 0 all manifests accepted, 1 one denied, 2 one unreadable.");
  admit->callback([options] {
    const int status = Admit(*options).Run();
    if (status != 0) throw CLI::RuntimeError(status);
  });
}
