// Finds members of large JSON documents without building a document of them.
#ifndef SLUICE_SCHEDULER_EXTENDER_JSON_SCANNER_H_
#define SLUICE_SCHEDULER_EXTENDER_JSON_SCANNER_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>

namespace sluice::scheduler {

// Walks over JSON without building a document: for a thousand names that costs more than all decisions about them.
// Checks only the structure that it returns; its users parse the members' values.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : text_(text) {}

  // Skips white space and then the expected character. False: another character follows.
  bool Consume(char expected) {
    SkipSpace();
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
    SkipSpace();
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
    SkipSpace();
    return at_ == text_.size();
  }

 private:
  void SkipSpace() { at_ = std::min(text_.find_first_not_of(" \n\r\t", at_), text_.size()); }

  std::string_view text_;
  std::size_t at_ = 0;
};

// Calls `found` with each member's key and value, as they stand in the text. False: the text is no JSON object.
inline bool ForEachMember(std::string_view object,
                          const std::function<void(std::string_view key, std::string_view value)>& found) {
  JsonScanner scanner(object);
  if (!scanner.Consume('{')) return false;
  if (scanner.Consume('}')) return scanner.AtEnd();
  do {
    bool escaped = false;
    const auto key = scanner.String(escaped);
    if (!key || !scanner.Consume(':')) return false;
    const auto value = scanner.Value();
    if (!value) return false;
    found(*key, *value);
  } while (scanner.Consume(','));
  return scanner.Consume('}') && scanner.AtEnd();
}

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_JSON_SCANNER_H_
