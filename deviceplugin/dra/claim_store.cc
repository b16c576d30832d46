#include "deviceplugin/dra/claim_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "deviceplugin/host/cdi.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin::dra {
namespace {

using Json = nlohmann::json;

constexpr char kFilePrefix[] = "sluice.dev-claim_";
// The checkpoint of a claim for monitoring alone. It has no share, so that the agent must find no allocation.json.
constexpr char kMonitoringFile[] = "claim.json";

absl::Status Wrong(std::string_view member) {
  return absl::InvalidArgumentError(StrCat("allocation.json: ", member, " is missing or wrong"));
}

std::optional<DriverAccess> ParseAccess(const std::string& text) {
  for (const auto access : {DriverAccess::kNvidiaCdi, DriverAccess::kNvidiaRuntime, DriverAccess::kOwn}) {
    if (ToString(access) == text) return access;
  }
  return std::nullopt;
}

std::string CardName(DriverAccess access, const std::string& uuid) {
  if (access == DriverAccess::kNvidiaCdi) return StrCat(kNvidiaCdiKind, "=", uuid);
  if (access == DriverAccess::kOwn) return StrCat(kOwnCdiKind, "=", uuid);
  return "";
}

// Mode 0755 whatever the umask: the container's user is seldom root.
absl::Status MakeOpenDir(const std::string& directory) {
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) return ErrnoError("make directory", directory, errno);
  return chmod(directory.c_str(), 0755) == 0 ? absl::OkStatus() : ErrnoError("change mode of", directory, errno);
}

absl::Status Label(const std::string& path, const std::string& label) {
  std::string error;
  return SetContainerLabel(path, label, &error) ? absl::OkStatus() : absl::PermissionDeniedError(error);
}

}  // namespace

bool IsClaimUid(std::string_view uid) {
  return !uid.empty() && uid.size() + kClaimIdPrefix.size() <= 63 && uid.front() != '-' && uid.back() != '-' &&
         std::ranges::all_of(uid, [](unsigned char c) { return std::isalnum(c) || c == '-'; });
}

std::string ClaimId(std::string_view uid) { return StrCat(kClaimIdPrefix, uid); }

std::vector<std::string> CdiNames(const PreparedClaim& claim, const ClaimDevice& device) {
  std::vector<std::string> out;
  // NVIDIA's runtime reads a variable, which the claim's device sets for monitoring too.
  if (!device.admin || claim.access == DriverAccess::kNvidiaRuntime) {
    out.push_back(StrCat(kClaimCdiKind, "=", claim.share.claim.uid));
  }
  if (std::string card = CardName(claim.access, device.uuid); !card.empty()) out.push_back(std::move(card));
  return out;
}

std::string MakeClaimSpec(const PreparedClaim& claim, const std::string& run_dir) {
  Json edits = Json::object();
  Grant grant;
  grant.cards = claim.share.cards;
  const ContainerResponse response = MakeResponse({&grant, claim.access, claim.lib_dir, run_dir});
  std::map<std::string, std::string> envs = response.envs;
  if (grant.cards.empty()) {  // for monitoring: the hook stays out
    envs = {};
  } else {
    if (!claim.share.preload.empty()) envs["LD_PRELOAD"] += ":" + claim.share.preload;
    envs[SLUICE_ENV_GPU_FRACTION] = settings::FormatFraction(static_cast<uint32_t>(grant.cards.front().units));
    for (const auto& [name, value] : settings::Format(claim.share.settings)) {
      if (const auto* key = settings::Find(name); !key->variable.empty()) envs[std::string(key->variable)] = value;
    }
    edits["mounts"] = Json::array();
    for (const Mount& mount : response.mounts) {
      edits["mounts"].push_back({{"hostPath", mount.host_path},
                                 {"containerPath", mount.container_path},
                                 {"options", {"ro", "nosuid", "nodev", "bind"}}});
    }
  }
  std::string uuids;
  for (const ClaimDevice& device : claim.share.devices) {
    if (uuids.find(device.uuid) == std::string::npos) uuids += (uuids.empty() ? "" : ",") + device.uuid;
  }
  envs["NVIDIA_VISIBLE_DEVICES"] = claim.access == DriverAccess::kNvidiaRuntime ? uuids : "void";
  edits["env"] = Json::array();
  for (const auto& [name, value] : envs) edits["env"].push_back(StrCat(name, "=", value));
  const Json spec = {{"cdiVersion", "0.6.0"},
                     {"kind", kClaimCdiKind},
                     {"devices", Json::array({{{"name", claim.share.claim.uid}, {"containerEdits", edits}}})}};
  return spec.dump(1) + "\n";
}

std::string MakeAllocationFile(const PreparedClaim& claim) {
  const ClaimShare& share = claim.share;
  Json gpus = Json::array(), devices = Json::array();
  for (const GrantedCard& card : share.cards) gpus.push_back({{"uuid", card.uuid}, {"units", card.units}});
  for (const ClaimDevice& device : share.devices) {
    devices.push_back({{"request", device.request},
                       {"pool", device.pool},
                       {"device", device.device},
                       {"uuid", device.uuid},
                       {"admin", device.admin},
                       {"memory", device.memory},
                       {"compute", device.compute}});
  }
  const absl::Time made = absl::FromChrono(claim.made);
  return Json{{"version", 1},
              {"id", ClaimId(share.claim.uid)},
              {"gpus", gpus},
              {"created", absl::FormatTime(absl::RFC3339_sec, made, absl::UTCTimeZone())},
              {"settings", settings::Format(share.settings)},
              {"pod", share.pod},
              {"namespace", share.claim.name_space},
              {"container", share.container},
              {"claim",
               {{"uid", share.claim.uid},
                {"name", share.claim.name},
                {"devices", devices},
                {"preload", share.preload},
                {"access", ToString(claim.access)},
                {"library", claim.lib_dir}}}}
             .dump() +
         "\n";
}

absl::StatusOr<PreparedClaim> ParseAllocationFile(std::string_view text) {
  const Json file = Json::parse(text, nullptr, false);
  if (!file.is_object() || !file.contains("claim") || !file["claim"].is_object()) return Wrong("claim");
  PreparedClaim out;
  try {  // nlohmann throws for a member of another type
    const Json& claim = file["claim"];
    out.share.claim = {file.at("namespace"), claim.at("name"), claim.at("uid")};
    out.share.pod = file.at("pod");
    for (const Json& device : claim.at("devices")) {
      out.share.devices.push_back({device.at("request"), device.at("pool"), device.at("device"), "", device.at("uuid"),
                                   device.at("admin"), device.at("memory"), device.at("compute")});
    }
    for (const Json& gpu : file.at("gpus")) out.share.cards.push_back({gpu.at("uuid"), gpu.at("units"), -1});
    out.share.container = file.value("container", "");  // absent in files of earlier versions
    out.share.preload = claim.value("preload", "");
    out.lib_dir = claim.at("library");
    const auto access = ParseAccess(claim.at("access"));
    if (!access) return Wrong("claim.access");
    out.access = *access;
    const auto parsed = settings::ParseAll(file.at("settings").get<std::map<std::string, std::string>>(), "settings.");
    if (!parsed.ok()) return absl::InvalidArgumentError(parsed.errors.front());
    out.share.settings = parsed.settings;
    out.share.memory_bytes = parsed.settings.gpu_memory.value_or(0);
    absl::Time made;
    std::string error;
    if (!absl::ParseTime(absl::RFC3339_sec, file.at("created").get<std::string>(), &made, &error))
      return Wrong("created");
    out.made = absl::ToChronoTime(made);
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(StrCat("allocation.json: ", e.what()));
  }
  return out;
}

std::string ClaimStore::RunDir(std::string_view uid) const { return StrCat(alloc_dir_, "/", ClaimId(uid)); }

std::string ClaimStore::SpecPath(std::string_view uid) const {
  return StrCat(cdi_dir_, "/", kFilePrefix, uid, ".json");
}

absl::Status ClaimStore::Write(const PreparedClaim& claim) const {
  const std::string& uid = claim.share.claim.uid;
  const std::string directory = RunDir(uid);
  absl::Status status = MakeDirs(alloc_dir_);
  if (status.ok()) status = MakeOpenDir(directory);
  // Before the agent sees the file: it gives its socket the folder's label.
  if (status.ok()) status = Label(directory, label_);
  const std::string file = StrCat(directory, "/", claim.share.cards.empty() ? kMonitoringFile : SLUICE_ALLOCATION_FILE);
  // Not synced, as the device plugin's: after a power cut kubelet asks for every claim again.
  if (status.ok()) status = WriteFileAtomically(file, MakeAllocationFile(claim), Durable::kNo);
  if (status.ok()) status = Label(file, label_);
  if (status.ok()) {
    auto written = RestoreSpec(claim);
    status = written.status();
  }
  if (!status.ok()) (void)Remove(uid);
  return status;
}

absl::StatusOr<bool> ClaimStore::RestoreSpec(const PreparedClaim& claim) const {
  const std::string& uid = claim.share.claim.uid;
  const std::string path = SpecPath(uid), spec = MakeClaimSpec(claim, RunDir(uid));
  if (auto s = ValidateCdiSpec(spec); !s.ok()) return s;
  if (auto old = ReadFile(path); old.ok() && *old == spec) return false;
  if (auto s = MakeDirs(cdi_dir_); !s.ok()) return s;
  if (auto s = WriteFileAtomically(path, spec, Durable::kNo); !s.ok()) return s;
  return true;
}

absl::Status ClaimStore::Remove(std::string_view uid) const {
  if (!IsClaimUid(uid)) return absl::InvalidArgumentError(StrCat("'", uid, "' is no claim's uid"));
  const std::string directory = RunDir(uid), file = StrCat(directory, "/", SLUICE_ALLOCATION_FILE);
  if (unlink(file.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) return ErrnoError("remove", file, errno);
  const std::string spec = SpecPath(uid);
  if (unlink(spec.c_str()) != 0 && errno != ENOENT) return ErrnoError("remove", spec, errno);
  return RemoveTree(directory);
}

absl::StatusOr<ClaimStore::Listed> ClaimStore::List() const {
  Listed out;
  auto names = ListDir(alloc_dir_);
  if (absl::IsNotFound(names.status())) return out;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!name.starts_with(kClaimIdPrefix)) continue;
    const std::string uid = name.substr(kClaimIdPrefix.size());
    if (!IsClaimUid(uid)) continue;
    const std::string directory = StrCat(alloc_dir_, "/", name, "/");
    auto text = ReadFile(directory + SLUICE_ALLOCATION_FILE, 1 << 20);
    if (absl::IsNotFound(text.status())) text = ReadFile(directory + kMonitoringFile, 1 << 20);
    auto claim = text.ok() ? ParseAllocationFile(*text) : absl::StatusOr<PreparedClaim>(text.status());
    if (claim.ok() && claim->share.claim.uid == uid) {
      out.claims.push_back(*std::move(claim));
    } else {
      out.unreadable.push_back(uid);
    }
  }
  return out;
}

std::optional<std::map<std::string, int>> ClaimedUnits(const std::string& alloc_dir) {
  const auto listed = ClaimStore(alloc_dir, "", "").List();
  if (!listed.ok()) return std::nullopt;
  std::map<std::string, int> out;
  for (const PreparedClaim& claim : listed->claims) {
    for (const GrantedCard& card : claim.share.cards) out[card.uuid] += card.units;
  }
  for (auto& [uuid, units] : out) units = std::min(units, SLUICE_UNITS_PER_GPU);
  return out;
}

std::optional<ClaimHolds> ListClaimHolds(const std::string& alloc_dir) {
  const auto listed = ClaimStore(alloc_dir, "", "").List();
  // A damaged file may name any library.
  if (!listed.ok() || !listed->unreadable.empty()) return std::nullopt;
  ClaimHolds out;
  for (const PreparedClaim& claim : listed->claims) {
    out.libraries.insert(claim.lib_dir);
    for (const ClaimDevice& device : claim.share.devices) {
      if (std::string name = CardName(claim.access, device.uuid); !name.empty()) out.cdi_names.insert(std::move(name));
    }
  }
  return out;
}

}  // namespace sluice::deviceplugin::dra
