#include "webhook/decision/yaml_scalar.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace sluice::webhook {
namespace {

using Json = nlohmann::json;

constexpr double kMaxExact = 9007199254740992.0;  // 2^53: above it, a double skips whole numbers

bool OneOf(std::string_view text, std::initializer_list<std::string_view> list) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

size_t SkipDigits(std::string_view text, size_t at) {
  while (at < text.size() && IsDigit(text[at])) ++at;
  return at;
}

// [-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?
bool LooksLikeFloat(std::string_view text) {
  size_t at = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  const size_t whole = SkipDigits(text, at);
  size_t end = whole;
  if (whole < text.size() && text[whole] == '.') {
    end = SkipDigits(text, whole + 1);
    if (whole == at && end == whole + 1) return false;
  } else if (whole == at) {
    return false;
  }
  at = end;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    const size_t exponent = SkipDigits(text, at);
    if (exponent == at) return false;
    at = exponent;
  }
  return at == text.size();
}

// Go's strconv.ParseInt and ParseUint with base 0: 0x, 0b and 0o give the base, and so does a leading zero.
std::optional<Json> Integer(std::string_view text) {
  const bool negative = !text.empty() && text[0] == '-';
  const bool has_sign = negative || (!text.empty() && text[0] == '+');
  std::string_view digits = text.substr(has_sign ? 1 : 0);
  int base = 10;
  if (digits.size() > 1 && digits[0] == '0') {
    const char c = static_cast<char>(digits[1] | 0x20);
    base = c == 'x' ? 16 : c == 'b' ? 2 : 8;
    digits.remove_prefix(base == 8 && c != 'o' ? 1 : 2);
  }
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  constexpr uint64_t kMaxSigned = uint64_t{1} << 63;
  if (negative) {
    if (value > kMaxSigned) return std::nullopt;
    return static_cast<int64_t>(~value + 1);
  }
  if (value < kMaxSigned) return static_cast<int64_t>(value);
  if (has_sign) return std::nullopt;
  return value;
}

std::optional<Json> Float(std::string_view text) {
  if (!LooksLikeFloat(text)) return std::nullopt;
  if (text[0] == '+') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (std::trunc(value) == value && std::fabs(value) < kMaxExact) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

Json ResolveScalar(std::string_view text) {
  if (OneOf(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (OneOf(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"})) return true;
  if (OneOf(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"})) return false;
  if (text[0] == '.') return Float(text).value_or(text);
  if (!IsDigit(text[0]) && text[0] != '-' && text[0] != '+') return text;
  std::string plain(text);
  std::erase(plain, '_');
  if (const auto number = Integer(plain)) return *number;
  return Float(plain).value_or(text);
}

}  // namespace sluice::webhook
