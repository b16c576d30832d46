#include "deviceplugin/host/cdi.h"

#include <sys/stat.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFilePrefix = "sluice.dev-gpu_";
constexpr std::string_view kFileSuffix = ".json";
constexpr const char* kControlNodes[] = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"};
// Matched by stem, because the version behind ".so" differs with the driver.
constexpr const char* kLibraries[] = {"libcuda.so",
                                      "libnvidia-ml.so",
                                      "libnvidia-ptxjitcompiler.so",
                                      "libnvidia-nvvm.so",
                                      "libnvidia-nvvm70.so",
                                      "libnvidia-gpucomp.so",
                                      "libcudadebugger.so",
                                      "libnvidia-pkcs11.so",
                                      "libnvidia-pkcs11-openssl3.so",
                                      "libnvidia-sandboxutils.so",
                                      "libnvcuvid.so",
                                      "libnvidia-encode.so",
                                      "libnvidia-opticalflow.so"};
#if defined(__aarch64__)
constexpr const char* kLibraryDirs[] = {"/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64", "/lib"};
constexpr const char* kContainerLibraryDirs[] = {"/usr/lib/aarch64-linux-gnu", "/usr/lib64"};
#else
constexpr const char* kLibraryDirs[] = {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64", "/lib"};
constexpr const char* kContainerLibraryDirs[] = {"/usr/lib/x86_64-linux-gnu", "/usr/lib64"};
#endif

bool Exists(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0;
}

Json Node(const std::string& container, const std::string& host) {
  Json node = {{"path", container}, {"permissions", "rw"}};
  if (container != host) node["hostPath"] = host;
  return node;
}

absl::Status Bad(std::string_view where, std::string_view what) {
  return absl::InvalidArgumentError(StrCat("CDI spec: ", where, ": ", what));
}

bool IsNamePart(std::string_view text, std::string_view inner) {
  if (text.empty() || !std::isalnum(static_cast<unsigned char>(text.front())) ||
      !std::isalnum(static_cast<unsigned char>(text.back()))) {
    return false;
  }
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || inner.find(c) != std::string_view::npos;
  });
}

bool IsPath(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_string() && object[key].get<std::string>().starts_with("/");
}

absl::Status CheckKeys(const Json& object, std::string_view where, std::initializer_list<std::string_view> known) {
  if (!object.is_object()) return Bad(where, "is not an object");
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) return Bad(where, StrCat("unknown member ", key));
  }
  return absl::OkStatus();
}

absl::Status CheckEdits(const Json& edits, const std::string& where, bool may_be_empty) {
  if (auto s = CheckKeys(edits, where, {"env", "deviceNodes", "mounts", "hooks", "intelRdt", "additionalGids"});
      !s.ok()) {
    return s;
  }
  if (edits.empty() && !may_be_empty) return Bad(where, "has no edit");
  for (const char* key : {"env", "deviceNodes", "mounts"}) {
    if (edits.contains(key) && !edits[key].is_array()) return Bad(where, StrCat(key, " is not an array"));
  }
  for (const Json& env : edits.value("env", Json::array())) {
    if (!env.is_string() || env.get<std::string>().find('=') == std::string::npos || env.get<std::string>()[0] == '=') {
      return Bad(where, "env entry is not NAME=VALUE");
    }
  }
  for (const Json& node : edits.value("deviceNodes", Json::array())) {
    if (auto s = CheckKeys(node, where + ".deviceNodes",
                           {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"});
        !s.ok()) {
      return s;
    }
    if (!IsPath(node, "path")) return Bad(where, "deviceNodes: path is not an absolute path");
    if (node.contains("hostPath") && !IsPath(node, "hostPath"))
      return Bad(where, "deviceNodes: hostPath is not an absolute path");
    const Json permissions = node.value("permissions", Json("rwm"));
    if (!permissions.is_string() || permissions.get<std::string>().find_first_not_of("rwm") != std::string::npos) {
      return Bad(where, "deviceNodes: permissions are not of r, w, m");
    }
  }
  for (const Json& mount : edits.value("mounts", Json::array())) {
    if (auto s = CheckKeys(mount, where + ".mounts", {"hostPath", "containerPath", "options", "type"}); !s.ok())
      return s;
    if (!IsPath(mount, "hostPath") || !IsPath(mount, "containerPath")) {
      return Bad(where, "mounts: hostPath and containerPath must be absolute paths");
    }
  }
  return absl::OkStatus();
}

}  // namespace

DriverFiles FindDriverFiles(const std::string& root, const std::string& dev_root) {
  DriverFiles out;
  for (const char* name : kControlNodes) {
    if (const std::string path = StrCat(dev_root, "/", name); Exists(path)) out.control_nodes.push_back(path);
  }
  std::vector<std::string> dirs;
  for (const char* dir : kLibraryDirs) dirs.push_back((root == "/" ? "" : root) + dir);
  dirs.push_back(root);
  for (const std::string& dir : dirs) {
    auto names = ListDir(dir);
    if (!names.ok() || !Exists(dir + "/libcuda.so.1")) continue;
    for (const std::string& name : *names) {
      const bool wanted = std::any_of(std::begin(kLibraries), std::end(kLibraries), [&](std::string_view stem) {
        // Matches libcuda.so.1 and libcuda.so.580.95.05, but not libcuda.so, which is for linking.
        return name.starts_with(stem) && name.size() > stem.size() && name[stem.size()] == '.';
      });
      if (!wanted) continue;
      std::error_code error;
      const std::string host = std::filesystem::canonical(dir + "/" + name, error).string();
      if (error) continue;
      for (const char* target : kContainerLibraryDirs) out.libraries.push_back({StrCat(target, "/", name), host});
    }
    break;
  }
  return out;
}

std::string CdiFileName(std::string_view uuid) { return StrCat(kFilePrefix, uuid, kFileSuffix); }

std::string MakeCdiSpec(const Card& card, const DriverFiles& driver, const std::string& dev_root) {
  Json device_edits = Json::object();
  device_edits["deviceNodes"] =
      Json::array({Node(StrCat("/dev/nvidia", card.minor), StrCat(dev_root, "/nvidia", card.minor))});
  Json common = Json::object();
  for (const std::string& host : driver.control_nodes) {
    common["deviceNodes"].push_back(Node("/dev/" + std::filesystem::path(host).filename().string(), host));
  }
  for (const Mount& library : driver.libraries) {
    common["mounts"].push_back({{"hostPath", library.host_path},
                                {"containerPath", library.container_path},
                                {"options", {"ro", "nosuid", "nodev", "bind"}}});
  }
  Json spec = {{"cdiVersion", "0.6.0"},
               {"kind", kOwnCdiKind},
               {"devices", Json::array({{{"name", card.uuid}, {"containerEdits", device_edits}}})}};
  if (!common.empty()) spec["containerEdits"] = common;
  return spec.dump(1) + "\n";
}

absl::Status ValidateCdiSpec(std::string_view text) {
  const Json spec = Json::parse(text, nullptr, false);
  if (spec.is_discarded()) return Bad("file", "is not JSON");
  if (auto s = CheckKeys(spec, "file", {"cdiVersion", "kind", "annotations", "devices", "containerEdits"}); !s.ok())
    return s;
  const Json version = spec.value("cdiVersion", Json());
  if (!version.is_string() || !version.get<std::string>().starts_with("0."))
    return Bad("cdiVersion", "is not a 0.x version");
  const Json kind = spec.value("kind", Json());
  if (!kind.is_string()) return Bad("kind", "is missing");
  const std::string kind_text = kind.get<std::string>();
  const size_t slash = kind_text.find('/');
  if (slash == std::string::npos || !IsNamePart(std::string_view(kind_text).substr(0, slash), "._-") ||
      !IsNamePart(std::string_view(kind_text).substr(slash + 1), "_-")) {
    return Bad("kind", "is not vendor/class");
  }
  const Json devices = spec.value("devices", Json());
  if (!devices.is_array() || devices.empty()) return Bad("devices", "is not an array with entries");
  for (const Json& device : devices) {
    if (auto s = CheckKeys(device, "devices", {"name", "annotations", "containerEdits"}); !s.ok()) return s;
    const Json name = device.value("name", Json());
    if (!name.is_string() || !IsNamePart(name.get<std::string>(), "_-.:")) return Bad("devices", "name is not valid");
    if (!device.contains("containerEdits")) return Bad("devices", "containerEdits is missing");
    if (auto s = CheckEdits(device["containerEdits"], "devices.containerEdits", false); !s.ok()) return s;
  }
  return spec.contains("containerEdits") ? CheckEdits(spec["containerEdits"], "containerEdits", true)
                                         : absl::OkStatus();
}

bool MountsLibcuda(std::string_view text) {
  const Json spec = Json::parse(text, nullptr, false);
  if (!spec.is_object() || !spec.contains("containerEdits") || !spec["containerEdits"].is_object()) return false;
  const Json mounts = spec["containerEdits"].value("mounts", Json::array());
  return std::any_of(mounts.begin(), mounts.end(), [](const Json& mount) {
    return mount.is_object() && IsPath(mount, "containerPath") &&
           mount["containerPath"].get<std::string>().find("/libcuda.so") != std::string::npos;
  });
}

std::vector<std::string> ListCdiNames(const std::vector<std::string>& dirs) {
  std::vector<std::string> names;
  for (const std::string& dir : dirs) {
    auto files = ListDir(dir);
    if (!files.ok()) continue;
    for (const std::string& file : *files) {
      if (!file.ends_with(".json") && !file.ends_with(".yaml")) continue;
      auto text = ReadFile(dir + "/" + file, 4 << 20);
      if (!text.ok()) continue;
      try {  // yaml-cpp throws; JSON is YAML
        const YAML::Node spec = YAML::Load(*text);
        if (!spec.IsMap() || !spec["kind"] || !spec["kind"].IsScalar() || !spec["devices"]) continue;
        for (const YAML::Node& device : spec["devices"]) {
          if (device.IsMap() && device["name"] && device["name"].IsScalar())
            names.push_back(StrCat(spec["kind"].Scalar(), "=", device["name"].Scalar()));
        }
      } catch (const YAML::Exception&) {
        continue;
      }
    }
  }
  return names;
}

absl::StatusOr<int> SyncCdiSpecs(const std::string& dir, const std::vector<Card>& cards, const DriverFiles& driver,
                                 const std::string& dev_root, const std::vector<std::string>& keep, bool may_remove) {
  if (auto s = MakeDirs(dir); !s.ok()) return s;
  int changed = 0;
  std::vector<std::string> wanted;
  for (const Card& card : cards) {
    wanted.push_back(CdiFileName(card.uuid));
    if (card.minor < 0) continue;  // the card was not read now: its old spec stays
    const std::string path = StrCat(dir, "/", wanted.back());
    const std::string spec = MakeCdiSpec(card, driver, dev_root);
    if (auto s = ValidateCdiSpec(spec); !s.ok()) return s;
    // While the driver is absent (during an upgrade), the libraries must stay in a spec that is in use.
    if (auto old = ReadFile(path); old.ok()) {
      if (*old == spec || (driver.libraries.empty() && ValidateCdiSpec(*old).ok())) continue;
    }
    // Not synced: every start compares the specs again, and the folder is usually in memory.
    if (auto s = WriteFileAtomically(path, spec, Durable::kNo); !s.ok()) return s;
    ++changed;
  }
  if (!may_remove) return changed;
  for (const std::string& name : keep) {
    const size_t at = name.find('=');
    if (at != std::string::npos && name.substr(0, at) == kOwnCdiKind)
      wanted.push_back(CdiFileName(name.substr(at + 1)));
  }
  auto files = ListDir(dir);
  if (!files.ok()) return files.status();
  for (const std::string& file : *files) {
    const bool temporary = file.starts_with(StrCat(".", kFilePrefix)) && file.ends_with(".tmp");
    const bool ours = file.starts_with(kFilePrefix) && file.ends_with(kFileSuffix);
    if (!temporary && (!ours || std::find(wanted.begin(), wanted.end(), file) != wanted.end())) continue;
    if (auto s = RemoveTree(dir + "/" + file); !s.ok()) return s;
    ++changed;
  }
  return changed;
}

}  // namespace sluice::deviceplugin
