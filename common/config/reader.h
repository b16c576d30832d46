// The reader of every daemon's configuration file, which is YAML. A daemon names its keys in tables:
//
//   config::Load(path, config::Section({{"node", config::Text(&c.node)},
//                                       {"log", config::Section({{"level", config::Level(&c.log_level)}})}}), &error);
//
// Errors are sentences: "FILE:LINE: log.level: 'loud' is not accepted; accepted: error, warn, info, debug". Unknown
// keys, keys that are given twice and a second document are errors too. Pure, except Load. Any thread.
#ifndef SLUICE_COMMON_CONFIG_READER_H_
#define SLUICE_COMMON_CONFIG_READER_H_

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/log/log.h"

namespace sluice::config {

class Value;
// Checks and stores one value. It calls Refuse or Fail of the value where it is not accepted.
using Field = std::function<void(const Value&)>;
using Table = std::map<std::string, Field>;

// A value of the file with its key. For fields of a daemon's own.
class Value {
 public:
  // `key_mark`: where the key stands; for an entry of a list and for the file, that of the value.
  Value(YAML::Node node, std::string key, YAML::Mark key_mark)
      : node_(std::move(node)), key_(std::move(key)), key_mark_(key_mark) {}
  Value(const YAML::Node& node, std::string key) : Value(node, std::move(key), node.Mark()) {}

  const std::string& key() const { return key_; }               // "lending.mode", "clients[0].id"; empty: the file
  std::string Scalar(const std::string& accepted) const;        // refuses maps, lists and an absent value
  std::vector<Value> Items(const std::string& accepted) const;  // of a list; an absent value is an empty one
  bool IsAbsent() const { return node_.IsNull(); }
  void Read(const Table& table) const;  // of a map with these keys; an absent value is an empty one
  // Of a map with any keys: name and value.
  void ForEach(const std::function<void(const std::string&, const Value&)>& visit) const;

  // "KEY: 'VALUE' is not accepted; accepted: ACCEPTED".
  [[noreturn]] void Refuse(const std::string& accepted) const;
  // Any sentence, which names the key itself.
  [[noreturn]] void Fail(const std::string& sentence) const;

 private:
  YAML::Node node_;
  std::string key_;
  YAML::Mark key_mark_;
};

// False: `error` is the sentence, and the values that were stored are void. `name` is the file's, for errors.
bool Parse(const std::string& text, const std::string& name, const Field& file, std::string* error);
// The same for a file, which may be read again while the daemon runs.
bool Load(const std::string& path, const Field& file, std::string* error);

// The kinds of values. All but the lists and the section take one scalar.
Field Section(Table table);
Field Text(std::string* to);     // also the empty text
Field Name(std::string* to);     // not empty
Field Path(std::string* to);     // absolute
Field Address(std::string* to);  // to listen at (common/http/listen_address.h)
Field AddressOrNone(std::string* to);
Field Word(std::string* to, std::vector<std::string> words);  // one of these
Field Bool(bool* to);
Field Format(LogFormat* to);
Field Level(LogLevel* to);
Field Quantity(uint64_t* to);  // of bytes, above 0
Field QuantityOrZero(uint64_t* to);

// A list. `add` stores an entry; false: it is not accepted. `accepted` describes the list.
Field Each(std::string accepted, std::function<bool(const std::string&)> add);
// A list that replaces `to`, which an absent value leaves. Each entry has to pass `is_accepted`.
Field List(std::vector<std::string>* to);
Field List(std::vector<std::string>* to, std::string accepted, bool (*is_accepted)(const std::string&));
// A map of texts that replaces `to`, in the same way.
Field Map(std::map<std::string, std::string, std::less<>>* to);

// One of the words, stored as the value beside it.
template <typename T>
Field OneOf(T* to, std::vector<std::pair<std::string, T>> words) {
  std::string accepted;
  for (const auto& [word, value] : words) accepted += (accepted.empty() ? "" : ", ") + word;
  return [to, words = std::move(words), accepted](const Value& value) {
    const std::string text = value.Scalar(accepted);
    for (const auto& [word, stored] : words) {
      if (text == word) {
        *to = stored;
        return;
      }
    }
    value.Refuse(accepted);
  };
}

// A whole number within the bounds.
uint64_t ReadNumber(const Value& value, uint64_t low, uint64_t high, const std::string& unit);

// T: a number or a duration. `unit` is for the sentence: "milliseconds".
template <typename T>
Field Number(T* to, uint64_t low, uint64_t high, std::string unit = {}) {
  return [=](const Value& value) { *to = T(ReadNumber(value, low, high, unit)); };
}

}  // namespace sluice::config

#endif  // SLUICE_COMMON_CONFIG_READER_H_
