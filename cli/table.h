// Text tables for terminals: each column is as wide as its widest cell.
#ifndef SLUICE_CLI_TABLE_H_
#define SLUICE_CLI_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::cli {

class Table {
 public:
  // A title that begins with '>' aligns its column to the right.
  explicit Table(const std::vector<std::string>& titles);
  void Add(std::vector<std::string> cells);
  std::string Text() const;

 private:
  std::vector<std::string> titles_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

std::string Percent(double share);                 // "41%"
std::string Ratio(uint64_t part, uint64_t whole);  // "41%"; of 0: "-"
std::string Bytes(uint64_t bytes);                 // "4.0 GiB"

}  // namespace sluice::cli

#endif  // SLUICE_CLI_TABLE_H_
