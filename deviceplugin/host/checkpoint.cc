#include "deviceplugin/host/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "deviceplugin.pb.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {
namespace {

using Json = nlohmann::json;

absl::Status Unexpected(std::string_view what) {
  return absl::DataLossError(StrCat("kubelet's checkpoint is not as expected: ", what));
}

absl::Status AddIds(const Json& ids, std::vector<std::string>* out) {
  if (!ids.is_array()) return Unexpected("DeviceIDs is not made of arrays");
  for (const Json& id : ids) {
    if (!id.is_string()) return Unexpected("a device id is not a string");
    out->push_back(id.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadResponse(const std::string& encoded, CheckpointEntry* out) {
  std::string bytes;
  v1beta1::ContainerAllocateResponse response;
  if (!absl::Base64Unescape(encoded, &bytes) || !response.ParseFromString(bytes))
    return Unexpected("AllocResp cannot be decoded");
  for (const v1beta1::Mount& mount : response.mounts()) {
    if (mount.container_path() == SLUICE_CONTAINER_RUN_DIR) out->run_dir = mount.host_path();
    if (mount.container_path() == SLUICE_CONTAINER_LIB_DIR) out->lib_dir = mount.host_path();
  }
  for (const v1beta1::CDIDevice& device : response.cdi_devices()) out->cdi_names.push_back(device.name());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<CheckpointEntry>> ParseCheckpoint(std::string_view text) {
  const Json file = Json::parse(text, nullptr, false);
  if (!file.is_object() || !file.contains("Data") || !file["Data"].is_object())
    return Unexpected("no JSON object with Data");
  const Json& data = file["Data"];
  if (!data.contains("PodDeviceEntries")) return Unexpected("no PodDeviceEntries");
  std::vector<CheckpointEntry> out;
  const Json& entries = data["PodDeviceEntries"];
  if (entries.is_null()) return out;
  if (!entries.is_array()) return Unexpected("PodDeviceEntries is not an array");
  for (const Json& entry : entries) {
    for (const char* key : {"PodUID", "ContainerName", "ResourceName"}) {
      if (!entry.is_object() || !entry.contains(key) || !entry[key].is_string()) return Unexpected(StrCat("no ", key));
    }
    if (entry["ResourceName"] != SLUICE_RESOURCE) continue;
    CheckpointEntry container{entry["PodUID"], entry["ContainerName"], {}, "", "", {}};
    const Json ids = entry.value("DeviceIDs", Json());
    // An object by NUMA node since kubelet 1.20, a plain list before.
    if (ids.is_object()) {
      for (const auto& [node, list] : ids.items()) {
        if (auto s = AddIds(list, &container.device_ids); !s.ok()) return s;
      }
    } else if (auto s = AddIds(ids, &container.device_ids); !s.ok()) {
      return s;
    }
    std::sort(container.device_ids.begin(), container.device_ids.end());
    container.device_ids.erase(std::unique(container.device_ids.begin(), container.device_ids.end()),
                               container.device_ids.end());
    const Json response = entry.value("AllocResp", Json());
    if (!response.is_string()) return Unexpected("AllocResp is not a string");
    if (auto s = ReadResponse(response, &container); !s.ok()) return s;
    out.push_back(std::move(container));
  }
  return out;
}

absl::StatusOr<std::vector<CheckpointEntry>> ReadCheckpoint(const std::string& kubelet_dir) {
  auto text = ReadFile(StrCat(kubelet_dir, "/", kCheckpointName));
  if (!text.ok()) return text.status();
  return ParseCheckpoint(*text);
}

}  // namespace sluice::deviceplugin
