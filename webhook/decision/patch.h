// Writes JSON Patch operations (RFC 6902) for one pod as text. A pod of 200 containers needs thousands of values; to
// build them as JSON objects first took two thirds of the decision's time.
#ifndef SLUICE_WEBHOOK_DECISION_PATCH_H_
#define SLUICE_WEBHOOK_DECISION_PATCH_H_

#include <string>
#include <string_view>

namespace sluice::webhook {

// A string as JSON text.
std::string Quote(std::string_view text);
// An object with one member, whose value `json` is JSON text already.
std::string Pair(std::string_view name, std::string_view json);

class Patch {
 public:
  // The path is `pointer`, escaped by the caller, and `last`, escaped here. `json` is the value's text.
  void Add(std::string_view pointer, std::string_view last, std::string_view json) { Push("add", pointer, last, json); }
  void Replace(std::string_view pointer, std::string_view last, std::string_view json) {
    Push("replace", pointer, last, json);
  }
  void Remove(std::string_view pointer, std::string_view last) { Push("remove", pointer, last, {}); }
  // An item of a list. Later items move up, so that the last one is removed first.
  void Remove(std::string_view pointer, size_t index) { Remove(pointer, std::to_string(index)); }
  // Empty if there is no operation.
  std::string Dump() const { return text_.empty() ? std::string() : "[" + text_ + "]"; }

 private:
  // An empty `json`: the operation has no value.
  void Push(std::string_view op, std::string_view pointer, std::string_view last, std::string_view json);

  std::string text_;
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_PATCH_H_
