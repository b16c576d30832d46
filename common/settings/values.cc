// The kinds of values, to and from text.
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

// Reads the longest decimal number at the start of `text` and removes it. At most 28 digits: later products fit.
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
  uint64_t binary;  // factor; 0: the suffix is a power of ten
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

// "e9", "E-3". nullopt: not an exponent.
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

// A number that was meant as MiB or GiB and lacks its suffix would be a budget of a few KiB, in which nothing runs.
constexpr uint64_t kMinMemoryBytes = uint64_t{1} << 20;

std::optional<uint64_t> ParseMemory(std::string_view text) {
  const auto bytes = ParseQuantity(text);
  return bytes && *bytes >= kMinMemoryBytes ? bytes : std::nullopt;
}

template <uint32_t kMin, uint32_t kMax>
std::optional<uint32_t> ParseWhole(std::string_view text) {
  if (text.empty() || text.size() > 9) return std::nullopt;
  uint32_t n = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    n = n * 10 + static_cast<uint32_t>(c - '0');
  }
  return n < kMin || n > kMax ? std::nullopt : std::optional(n);
}

template <uint32_t kMin, uint32_t kMax>
const ValueKind<uint32_t>& Whole() {
  static const auto& kind =
      *new ValueKind<uint32_t>{ParseWhole<kMin, kMax>, [](uint32_t value) { return std::to_string(value); },
                               "a whole number from " + std::to_string(kMin) + " to " + std::to_string(kMax)};
  return kind;
}

// The words of a value that is one of a few.
template <typename T>
struct Word {
  T value;
  std::string_view text;
};
constexpr std::array<Word<Visible>, 2> kVisible = {{{Visible::kBudget, "budget"}, {Visible::kLimit, "limit"}}};
constexpr std::array<Word<Priority>, 2> kPriorities = {
    {{Priority::kGuaranteed, "guaranteed"}, {Priority::kOpportunistic, "opportunistic"}}};
constexpr std::array<Word<Prefetch>, 3> kPrefetch = {
    {{Prefetch::kOff, "off"}, {Prefetch::kLaunch, "launch"}, {Prefetch::kPredict, "predict"}}};
constexpr std::array<Word<LogLevel>, 4> kLevels = {
    {{LogLevel::kError, "ERROR"}, {LogLevel::kWarn, "WARN"}, {LogLevel::kInfo, "INFO"}, {LogLevel::kDebug, "DEBUG"}}};
constexpr std::array<Word<bool>, 2> kBooleans = {{{true, "true"}, {false, "false"}}};

template <const auto& kWords>
const auto& OneOf() {
  using T = decltype(kWords[0].value);
  static const auto& kind =
      *new ValueKind<std::remove_const_t<T>>{[](std::string_view text) -> std::optional<std::remove_const_t<T>> {
                                               for (const auto& w : kWords) {
                                                 if (w.text == text) return w.value;
                                               }
                                               return std::nullopt;
                                             },
                                             [](std::remove_const_t<T> value) {
                                               for (const auto& w : kWords) {
                                                 if (w.value == value) return std::string(w.text);
                                               }
                                               return std::string();
                                             },
                                             [] {
                                               std::string all;
                                               for (const auto& w : kWords)
                                                 all += (all.empty() ? "" : ", ") + std::string(w.text);
                                               return all;
                                             }()};
  return kind;
}

}  // namespace

// Never destroyed: the hook's threads outlive exit.
namespace kinds {

const ValueKind<uint32_t>& Fraction() {
  static const auto& kind = *new ValueKind<uint32_t>{
      ParseFraction, FormatFraction,
      "0.01 to 1 in steps of 0.01, or a whole number of GPUs up to " + std::to_string(SLUICE_MAX_GPUS)};
  return kind;
}
const ValueKind<uint32_t>& Count() { return Whole<1, SLUICE_MAX_GPUS>(); }
const ValueKind<uint64_t>& Memory() {
  static const auto& kind = *new ValueKind<uint64_t>{ParseMemory, FormatQuantity,
                                                     "a Kubernetes quantity of bytes from 1Mi on, as 4Gi or 512M"};
  return kind;
}
const ValueKind<uint32_t>& Share() {
  static const auto& kind = *new ValueKind<uint32_t>{ParseShare, FormatShare, "a number above 0 and up to 1, as 0.25"};
  return kind;
}
const ValueKind<uint32_t>& Percent() { return Whole<1, 100>(); }
const ValueKind<uint32_t>& Duration() {
  static const auto& kind = *new ValueKind<uint32_t>{ParseDuration, FormatDuration,
                                                     "off, or whole hours, minutes and seconds up to 720h, as 10m"};
  return kind;
}
const ValueKind<settings::Visible>& VisibleMemory() { return OneOf<kVisible>(); }
const ValueKind<settings::Priority>& Priority() { return OneOf<kPriorities>(); }
const ValueKind<settings::Prefetch>& PrefetchMode() { return OneOf<kPrefetch>(); }
const ValueKind<settings::LogLevel>& Level() { return OneOf<kLevels>(); }
const ValueKind<bool>& Boolean() { return OneOf<kBooleans>(); }

}  // namespace kinds

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

std::optional<uint32_t> ParseDuration(std::string_view text) {
  constexpr uint64_t kMaxSeconds = uint64_t{720} * 3600;
  if (text == "off") return 0;
  uint64_t seconds = 0;
  for (const auto& [unit, worth] : {std::pair{'h', 3600u}, std::pair{'m', 60u}, std::pair{'s', 1u}}) {
    const size_t end = text.find(unit);
    if (end == std::string_view::npos) continue;
    const auto number = ParseWhole<0, 999'999'999>(text.substr(0, end));
    if (!number) return std::nullopt;
    seconds += uint64_t{*number} * worth;
    text.remove_prefix(end + 1);
  }
  if (!text.empty() || seconds == 0 || seconds > kMaxSeconds) return std::nullopt;
  return static_cast<uint32_t>(seconds);
}

std::string FormatDuration(uint32_t seconds) {
  if (seconds == 0) return "off";
  const auto part = [](uint32_t number, char unit) { return number == 0 ? "" : std::to_string(number) + unit; };
  return part(seconds / 3600, 'h') + part(seconds / 60 % 60, 'm') + part(seconds % 60, 's');
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
  // Multiplies step by step: a value beyond 2^64 ends the loop long before 128 bits overflow.
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
