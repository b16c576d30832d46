#include "cli/table.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "common/settings/settings.h"

namespace sluice::cli {

Table::Table(const std::vector<std::string>& titles) {
  for (const std::string& t : titles) {
    right_.push_back(t.starts_with('>'));
    titles_.push_back(right_.back() ? t.substr(1) : t);
  }
}

void Table::Add(std::vector<std::string> cells) {
  cells.resize(titles_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Text() const {
  std::vector<size_t> width;
  for (size_t c = 0; c < titles_.size(); ++c) {
    size_t w = titles_[c].size();
    for (const auto& row : rows_) w = std::max(w, row[c].size());
    width.push_back(w);
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string pad(width[c] - cells[c].size(), ' ');
      text += (c > 0 ? "  " : "") + (right_[c] ? pad + cells[c] : cells[c] + pad);
    }
    while (!text.empty() && text.back() == ' ') text.pop_back();
    out += text + "\n";
  };
  line(titles_);
  for (const auto& row : rows_) line(row);
  return out;
}

std::string Percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.0f%%", share * 100);
  return text;
}
std::string Ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-" : Percent(static_cast<double>(part) / static_cast<double>(whole));
}
std::string Bytes(uint64_t bytes) { return settings::HumanBytes(bytes); }

}  // namespace sluice::cli
