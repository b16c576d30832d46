#include "webhook/decision/manifest.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "webhook/decision/yaml_scalar.h"

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

constexpr std::string_view kTag = "tag:yaml.org,2002:";

bool IsQuoted(const YAML::Node& node) { return node.Tag() == "!" || node.Tag() == std::string(kTag) + "str"; }

Json Scalar(const YAML::Node& node) { return IsQuoted(node) ? Json(node.Scalar()) : ResolveScalar(node.Scalar()); }

bool IsMergeKey(const YAML::Node& key) {
  return key.IsScalar() && key.Scalar() == "<<" && (key.Tag() == "?" || key.Tag() == std::string(kTag) + "merge");
}

class Converter {
 public:
  explicit Converter(std::string& error) : error_(error) {}

  // `line`: the document's first line, from 0. nullopt: `error` says why.
  std::optional<Json> Convert(const YAML::Node& node, int line) {
    line_ = line;
    return Value(node, 0);
  }

 private:
  std::optional<Json> Fail(const YAML::Node& at, const std::string& what) {
    error_ = "line " + std::to_string(line_ + at.Mark().line + 1) + ": " + what;
    return std::nullopt;
  }

  std::optional<Json> Value(const YAML::Node& node, int depth) {
    if (++count_ > kMaxNodes || depth > kMaxDepth) {
      error_ = "the document is too large or too deep (aliases?)";
      return std::nullopt;
    }
    if (node.IsScalar()) return Scalar(node);
    if (node.IsSequence()) {
      Json out = Json::array();
      for (const YAML::Node& item : node) {
        auto value = Value(item, depth + 1);
        if (!value) return std::nullopt;
        out.push_back(std::move(*value));
      }
      return out;
    }
    return node.IsMap() ? Map(node, depth) : Json(nullptr);
  }

  std::optional<Json> Map(const YAML::Node& node, int depth) {
    Json out = Json::object();
    std::set<std::string> own;  // keys of this map, without those of `<<`
    for (const auto& pair : node) {
      if (IsMergeKey(pair.first)) {
        if (!Merge(pair.second, depth, out)) return std::nullopt;
        continue;
      }
      const auto key = Key(pair.first);
      if (!key) return std::nullopt;
      if (!own.insert(*key).second) return Fail(pair.first, "the key '" + *key + "' occurs twice");
      auto value = Value(pair.second, depth + 1);
      if (!value) return std::nullopt;
      out[*key] = std::move(*value);
    }
    return out;
  }

  // JSON's keys are strings: `yes: 1` has the key "true", and `0644: 1` the key "420".
  std::optional<std::string> Key(const YAML::Node& node) {
    const Json key = node.IsScalar() ? Scalar(node) : Json(nullptr);
    if (key.is_null()) {
      Fail(node, node.IsSequence() || node.IsMap() ? "a key is not a scalar" : "a key is null; accepted: a string");
      return std::nullopt;
    }
    return key.is_string() ? key.get<std::string>() : key.dump();
  }

  // go-yaml merges where `<<` stands: the values replace keys above it and are replaced by keys below it. Of several
  // maps the first wins.
  bool Merge(const YAML::Node& node, int depth, Json& out) {
    if (node.IsSequence()) {
      for (size_t i = node.size(); i > 0; --i) {
        if (!node[i - 1].IsMap()) return FailMerge(node);
        if (!Merge(node[i - 1], depth, out)) return false;
      }
      return true;
    }
    if (!node.IsMap()) return FailMerge(node);
    const auto value = Value(node, depth + 1);
    if (!value) return false;
    out.update(*value);
    return true;
  }

  bool FailMerge(const YAML::Node& node) {
    Fail(node, "the value of '<<' is not a map; accepted: a map, or a list of maps");
    return false;
  }

  std::string& error_;
  size_t count_ = 0;  // of all documents
  int line_ = 0;
};

bool Plain(const Json& value) { return !value.is_structured() || value.empty(); }

void Write(const Json& value, int indent, std::string& out) {
  const std::string pad(static_cast<size_t>(indent), ' ');
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      const bool bare = key.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./-_") ==
                            std::string::npos &&
                        !key.empty() && key.front() != '-' && ResolveScalar(key).is_string();
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
    Converter converter(error);
    for (const Document& document : Split(text)) {
      line = document.line;
      auto value = converter.Convert(YAML::Load(document.text), line);
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
