#include "agent/allocation_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "agent/printable.h"
#include "sluice/names.h"
#include "sluice/wire.h"

namespace sluice::agent {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBytes = size_t{256} << 10;

std::string Text(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? Printable(it->get<std::string>()) : std::string();
}

bool ReadGpus(const Json& object, AllocationSpec* spec, std::string* error) {
  const auto gpus = object.find("gpus");
  if (gpus == object.end() || !gpus->is_array() || gpus->empty() || gpus->size() > SLUICE_MAX_GPUS) {
    *error = "gpus: a list of 1 to " + std::to_string(SLUICE_MAX_GPUS) + " GPUs is expected";
    return false;
  }
  for (const Json& g : *gpus) {
    const std::string uuid = g.is_object() ? Text(g, "uuid") : std::string();
    const auto units = g.is_object() ? g.find("units") : g.end();
    const bool whole = g.is_object() && units != g.end() && units->is_number_unsigned();
    const uint64_t n = whole ? units->get<uint64_t>() : 0;
    if (uuid.empty() || uuid.size() >= SLUICE_UUID_CHARS || n < 1 || n > SLUICE_UNITS_PER_GPU) {
      *error = "gpus: each needs a uuid and units from 1 to " + std::to_string(SLUICE_UNITS_PER_GPU);
      return false;
    }
    spec->gpus.push_back({uuid, static_cast<uint32_t>(n)});
  }
  return true;
}

}  // namespace

bool IsAllocationId(const std::string& id) {
  if (id.empty() || id.size() > 63 || id[0] == '.') return false;
  for (const char c : id) {
    const bool ok =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    if (!ok) return false;
  }
  return true;
}

bool ParseAllocation(const std::string& text, AllocationSpec* spec, std::string* error) {
  *spec = {};
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded() || !object.is_object()) {
    *error = "not a JSON object";
    return false;
  }
  const auto version = object.find("version");
  if (version == object.end() || !version->is_number_integer() || version->get<int64_t>() != 1) {
    *error = "version: 1 is expected";
    return false;
  }
  spec->id = Text(object, "id");
  if (!IsAllocationId(spec->id)) {
    *error = "id: '" + spec->id.substr(0, 64) + "' is not accepted; accepted: 1 to 63 letters, digits, '-', '_', '.'";
    return false;
  }
  if (!ReadGpus(object, spec, error)) return false;
  spec->pod = Text(object, "pod");
  spec->ns = Text(object, "namespace");
  spec->container = Text(object, "container");
  if (const auto claim = object.find("claim"); claim != object.end() && claim->is_object())
    spec->claim = Text(*claim, "name");
  const auto tied = object.find("tied");
  spec->tied = tied != object.end() && tied->is_boolean() && tied->get<bool>();
  const auto owner = object.find("owner");
  if (owner != object.end() && owner->is_number_integer()) spec->owner = owner->get<int64_t>();
  const auto devices = object.find("devices");
  if (devices != object.end() && devices->is_array()) {
    for (const Json& d : *devices) {
      if (d.is_string()) spec->devices.push_back(d.get<std::string>());
    }
  }
  const auto settings = object.find("settings");
  if (settings == object.end() || settings->is_null()) return true;
  if (!settings->is_object()) {
    *error = "settings: an object is expected";
    return false;
  }
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : settings->items()) {
    if (!value.is_string()) {
      *error = "settings." + key + ": a string is expected";
      return false;
    }
    values[key] = value.get<std::string>();
  }
  settings::Parsed parsed = settings::ParseAll(values, "settings.");
  if (!parsed.ok()) {
    *error = parsed.errors.front();
    return false;
  }
  spec->settings = parsed.settings;
  return true;
}

bool ReadRegularFile(const std::string& path, std::string* text, std::string* error) {
  // O_NONBLOCK: a FIFO has no writer, and opening it would wait for one.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat st{};
  if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    *error = path + ": " + (fd < 0 ? "cannot be read: " + std::string(std::strerror(errno)) : "is no plain file");
    if (fd >= 0) close(fd);
    return false;
  }
  text->resize(kMaxBytes + 1);
  size_t size = 0;
  for (ssize_t n = 1; n > 0 && size < text->size(); size += n > 0 ? static_cast<size_t>(n) : 0) {
    n = read(fd, text->data() + size, text->size() - size);
  }
  close(fd);
  text->resize(size);
  if (size <= kMaxBytes) return true;
  *error = path + ": larger than 256 KiB";
  return false;
}

bool ReadAllocation(const std::string& path, AllocationSpec* spec, std::string* error) {
  std::string text;
  if (!ReadRegularFile(path, &text, error)) return false;
  if (ParseAllocation(text, spec, error)) return true;
  *error = path + ": " + *error;
  return false;
}

std::string WriteAllocation(const AllocationSpec& spec) {
  Json object;
  object["version"] = 1;
  object["id"] = spec.id;
  object["gpus"] = Json::array();
  for (const GpuUnits& g : spec.gpus) object["gpus"].push_back({{"uuid", g.uuid}, {"units", g.units}});
  char now[32];
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&t, &utc);
  std::strftime(now, sizeof(now), "%Y-%m-%dT%H:%M:%SZ", &utc);
  object["created"] = now;
  object["settings"] = settings::Format(spec.settings);
  object["pod"] = spec.pod;
  object["namespace"] = spec.ns;
  object["container"] = spec.container;
  if (spec.tied) object["tied"] = true;
  if (spec.owner > 0) object["owner"] = spec.owner;
  return object.dump() + "\n";
}

}  // namespace sluice::agent
