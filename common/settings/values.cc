// The single kinds of values, to and from text.
#include <array>
#include <cctype>
#include <cstdio>

#include "common/settings/settings.h"
#include "sluice/wire.h"

namespace sluice::settings {
namespace {

using Wide = unsigned __int128;

// A decimal number as an exact pair: digits / 10^scale. No sign, no exponent.
struct Decimal {
  Wide digits = 0;
  int scale = 0;
};

// Reads the longest decimal number at the start of `text` and removes it. At most 28 digits, so that later products
// fit.
std::optional<Decimal> TakeDecimal(std::string_view& text) {
  Decimal d;
  size_t i = 0;
  int count = 0;
  bool point = false;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !point) {
      point = true;
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      if (++count > 28) return std::nullopt;
      d.digits = d.digits * 10 + static_cast<unsigned>(c - '0');
      if (point) ++d.scale;
    } else {
      break;
    }
  }
  if (count == 0) return std::nullopt;
  text.remove_prefix(i);
  return d;
}

void DropTrailingZeros(Decimal& d) {
  while (d.scale > 0 && d.digits % 10 == 0) {
    d.digits /= 10;
    --d.scale;
  }
}

Wide Pow10(int n) {
  Wide v = 1;
  while (n-- > 0) v *= 10;
  return v;
}

struct Suffix {
  std::string_view text;
  uint64_t binary;  // factor, or 0 where the suffix is a power of ten
  int exponent;
};
// https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
constexpr std::array<Suffix, 16> kSuffixes = {{{"", 1, 0},
                                               {"Ki", 1ULL << 10, 0},
                                               {"Mi", 1ULL << 20, 0},
                                               {"Gi", 1ULL << 30, 0},
                                               {"Ti", 1ULL << 40, 0},
                                               {"Pi", 1ULL << 50, 0},
                                               {"Ei", 1ULL << 60, 0},
                                               {"n", 0, -9},
                                               {"u", 0, -6},
                                               {"m", 0, -3},
                                               {"k", 0, 3},
                                               {"M", 0, 6},
                                               {"G", 0, 9},
                                               {"T", 0, 12},
                                               {"P", 0, 15},
                                               {"E", 0, 18}}};

// "e9", "E-3": nullopt where it is not an exponent.
std::optional<int> ParseExponent(std::string_view text) {
  if (text.size() < 2 || (text[0] != 'e' && text[0] != 'E')) return std::nullopt;
  size_t i = 1;
  bool minus = false;
  if (text[i] == '+' || text[i] == '-') minus = text[i++] == '-';
  if (i == text.size() || text.size() - i > 2) return std::nullopt;
  int value = 0;
  for (; i < text.size(); ++i) {
    if (!std::isdigit(static_cast<unsigned char>(text[i]))) return std::nullopt;
    value = value * 10 + (text[i] - '0');
  }
  return minus ? -value : value;
}

std::string TrimZeros(std::string s) {
  while (s.back() == '0') s.pop_back();
  if (s.back() == '.') s.pop_back();
  return s;
}

}  // namespace

std::optional<uint32_t> ParseFraction(std::string_view text) {
  auto d = TakeDecimal(text);
  if (!d || !text.empty()) return std::nullopt;
  DropTrailingZeros(*d);
  if (d->scale > 2) return std::nullopt;
  const Wide percent = d->digits * Pow10(2 - d->scale);
  if (percent == 0 || percent > Wide{100} * SLUICE_MAX_GPUS) return std::nullopt;
  if (percent > 100 && percent % 100 != 0) return std::nullopt;
  return static_cast<uint32_t>(percent);
}

std::optional<uint32_t> ParseShare(std::string_view text) {
  auto d = TakeDecimal(text);
  if (!d || !text.empty()) return std::nullopt;
  DropTrailingZeros(*d);
  if (d->scale > 6) return std::nullopt;
  const Wide millionths = d->digits * Pow10(6 - d->scale);
  if (millionths == 0 || millionths > 1000000) return std::nullopt;
  return static_cast<uint32_t>(millionths);
}

std::optional<uint64_t> ParseQuantity(std::string_view text) {
  auto d = TakeDecimal(text);
  if (!d) return std::nullopt;
  Wide factor = 1;
  int exponent = 0;
  bool known = false;
  for (const Suffix& s : kSuffixes) {
    if (s.text != text) continue;
    known = true;
    if (s.binary != 0) factor = s.binary;
    exponent = s.exponent;
  }
  if (!known) {
    const auto e = ParseExponent(text);
    if (!e) return std::nullopt;
    exponent = *e;
  }
  DropTrailingZeros(*d);
  if (d->digits == 0) return std::nullopt;
  exponent -= d->scale;
  // Multiply step by step: 2^64 is the end, long before 128 bits overflow.
  constexpr Wide kEnd = ~Wide{0} >> 8;
  if (d->digits > kEnd / factor) return std::nullopt;
  Wide value = d->digits * factor;
  for (; exponent > 0; --exponent) {
    if (value > kEnd / 10) return std::nullopt;
    value *= 10;
  }
  bool inexact = false;
  for (; exponent < 0; ++exponent) {
    inexact |= value % 10 != 0;
    value /= 10;
  }
  value += inexact ? 1 : 0;
  if (value > INT64_MAX) return std::nullopt;  // Kubernetes' own bound
  return static_cast<uint64_t>(value);
}

std::optional<LogLevel> ParseLogLevel(std::string_view text) {
  if (text == "ERROR") return LogLevel::kError;
  if (text == "WARN") return LogLevel::kWarn;
  if (text == "INFO") return LogLevel::kInfo;
  if (text == "DEBUG") return LogLevel::kDebug;
  return std::nullopt;
}

std::string FormatQuantity(uint64_t bytes) {
  static constexpr std::array<std::string_view, 7> kUnits = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
  size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + std::string(kUnits[unit]);
}

std::string FormatFraction(uint32_t percent) {
  char text[32];
  std::snprintf(text, sizeof(text), "%u.%02u", percent / 100, percent % 100);
  return TrimZeros(text);
}

std::string FormatShare(uint32_t millionths) {
  char text[32];
  std::snprintf(text, sizeof(text), "%u.%06u", millionths / 1000000, millionths % 1000000);
  return TrimZeros(text);
}

std::string_view FormatPrefetch(Prefetch value) {
  return value == Prefetch::kOff ? "off" : value == Prefetch::kLaunch ? "launch" : "predict";
}
std::string_view FormatVisible(Visible value) { return value == Visible::kBudget ? "budget" : "limit"; }
std::string_view FormatLogLevel(LogLevel value) {
  static constexpr std::array<std::string_view, 4> kLevels = {"ERROR", "WARN", "INFO", "DEBUG"};
  return kLevels[static_cast<size_t>(value)];
}

std::string HumanBytes(uint64_t bytes, int decimals) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double v = static_cast<double>(bytes);
  size_t unit = 0;
  while (v >= 1024 && unit + 1 < kUnits.size()) {
    v /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f %s", unit == 0 ? 0 : decimals, v, kUnits[unit]);
  return text;
}

}  // namespace sluice::settings
