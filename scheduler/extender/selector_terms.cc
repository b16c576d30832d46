#include "scheduler/extender/selector_terms.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"

namespace sluice::scheduler {
namespace {

constexpr int kMaxDepth = 16;  // of parentheses

std::string_view Strip(std::string_view text) {
  while (!text.empty() && absl::ascii_isspace(text.front())) text.remove_prefix(1);
  while (!text.empty() && absl::ascii_isspace(text.back())) text.remove_suffix(1);
  return text;
}

bool ConsumePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// The full name of an attribute.
TextHash HashName(std::string_view domain, std::string_view name) {
  return HashText(std::string(domain) + "/" + std::string(name));
}

// Calls `at(i)` for each character outside of quotes, brackets and parentheses. False: they do not match.
template <class At>
bool ScanTop(std::string_view text, At at) {
  char quote = 0;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == '\\') return false;  // escapes are not read
      if (c == quote) quote = 0;
      continue;
    }
    if (c == '\'' || c == '"') quote = c;
    if (c == ')' || c == ']') --depth;
    if (depth < 0) return false;
    if (depth == 0) at(i);
    if (c == '(' || c == '[') ++depth;
  }
  return quote == 0 && depth == 0;
}

// The parts between top-level `separator`s. Empty: the text cannot be read.
std::vector<std::string_view> Split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> out;
  std::size_t begin = 0;
  const bool is_whole = ScanTop(text, [&](std::size_t i) {
    if (i < begin || text.substr(i, separator.size()) != separator) return;
    out.push_back(text.substr(begin, i - begin));
    begin = i + separator.size();
  });
  if (!is_whole) return {};
  out.push_back(text.substr(begin));
  for (std::string_view& part : out) part = Strip(part);
  return out;
}

// Whether the first parenthesis closes at the end.
bool IsEnclosed(std::string_view text) {
  if (text.size() < 2 || text.front() != '(') return false;
  std::size_t close = 0;
  ScanTop(text, [&](std::size_t i) {
    if (i > 0 && close == 0 && text[i] == ')') close = i;
  });
  return close == text.size() - 1;
}

std::optional<std::string_view> Quoted(std::string_view text) {
  if (text.size() < 2 || (text.front() != '\'' && text.front() != '"') || text.back() != text.front()) return {};
  const std::string_view inner = text.substr(1, text.size() - 2);
  if (inner.find_first_of("'\"\\") != std::string_view::npos) return {};
  return inner;
}

// The value as a ResourceSlice writes it.
std::optional<TextHash> Literal(std::string_view text) {
  nlohmann::json value;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (const auto inner = Quoted(text)) {
    value["string"] = *inner;
  } else if (text == "true" || text == "false") {
    value["bool"] = text == "true";
  } else if (!text.empty() && error == std::errc{} && end == text.data() + text.size()) {
    value["int"] = number;
  } else {
    return std::nullopt;
  }
  return HashText(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// DOMAIN of device.attributes['DOMAIN'], which is taken from `text`.
std::optional<std::string_view> Domain(std::string_view& text) {
  if (!ConsumePrefix(text, "device.attributes[")) return std::nullopt;
  const std::size_t close = text.find(']');
  if (close == std::string_view::npos) return std::nullopt;
  const auto domain = Quoted(text.substr(0, close));
  text.remove_prefix(close + 1);
  return domain;
}

// device.attributes['DOMAIN'].NAME
std::optional<TextHash> Attribute(std::string_view text) {
  const auto domain = Domain(text);
  if (!domain || !ConsumePrefix(text, ".") || text.empty()) return std::nullopt;
  if (!std::ranges::all_of(text, [](char c) { return absl::ascii_isalnum(c) || c == '_'; })) return std::nullopt;
  return HashName(*domain, text);
}

std::optional<CardTerm> ReadIn(std::string_view left, std::string_view right) {
  CardTerm out;
  CardCondition& condition = out.all.emplace_back();
  if (const auto name = Quoted(left)) {
    const auto domain = Domain(right);
    if (!domain || !right.empty()) return std::nullopt;
    condition.attribute = HashName(*domain, *name);
    return out;
  }
  const auto attribute = Attribute(left);
  if (!attribute || right.size() < 2 || right.front() != '[' || right.back() != ']') return std::nullopt;
  condition.attribute = *attribute;
  for (const std::string_view item : Split(right.substr(1, right.size() - 2), ",")) {
    const auto value = Literal(item);
    if (!value) return std::nullopt;
    condition.values.push_back(*value);
  }
  if (condition.values.empty()) return std::nullopt;
  return out;
}

// `is_partial`: a term was left out.
std::vector<CardTerm> ReadTerms(std::string_view text, int depth, bool& is_partial);

std::optional<CardTerm> ReadTerm(std::string_view text, int depth) {
  if (ConsumePrefix(text, "!")) {
    text = Strip(text);
    if (!IsEnclosed(text)) return std::nullopt;
    bool is_partial = false;
    const std::vector<CardTerm> inner = ReadTerms(text.substr(1, text.size() - 2), depth + 1, is_partial);
    CardTerm out{.is_negated = true};
    for (const CardTerm& term : inner) {
      is_partial |= term.is_negated;
      out.all.insert(out.all.end(), term.all.begin(), term.all.end());
    }
    if (is_partial || out.all.empty()) return std::nullopt;
    return out;
  }
  for (const std::string_view op : {"==", "!="}) {
    const auto sides = Split(text, op);
    if (sides.size() != 2) continue;
    auto attribute = Attribute(sides[0]);
    auto value = Literal(sides[1]);
    if (!attribute) attribute = Attribute(sides[1]), value = Literal(sides[0]);
    if (!attribute || !value) return std::nullopt;
    return CardTerm{.is_negated = op == "!=", .all = {{*attribute, {*value}}}};
  }
  if (const auto sides = Split(text, " in "); sides.size() == 2) return ReadIn(sides[0], sides[1]);
  return std::nullopt;
}

std::vector<CardTerm> ReadTerms(std::string_view text, int depth, bool& is_partial) {
  std::vector<CardTerm> out;
  if (depth > kMaxDepth || Split(text, "||").size() != 1 || Split(text, "?").size() != 1) {
    is_partial = true;
    return out;
  }
  for (const std::string_view part : Split(text, "&&")) {
    if (IsEnclosed(part)) {
      const auto inner = ReadTerms(part.substr(1, part.size() - 2), depth + 1, is_partial);
      out.insert(out.end(), inner.begin(), inner.end());
    } else if (auto term = ReadTerm(part, depth)) {
      out.push_back(*std::move(term));
    } else {
      is_partial = true;
    }
  }
  return out;
}

}  // namespace

std::vector<CardTerm> ReadSelector(std::string_view expression) {
  bool unused = false;
  return ReadTerms(Strip(expression), 0, unused);
}

}  // namespace sluice::scheduler
