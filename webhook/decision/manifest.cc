#include "webhook/decision/manifest.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace sluice::webhook {
namespace {

using Json = nlohmann::json;

// An alias can repeat a large subtree, and aliases of aliases multiply: both are bounded.
constexpr size_t kMaxNodes = 200000;
constexpr int kMaxDepth = 200;

// yaml-cpp recurses for each bracket, and its memory has no bound for a hundred thousand of them (found by fuzzing).
bool TooDeep(std::string_view text) {
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      depth = std::max(0, depth - 1);
    }
  }
  return false;
}

// One document of a text, and its first line.
struct Document {
  std::string text;
  int line;
};

// YAML::LoadAll never ends if a text begins with a comma (0.7; found by fuzzing), so this function splits the
// documents. A line that begins with --- or ... is always a marker.
std::vector<Document> Split(std::string_view text) {
  std::vector<Document> out(1);
  int line = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view one = text.substr(0, end == std::string_view::npos ? text.size() : end + 1);
    text.remove_prefix(one.size());
    const bool marker = (one.starts_with("---") || one.starts_with("...")) &&
                        (one.size() == 3 || one[3] == '\n' || one[3] == '\r' || one[3] == ' ' || one[3] == '\t');
    if (marker) out.push_back({{}, line});
    if (!marker || one[0] == '-') out.back().text += one;
    ++line;
  }
  return out;
}

bool OneOf(std::string_view text, std::initializer_list<std::string_view> list) {
  for (const std::string_view s : list) {
    if (s == text) return true;
  }
  return false;
}

Json Scalar(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str") return text;  // quoted
  if (OneOf(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (OneOf(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"})) return true;
  if (OneOf(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"})) return false;
  const char* begin = text.data();
  const char* end = begin + text.size();
  int64_t i = 0;
  if (const auto r = std::from_chars(begin, end, i); r.ec == std::errc{} && r.ptr == end) return i;
  if (text.find_first_not_of("0123456789+-.eE") == std::string::npos) {
    double d = 0;
    if (const auto r = std::from_chars(begin, end, d); r.ec == std::errc{} && r.ptr == end) return d;
  }
  return text;
}

std::optional<Json> Convert(const YAML::Node& node, int depth, size_t& count, std::string& error) {
  if (++count > kMaxNodes || depth > kMaxDepth) {
    error = "the document is too large or too deep (aliases?)";
    return std::nullopt;
  }
  if (node.IsScalar()) return Scalar(node);
  if (node.IsSequence()) {
    Json out = Json::array();
    for (const YAML::Node& item : node) {
      auto value = Convert(item, depth + 1, count, error);
      if (!value) return std::nullopt;
      out.push_back(std::move(*value));
    }
    return out;
  }
  if (node.IsMap()) {
    Json out = Json::object();
    for (const auto& pair : node) {
      if (!pair.first.IsScalar()) {
        error = "line " + std::to_string(pair.first.Mark().line + 1) + ": a key is not a scalar";
        return std::nullopt;
      }
      auto value = Convert(pair.second, depth + 1, count, error);
      if (!value) return std::nullopt;
      if (!out.emplace(pair.first.Scalar(), std::move(*value)).second) {
        error = "line " + std::to_string(pair.first.Mark().line + 1) + ": the key '" + pair.first.Scalar() +
                "' occurs twice";
        return std::nullopt;
      }
    }
    return out;
  }
  return Json(nullptr);
}

bool Plain(const Json& value) { return !value.is_structured() || value.empty(); }

void Write(const Json& value, int indent, std::string& out) {
  const std::string pad(static_cast<size_t>(indent), ' ');
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      const bool bare = key.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./-_") ==
                            std::string::npos &&
                        !key.empty() && key.front() != '-' && Scalar(YAML::Node(key)).is_string();
      out += pad + (bare ? key : Json(key).dump()) + ":";
      if (Plain(member)) {
        out += " " + member.dump() + "\n";
      } else {
        out += "\n";
        Write(member, member.is_array() ? indent : indent + 2, out);
      }
    }
    return;
  }
  for (const Json& item : value) {
    if (Plain(item)) {
      out += pad + "- " + item.dump() + "\n";
      continue;
    }
    std::string block;
    Write(item, indent + 2, block);
    block[static_cast<size_t>(indent)] = '-';
    out += block;
  }
}

}  // namespace

std::optional<std::vector<Json>> ReadManifests(std::string_view text, std::string& error) {
  std::vector<Json> out;
  if (TooDeep(text)) {
    error = "nested deeper than " + std::to_string(kMaxDepth);
    return std::nullopt;
  }
  int line = 0;
  try {  // yaml-cpp reports by exceptions
    size_t count = 0;
    for (const Document& document : Split(text)) {
      line = document.line;
      auto value = Convert(YAML::Load(document.text), 0, count, error);
      if (!value) return std::nullopt;
      if (!value->is_null()) out.push_back(std::move(*value));
    }
    (void)Json(out).dump();  // throws where a string is not UTF-8
  } catch (const Json::exception&) {
    error = "the text is not UTF-8";
    return std::nullopt;
  } catch (const YAML::Exception& e) {
    error = "line " + std::to_string(line + e.mark.line + 1) + ": " + e.msg;
    return std::nullopt;
  }
  return out;
}

std::string WriteManifest(const Json& json) {
  if (Plain(json)) return json.dump() + "\n";
  std::string out;
  Write(json, 0, out);
  return out;
}

}  // namespace sluice::webhook
