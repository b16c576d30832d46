#include "deviceplugin/host/allocation_store.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {
namespace {

constexpr std::string_view kIdPrefix = "pod-";

std::string FreshId() {
  uint64_t random[2] = {};
  if (getrandom(random, sizeof random, 0) != sizeof random)
    random[0] = static_cast<uint64_t>(absl::GetCurrentTimeNanos());
  return absl::StrFormat("%s%x-%016x", kIdPrefix, absl::ToUnixSeconds(absl::Now()), random[0]);
}

std::string Describe(const std::string& id, std::span<const std::string> device_ids) {
  std::map<std::string, int> units;
  for (const std::string& text : device_ids) {
    if (auto device = ParseDeviceId(text); device.ok()) ++units[device->uuid];
  }
  nlohmann::json gpus = nlohmann::json::array();
  for (const auto& [uuid, count] : units) gpus.push_back({{"uuid", uuid}, {"units", count}});
  return nlohmann::json{{"version", 1},
                        {"id", id},
                        {"gpus", gpus},
                        {"created", absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone())},
                        {"devices", device_ids}}
             .dump() +
         "\n";
}

// Mode 0755 whatever the umask: the container's user is seldom root.
absl::Status MakeOpenDir(const std::string& directory, bool may_exist) {
  if (mkdir(directory.c_str(), 0755) != 0 && !(may_exist && errno == EEXIST)) {
    return ErrnoError("make directory", directory, errno);
  }
  return chmod(directory.c_str(), 0755) == 0 ? absl::OkStatus() : ErrnoError("change mode of", directory, errno);
}

// Sorted; empty if the file is missing or truncated.
std::vector<std::string> DevicesIn(const std::string& file) {
  std::vector<std::string> ids;
  auto text = ReadFile(file, 1 << 20);
  if (!text.ok()) return ids;
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object() || !json.contains("devices") || !json["devices"].is_array()) return ids;
  for (const auto& id : json["devices"]) {
    if (id.is_string()) ids.push_back(id.get<std::string>());
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

absl::Status AllocationStore::Prepare() const { return MakeDirs(root_); }

absl::Status AllocationStore::Label(const std::string& directory) const {
  std::string error;
  if (!SetContainerLabel(directory, label_, &error)) return absl::PermissionDeniedError(error);
  for (const char* name : {SLUICE_ALLOCATION_FILE, SLUICE_SOCKET_NAME}) {
    const std::string path = StrCat(directory, "/", name);
    struct stat st;
    if (lstat(path.c_str(), &st) != 0) continue;
    if (!SetContainerLabel(path, label_, &error)) return absl::PermissionDeniedError(error);
  }
  return absl::OkStatus();
}

absl::StatusOr<Allocation> AllocationStore::Create(const Grant& grant) const {
  Allocation out;
  out.id = FreshId();
  out.directory = StrCat(root_, "/", out.id);
  absl::Status status = MakeOpenDir(out.directory, /*may_exist=*/false);
  if (absl::IsAlreadyExists(status)) return status;
  // Before the agent sees the file: it gives its socket the folder's label.
  if (status.ok()) status = Label(out.directory);
  // The rename makes the file appear complete.
  if (status.ok()) {
    status = WriteFileAtomically(StrCat(out.directory, "/", SLUICE_ALLOCATION_FILE), Describe(out.id, grant.ids),
                                 Durable::kNo);
  }
  if (status.ok()) status = Label(out.directory);
  if (!status.ok()) {
    (void)RemoveTree(out.directory);
    return status;
  }
  out.device_ids = grant.ids;
  out.modified = std::chrono::system_clock::now();
  return out;
}

absl::StatusOr<bool> AllocationStore::Restore(const std::string& directory,
                                              std::span<const std::string> device_ids) const {
  const std::string id = directory.substr(directory.rfind('/') + 1);
  // After a change of allocDir, directories in the old folder are left alone.
  if (directory != StrCat(root_, "/", id) || !id.starts_with(kIdPrefix) || device_ids.empty()) return false;
  const std::string file = StrCat(directory, "/", SLUICE_ALLOCATION_FILE);
  if (!DevicesIn(file).empty()) {
    if (auto s = Label(directory); !s.ok()) return s;
    return false;
  }
  absl::Status status = MakeOpenDir(directory, /*may_exist=*/true);
  if (status.ok()) status = WriteFileAtomically(file, Describe(id, device_ids), Durable::kNo);
  if (status.ok()) status = Label(directory);
  if (!status.ok()) return status;
  return true;
}

absl::Status AllocationStore::Remove(std::string_view id) const {
  if (!id.starts_with(kIdPrefix) || id.find("/") != std::string::npos) {
    return absl::InvalidArgumentError(StrCat("'", id, "' is not an allocation of the device plugin"));
  }
  const std::string directory = StrCat(root_, "/", id);
  const std::string file = StrCat(directory, "/", SLUICE_ALLOCATION_FILE);
  if (unlink(file.c_str()) != 0 && errno != ENOENT) return ErrnoError("remove", file, errno);
  return RemoveTree(directory);
}

absl::StatusOr<std::vector<Allocation>> AllocationStore::List() const {
  auto names = ListDir(root_);
  if (!names.ok()) return names.status();
  std::vector<Allocation> out;
  for (const std::string& name : *names) {
    if (!name.starts_with(kIdPrefix)) continue;
    Allocation allocation{name, StrCat(root_, "/", name), {}, {}};
    struct stat st;
    if (stat(allocation.directory.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) continue;
    // The agent recreates its socket, which changes the directory's time. Only the description's own time is the
    // allocation's.
    const std::string file = StrCat(allocation.directory, "/", SLUICE_ALLOCATION_FILE);
    struct stat file_st;
    if (stat(file.c_str(), &file_st) == 0) st = file_st;
    allocation.modified = std::chrono::system_clock::from_time_t(st.st_mtime);
    allocation.device_ids = DevicesIn(file);
    out.push_back(std::move(allocation));
  }
  std::stable_sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.modified < b.modified; });
  return out;
}

}  // namespace sluice::deviceplugin
