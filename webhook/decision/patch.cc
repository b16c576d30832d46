#include "webhook/decision/patch.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sluice::webhook {

std::string Quote(std::string_view text) {
  const bool plain =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 127 && c != '"' && c != '\\'; });
  if (!plain) return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size() + 2);
  out += '"';
  out += text;
  out += '"';
  return out;
}

std::string Pair(std::string_view name, std::string_view json) {
  std::string out = "{";
  out += Quote(name);
  out += ':';
  out += json;
  out += '}';
  return out;
}

void Patch::Push(std::string_view op, std::string_view pointer, std::string_view last, std::string_view json) {
  std::string path(pointer);
  path += '/';
  for (const char c : last) {
    if (c == '~') {
      path += "~0";
    } else if (c == '/') {
      path += "~1";
    } else {
      path += c;
    }
  }
  if (!text_.empty()) text_ += ',';
  text_ += R"({"op":")";
  text_ += op;
  text_ += R"(","path":)";
  text_ += Quote(path);
  if (!json.empty()) {
    text_ += R"(,"value":)";
    text_ += json;
  }
  text_ += '}';
}

}  // namespace sluice::webhook
