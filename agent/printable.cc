#include "agent/printable.h"

#include <algorithm>
#include <cstdint>

namespace sluice::agent {
namespace {

// Bytes of the character at the beginning of `text`, as RFC 3629 has it; 0: it is none.
size_t CharacterBytes(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const uint8_t first = at(0);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  // Longer forms than needed, surrogates, and code points above U+10FFFF.
  const bool is_wrong = (first == 0xe0 && at(1) < 0xa0) || (first == 0xed && at(1) > 0x9f) ||
                        (first == 0xf0 && at(1) < 0x90) || (first == 0xf4 && at(1) > 0x8f);
  return is_wrong ? 0 : size;
}

// U+0080 to U+009F are control characters of terminals, too.
bool IsControl(std::string_view character) {
  const auto first = static_cast<uint8_t>(character[0]);
  return first < ' ' || first == 0x7f || (first == 0xc2 && static_cast<uint8_t>(character[1]) < 0xa0);
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t size = CharacterBytes(text);
    if (size == 0 || IsControl(text.substr(0, size))) {
      out += '?';
    } else {
      out += text.substr(0, size);
    }
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return out;
}

}  // namespace sluice::agent
