#include "common/config/reader.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "common/http/listen_address.h"
#include "common/read_file.h"
#include "common/settings/settings.h"

namespace sluice::config {
namespace {

constexpr size_t kMaxShownBytes = 64;  // of a value in a sentence
constexpr const char* kQuantity = "a Kubernetes quantity of bytes, as 512Mi";

// Thrown within this file only, as yaml-cpp's own exceptions are.
struct Refusal : std::exception {
  Refusal(const YAML::Mark& at, std::string why) : line(at.line + 1), sentence(std::move(why)) {}
  int line;
  std::string sentence;
};

std::string Shown(const YAML::Node& node) {
  if (node.IsScalar()) return "'" + node.Scalar().substr(0, kMaxShownBytes) + "'";
  return node.IsSequence() ? "a list" : node.IsMap() ? "a map" : "no value";
}

std::string Joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

// Values become parts of JSON documents.
bool IsUtf8(const std::string& text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

bool IsMarker(std::string_view line, std::string_view marker) {
  return line.starts_with(marker) && (line.size() == marker.size() || std::isspace(line[marker.size()]) != 0);
}

bool IsContent(std::string_view line) {
  const size_t first = line.find_first_not_of(" \t\r");
  return first != std::string_view::npos && line[first] != '#';
}

// YAML::Load reads the first document alone, and YAML::LoadAll may never end (0.7). A line that begins with --- begins
// a document, and one that begins with ... ends one.
bool HasSeveralDocuments(std::string_view text) {
  bool has_begun = false, has_ended = false;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const bool is_begin = IsMarker(line, "---"), is_end = IsMarker(line, "...");
    const bool is_content = !is_begin && !is_end && !line.starts_with('%') && IsContent(line);
    if ((is_begin && has_begun) || ((is_begin || is_content) && has_ended)) return true;
    has_begun |= is_begin || is_content;
    has_ended |= is_end && has_begun;
  }
  return false;
}

Field Scalars(std::string accepted, std::function<bool(const std::string&)> store) {
  return [accepted = std::move(accepted), store = std::move(store)](const Value& value) {
    if (!store(value.Scalar(accepted))) value.Refuse(accepted);
  };
}

template <typename T>
Field Parsed(T* to, std::string accepted, std::optional<T> (*parse)(std::string_view)) {
  return Scalars(std::move(accepted), [to, parse](const std::string& text) {
    const std::optional<T> value = parse(text);
    if (value) *to = *value;
    return value.has_value();
  });
}

}  // namespace

std::string Value::Scalar(const std::string& accepted) const {
  if (!node_.IsScalar()) Refuse(accepted);
  if (!IsUtf8(node_.Scalar())) Refuse(accepted + ", in UTF-8");
  return node_.Scalar();
}

std::vector<Value> Value::Items(const std::string& accepted) const {
  if (!node_.IsSequence() && !node_.IsNull()) Refuse(accepted);
  std::vector<Value> out;
  for (size_t i = 0; i < node_.size(); ++i) out.emplace_back(node_[i], key_ + "[" + std::to_string(i) + "]");
  return out;
}

void Value::ForEach(const std::function<void(const std::string&, const Value&)>& visit) const {
  if (node_.IsNull()) return;
  if (!node_.IsMap()) Refuse("a map of keys and values");
  std::set<std::string> seen;
  for (const auto& item : node_) {
    const std::string& name = item.first.Scalar();
    const std::string key = key_.empty() ? name : key_ + "." + name;
    if (!IsUtf8(name)) throw Refusal(item.first.Mark(), key + ": this key is not UTF-8");
    if (!seen.insert(name).second) throw Refusal(item.first.Mark(), key + ": given twice");
    visit(name, Value(item.second, key, item.first.Mark()));
  }
}

void Value::Read(const Table& table) const {
  ForEach([&table](const std::string& name, const Value& value) {
    const auto field = table.find(name);
    if (field != table.end()) return field->second(value);
    std::vector<std::string> names;
    for (const auto& [known, unused] : table) names.push_back(known);
    throw Refusal(value.key_mark_, value.key_ + ": this key is unknown; accepted: " + Joined(names));
  });
}

void Value::Refuse(const std::string& accepted) const {
  Fail((key_.empty() ? "the file" : key_) + ": " + Shown(node_) + " is not accepted; accepted: " + accepted);
}

void Value::Fail(const std::string& sentence) const { throw Refusal(node_.Mark(), sentence); }

bool Parse(const std::string& text, const std::string& name, const Field& file, std::string* error) {
  if (HasSeveralDocuments(text)) {
    *error = name + ": the file has several documents; accepted: one";
    return false;
  }
  try {
    file(Value(YAML::Load(text), ""));
  } catch (const Refusal& refusal) {
    *error = name + ":" + std::to_string(refusal.line) + ": " + refusal.sentence;
    return false;
  } catch (const YAML::Exception& e) {
    *error = name + ":" + std::to_string(e.mark.line + 1) + ": not YAML: " + e.msg;
    return false;
  }
  return true;
}

bool Load(const std::string& path, const Field& file, std::string* error) {
  const auto text = ReadReloadedFile(path, *error);
  return text && Parse(*text, path, file, error);
}

Field Section(Table table) {
  return [table = std::move(table)](const Value& value) { value.Read(table); };
}

Field Text(std::string* to) {
  return [to](const Value& value) { *to = value.Scalar("a text"); };
}

Field Name(std::string* to) {
  return Scalars("a text that is not empty", [to](const std::string& text) { return !(*to = text).empty(); });
}

Field Path(std::string* to) {
  return Scalars("an absolute path", [to](const std::string& text) { return (*to = text).starts_with('/'); });
}

Field Address(std::string* to) {
  return Scalars(kListenAddressForms,
                 [to](const std::string& text) { return ParseListenAddress(*to = text).has_value(); });
}

Field AddressOrNone(std::string* to) {
  return Scalars(std::string(kListenAddressForms) + ", or an empty text for none", [to](const std::string& text) {
    return (*to = text).empty() || ParseListenAddress(text).has_value();
  });
}

Field Word(std::string* to, std::vector<std::string> words) {
  std::string accepted = Joined(words);
  return Scalars(std::move(accepted), [to, words = std::move(words)](const std::string& text) {
    return std::ranges::find(words, *to = text) != words.end();
  });
}

Field Bool(bool* to) {
  return Scalars("true, false", [to](const std::string& text) {
    return YAML::convert<bool>::decode(YAML::Node(text), *to);  // with YAML 1.1's other words
  });
}

Field Format(LogFormat* to) { return Parsed(to, "text, json", ParseLogFormat); }
Field Level(LogLevel* to) { return Parsed(to, "error, warn, info, debug", ParseLogLevel); }
Field Quantity(uint64_t* to) { return Parsed(to, kQuantity, settings::ParseQuantity); }
Field QuantityOrZero(uint64_t* to) {
  return Parsed<uint64_t>(to, std::string(kQuantity) + ", or 0", [](std::string_view text) {
    return text == "0" ? std::optional<uint64_t>(0) : settings::ParseQuantity(text);
  });
}

Field Each(std::string accepted, std::function<bool(const std::string&)> add) {
  return [accepted = std::move(accepted), add = std::move(add)](const Value& list) {
    for (const Value& entry : list.Items(accepted)) {
      if (!add(entry.Scalar(accepted))) entry.Refuse(accepted);
    }
  };
}

Field List(std::vector<std::string>* to) {
  return List(to, "a list of texts", [](const std::string&) { return true; });
}

Field List(std::vector<std::string>* to, std::string accepted, bool (*is_accepted)(const std::string&)) {
  return [to, fill = Each(std::move(accepted), [to, is_accepted](const std::string& text) {
                to->push_back(text);
                return is_accepted(text);
              })](const Value& list) {
    if (!list.IsAbsent()) to->clear();
    fill(list);
  };
}

Field Map(std::map<std::string, std::string, std::less<>>* to) {
  return [to](const Value& map) {
    if (!map.IsAbsent()) to->clear();
    map.ForEach([to](const std::string& name, const Value& value) { (*to)[name] = value.Scalar("a text"); });
  };
}

uint64_t ReadNumber(const Value& value, uint64_t low, uint64_t high, const std::string& unit) {
  const std::string accepted = "a whole number" + (unit.empty() ? "" : " of " + unit) + " from " + std::to_string(low) +
                               " to " + std::to_string(high);
  const std::string text = value.Scalar(accepted);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < low || number > high) value.Refuse(accepted);
  return number;
}

}  // namespace sluice::config
