// Writes JSON Patch operations (RFC 6902) for one pod, as text: a pod of 200 containers needs thousands of values, and
// building them as objects first took two thirds of the decision's time.
#ifndef SLUICE_WEBHOOK_DECISION_PATCH_H_
#define SLUICE_WEBHOOK_DECISION_PATCH_H_

#include <string>
#include <string_view>

namespace sluice::webhook {

// JSON text of a string.
std::string Quote(std::string_view text);
// {"name":"value",...} of one pair.
std::string Pair(std::string_view name, std::string_view json);

class Patch {
 public:
  // `pointer` is escaped already except for `last`, which is escaped here. `json` is the value's text.
  void Add(std::string_view pointer, std::string_view last, std::string_view json) { Push("add", pointer, last, json); }
  void Replace(std::string_view pointer, std::string_view last, std::string_view json) {
    Push("replace", pointer, last, json);
  }
  // Empty where there is nothing to change.
  std::string Dump() const { return text_.empty() ? std::string() : "[" + text_ + "]"; }

 private:
  void Push(std::string_view op, std::string_view pointer, std::string_view last, std::string_view json);

  std::string text_;
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_PATCH_H_
