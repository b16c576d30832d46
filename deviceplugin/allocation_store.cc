#include "deviceplugin/allocation_store.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "deviceplugin/files.h"
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

std::string Describe(const std::string& id, const Grant& grant) {
  nlohmann::json gpus = nlohmann::json::array();
  for (const GrantedCard& card : grant.cards) gpus.push_back({{"uuid", card.uuid}, {"units", card.units}});
  return nlohmann::json{{"version", 1},
                        {"id", id},
                        {"gpus", gpus},
                        {"created", absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone())},
                        {"devices", grant.ids}}
             .dump() +
         "\n";
}

}  // namespace

absl::Status AllocationStore::Prepare() const { return MakeDirs(root_); }

absl::StatusOr<Allocation> AllocationStore::Create(const Grant& grant) const {
  Allocation out;
  out.id = FreshId();
  out.directory = StrCat(root_, "/", out.id);
  if (mkdir(out.directory.c_str(), 0755) != 0) return ErrnoError("make directory", out.directory, errno);
  // 0755 whatever the umask: the container's user is seldom root.
  absl::Status status =
      chmod(out.directory.c_str(), 0755) == 0 ? absl::OkStatus() : ErrnoError("change mode of", out.directory, errno);
  // Complete for every reader by the rename, durable before the answer. Synced last and all at once: a journaling file
  // system commits all three with the first sync, where a sync before the rename would need a commit of its own. What a
  // crash in between leaves was given to nobody.
  const std::string file = StrCat(out.directory, "/", SLUICE_ALLOCATION_FILE);
  if (status.ok()) status = WriteFileAtomically(file, Describe(out.id, grant), Durable::kNo);
  if (status.ok()) status = SyncFile(file);
  if (status.ok()) status = SyncDir(out.directory);
  if (status.ok()) status = SyncDir(root_);
  if (!status.ok()) {
    (void)RemoveTree(out.directory);
    return status;
  }
  out.device_ids = grant.ids;
  out.modified = std::chrono::system_clock::now();
  return out;
}

absl::Status AllocationStore::Remove(std::string_view id) const {
  if (!id.starts_with(kIdPrefix) || id.find("/") != std::string::npos) {
    return absl::InvalidArgumentError(StrCat("'", id, "' is no allocation of the device plugin"));
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
    // The agent's socket comes and goes with the agent: only the description's own time is the allocation's.
    const std::string file = StrCat(allocation.directory, "/", SLUICE_ALLOCATION_FILE);
    struct stat file_st;
    if (stat(file.c_str(), &file_st) == 0) st = file_st;
    allocation.modified = std::chrono::system_clock::from_time_t(st.st_mtime);
    if (auto text = ReadFile(file, 1 << 20); text.ok()) {
      const auto json = nlohmann::json::parse(*text, nullptr, false);
      if (json.is_object() && json.contains("devices") && json["devices"].is_array()) {
        for (const auto& id : json["devices"]) {
          if (id.is_string()) allocation.device_ids.push_back(id.get<std::string>());
        }
        std::sort(allocation.device_ids.begin(), allocation.device_ids.end());
      }
    }
    out.push_back(std::move(allocation));
  }
  std::stable_sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.modified < b.modified; });
  return out;
}

}  // namespace sluice::deviceplugin
