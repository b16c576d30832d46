#include "cli/visible_devices.h"

#include <algorithm>
#include <charconv>

#include "cli/agent_connection.h"
#include "cli/paths.h"
#include "cli/text.h"

namespace sluice::cli {
namespace {

constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";
constexpr int kRefused = 2;  // as for a wrong flag

std::vector<std::string> Entries(const std::string& value) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin <= value.size();) {
    const std::size_t end = std::min(value.find(',', begin), value.size());
    std::string entry = value.substr(begin, end - begin);
    entry.erase(0, std::min(entry.find_first_not_of(" \t"), entry.size()));
    entry.erase(entry.find_last_not_of(" \t") + 1);
    out.push_back(std::move(entry));
    begin = end + 1;
  }
  return out;
}

// CUDA takes the beginning of a UUID where one GPU alone begins so. Empty: the entry names no GPU of the node.
std::string Find(const std::string& entry, const std::vector<std::string>& node) {
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (error == std::errc() && end == entry.data() + entry.size()) return index < node.size() ? node[index] : "";
  if (!entry.starts_with("GPU-")) return {};
  std::string found;
  for (const std::string& uuid : node) {
    if (!uuid.starts_with(entry)) continue;
    if (!found.empty()) return {};
    found = uuid;
  }
  return found;
}

}  // namespace

VisibleDevices ReadVisibleDevices(const char* value, const std::vector<std::string>& node) {
  VisibleDevices out;
  if (value == nullptr || node.empty()) return out;
  for (const std::string& entry : Entries(value)) {
    if (entry.empty() || entry.starts_with('-')) break;
    const std::string uuid = Find(entry, node);
    if (uuid.empty() || std::find(out.uuids.begin(), out.uuids.end(), uuid) != out.uuids.end()) {
      Fail(kRefused, std::string(kVariable) + ": '" + Printable(value) +
                         "' is not accepted; accepted: different GPUs of 0 to " + std::to_string(node.size() - 1) +
                         " or of " + Join(node, ", ") + "; -1 for none");
    }
    out.uuids.push_back(uuid);
  }
  out.hides_all = out.uuids.empty();
  return out;
}

std::vector<std::string> RequestedGpus(const VisibleDevices& visible, const char* value, const std::string& gpu,
                                       std::size_t count, const std::string& by) {
  const bool by_uuid = gpu != "auto" && gpu != "sim";
  if (visible.uuids.empty()) return by_uuid ? std::vector<std::string>{gpu} : std::vector<std::string>{};
  const std::string shown = std::string(kVariable) + "='" + Printable(value) + "'";
  if (by_uuid) {
    if (std::find(visible.uuids.begin(), visible.uuids.end(), gpu) == visible.uuids.end())
      Fail(kRefused, shown + " beside --gpu '" + gpu + "' is not accepted; accepted: " + Join(visible.uuids, ", "));
    return {gpu};
  }
  if (visible.uuids.size() < count) {
    Fail(kRefused, shown + " beside " + by + " " + std::to_string(count) + " is not accepted; accepted: " + by +
                       " up to " + std::to_string(visible.uuids.size()));
  }
  // A program with one GPU of a longer list takes the first.
  return {visible.uuids.begin(), visible.uuids.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace sluice::cli
