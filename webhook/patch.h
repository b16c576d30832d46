// Collects JSON Patch operations (RFC 6902) for one pod, and applies them for `sluice admit` and the tests.
#ifndef SLUICE_WEBHOOK_PATCH_H_
#define SLUICE_WEBHOOK_PATCH_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "webhook/pod.h"

namespace sluice::webhook {

class Patch {
 public:
  // `pointer` is escaped already except for `last`, which is escaped here.
  void Add(const std::string& pointer, std::string_view last, nlohmann::ordered_json value) {
    Push("add", pointer, last, std::move(value));
  }
  void Replace(const std::string& pointer, std::string_view last, nlohmann::ordered_json value) {
    Push("replace", pointer, last, std::move(value));
  }
  bool empty() const { return operations_.empty(); }
  std::string Dump() const { return operations_.empty() ? std::string() : operations_.dump(); }

 private:
  void Push(const char* op, const std::string& pointer, std::string_view last, nlohmann::ordered_json value) {
    std::string path = pointer + "/";
    for (const char c : last) {
      if (c == '~') {
        path += "~0";
      } else if (c == '/') {
        path += "~1";
      } else {
        path += c;
      }
    }
    operations_.push_back({{"op", op}, {"path", std::move(path)}, {"value", std::move(value)}});
  }

  nlohmann::ordered_json operations_ = nlohmann::ordered_json::array();
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_PATCH_H_
