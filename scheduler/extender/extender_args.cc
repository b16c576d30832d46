#include "scheduler/extender/extender_args.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"

namespace sluice::scheduler {
namespace {

using Json = nlohmann::json;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Walks over JSON without building a document: for a thousand names that costs more than all decisions about them.
// Checks only the structure that it returns; its users parse the members' values.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  // Skips white space and then the expected character. False: another character follows.
  bool Consume(char expected) {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
    if (at_ >= text_.size() || text_[at_] != expected) return false;
    ++at_;
    return true;
  }

  // A string without its quotes. Escapes are left as they are and set `escaped`.
  std::optional<std::string_view> String(bool& escaped) {
    if (!Consume('"')) return std::nullopt;
    const std::size_t begin = at_;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') return text_.substr(begin, at_++ - begin);
      // Non-ASCII text is left to the full parser, which checks its UTF-8.
      if (c == '\\' || static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x80) escaped = true;
      if (c == '\\') ++at_;
    }
    return std::nullopt;
  }

  std::optional<std::string_view> Value() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
    const std::size_t begin = at_;
    bool escaped = false;
    for (int depth = 0; at_ < text_.size();) {
      const char c = text_[at_];
      if (c == '"') {
        if (!String(escaped)) return std::nullopt;
        if (depth == 0) break;
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}' || c == ']')) break;
      ++at_;
      if (c == '{' || c == '[') ++depth;
      if ((c == '}' || c == ']') && --depth == 0) break;
    }
    if (at_ == begin) return std::nullopt;
    return text_.substr(begin, at_ - begin);
  }

  bool AtEnd() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
    return at_ == text_.size();
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

struct Members {
  std::string_view pod, names;
};

std::optional<Members> FindMembers(std::string_view body) {
  Scanner scanner(body);
  Members members;
  if (!scanner.Consume('{')) return std::nullopt;
  if (scanner.Consume('}')) return scanner.AtEnd() ? std::optional(members) : std::nullopt;
  do {
    bool escaped = false;
    const auto key = scanner.String(escaped);
    if (!key || !scanner.Consume(':')) return std::nullopt;
    const auto value = scanner.Value();
    if (!value) return std::nullopt;
    if (*key == "Pod") members.pod = *value;
    if (*key == "NodeNames") members.names = *value;
  } while (scanner.Consume(','));
  if (!scanner.Consume('}') || !scanner.AtEnd()) return std::nullopt;
  return members;
}

// The strings of an array. nullopt: not all are plain strings, use the full parser.
std::optional<std::vector<std::string_view>> PlainNames(std::string_view text) {
  Scanner scanner(text);
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
