#include "scheduler/extender/extender_args.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "scheduler/extender/json_scanner.h"

namespace sluice::scheduler {
namespace {

using Json = nlohmann::json;

struct Members {
  std::string_view pod, names;
};

std::optional<Members> FindMembers(std::string_view body) {
  Members members;
  const bool read = ForEachMember(body, [&members](std::string_view key, std::string_view value) {
    if (key == "Pod") members.pod = value;
    if (key == "NodeNames") members.names = value;
  });
  return read ? std::optional(members) : std::nullopt;
}

// The strings of an array. nullopt: not all are plain strings, use the full parser.
std::optional<std::vector<std::string_view>> PlainNames(std::string_view text) {
  JsonScanner scanner(text);
  std::vector<std::string_view> names;
  if (!scanner.Consume('[')) return std::nullopt;
  if (scanner.Consume(']')) return names;
  do {
    bool escaped = false;
    const auto name = scanner.String(escaped);
    if (!name || escaped) return std::nullopt;
    names.push_back(*name);
  } while (scanner.Consume(','));
  if (!scanner.Consume(']') || !scanner.AtEnd()) return std::nullopt;
  return names;
}

absl::Status Bad(const char* what) { return absl::InvalidArgumentError(what); }

}  // namespace

absl::StatusOr<ExtenderArgs> ReadExtenderArgs(std::string_view body) {
  const auto members = FindMembers(body);
  if (!members) return Bad("the body is no JSON object");
  const Json pod = Json::parse(members->pod, nullptr, /*allow_exceptions=*/false);
  if (!pod.is_object()) return Bad("Pod is missing");
  ExtenderArgs args{.pod = ReadPod(pod), .claims = ReadPodClaims(pod)};
  if (auto plain = PlainNames(members->names)) {
    args.nodes = *std::move(plain);
    return args;
  }
  const Json names = Json::parse(members->names, nullptr, /*allow_exceptions=*/false);
  if (!names.is_array()) {
    return Bad("NodeNames is missing: the extender's configuration needs nodeCacheCapable: true");
  }
  for (const Json& name : names) {
    if (!name.is_string()) return Bad("NodeNames holds something that is no string");
    args.unescaped.push_back(name);
  }
  args.nodes.assign(args.unescaped.begin(), args.unescaped.end());
  return args;
}

void AppendJsonString(std::string_view text, std::string& out) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x80 && c != '"' && c != '\\';
  });
  if (plain) {
    out.append(1, '"').append(text).append(1, '"');
  } else {
    out += Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

}  // namespace sluice::scheduler
