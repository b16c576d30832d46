#include "scheduler/simulator/trace_csv.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/read_file.h"

namespace sluice::scheduler {
namespace {

constexpr std::int64_t kMaxCards = 64;
constexpr std::int64_t kMaxHostAmount = std::int64_t{1} << 40;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// One table with named columns and numbered lines. There is no quoting, because the traces use none: a stray quote is
// reported as a bad number.
class CsvTable {
 public:
  static absl::StatusOr<CsvTable> Read(std::string_view text, std::string_view name,
                                       const std::vector<std::string>& required) {
    CsvTable table{std::string(name)};
    int number = 0;
    for (absl::string_view line : absl::StrSplit(View(text), '\n')) {
      ++number;
      line = absl::StripSuffix(line, "\r");
      if (line.empty()) continue;
      std::vector<std::string> cells = absl::StrSplit(line, ',');
      if (table.columns_.empty()) {
        table.columns_ = std::move(cells);
        for (const std::string& column : required) {
          if (table.Find(column) < 0) {
            return absl::InvalidArgumentError(absl::StrCat(table.name_, ":1: no column \"", column, "\"; needed are ",
                                                           absl::StrJoin(required, ", ")));
          }
        }
        continue;
      }
      if (cells.size() != table.columns_.size()) {
        return absl::InvalidArgumentError(absl::StrCat(table.name_, ":", number, ": ", cells.size(),
                                                       " cells, the header has ", table.columns_.size()));
      }
      table.rows_.push_back({number, std::move(cells)});
    }
    if (table.rows_.empty()) return absl::InvalidArgumentError(absl::StrCat(table.name_, ": no rows"));
    return table;
  }

  std::size_t Rows() const { return rows_.size(); }

  std::string Text(std::size_t row, const std::string& column) const {
    const int at = Find(column);
    return at < 0 ? "" : rows_[row].cells[at];
  }

  absl::StatusOr<std::int64_t> Number(std::size_t row, const std::string& column, std::int64_t max) const {
    const std::string text = Text(row, column);
    std::int64_t value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < 0 || value > max)
      return Error(row, column, absl::StrCat("0..", max));
    return value;
  }

  absl::Status Error(std::size_t row, const std::string& column, const std::string& accepted) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ":", rows_[row].number, ": ", column, " is \"",
                                                   Text(row, column), "\", accepted is ", accepted));
  }

 private:
  struct Row {
    int number;
    std::vector<std::string> cells;
  };

  explicit CsvTable(std::string name) : name_(std::move(name)) {}

  int Find(const std::string& column) const {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i] == column) return static_cast<int>(i);
    }
    return -1;
  }

  std::string name_;
  std::vector<std::string> columns_;
  std::vector<Row> rows_;
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::string error;
  std::optional<std::string> text = ReadWholeFile(path, error, size_t{1} << 30);
  if (!text) return absl::NotFoundError(error);
  return *std::move(text);
}

absl::StatusOr<Request> ParseRequest(const CsvTable& table, std::size_t row) {
  const auto cpu = table.Number(row, "cpu_milli", kMaxHostAmount);
  if (!cpu.ok()) return cpu.status();
  const auto memory = table.Number(row, "memory_mib", kMaxHostAmount);
  if (!memory.ok()) return memory.status();
  const auto cards = table.Number(row, "num_gpu", kMaxCards);
  if (!cards.ok()) return cards.status();
  const auto units = table.Number(row, "gpu_milli", kTraceUnitsPerCard);
  if (!units.ok()) return units.status();
  if (*cards > 1 && *units != kTraceUnitsPerCard) {
    return table.Error(row, "gpu_milli", "1000 where num_gpu is above 1: several cards are whole ones");
  }
  if (*cards == 1 && *units == 0) return table.Error(row, "gpu_milli", "1..1000 where num_gpu is 1");
  return Request{.cards = static_cast<int>(*cards),
                 .units = *cards == 0 ? 0 : static_cast<int>(*units),
                 .cpu_milli = *cpu,
                 .memory_mib = *memory};
}

}  // namespace

absl::StatusOr<std::vector<Node>> ParseNodes(std::string_view text, std::string_view name) {
  absl::StatusOr<CsvTable> table = CsvTable::Read(text, name, {"cpu_milli", "memory_mib", "gpu"});
  if (!table.ok()) return table.status();
  std::vector<Node> nodes;
  for (std::size_t row = 0; row < table->Rows(); ++row) {
    const auto cpu = table->Number(row, "cpu_milli", kMaxHostAmount);
    if (!cpu.ok()) return cpu.status();
    const auto memory = table->Number(row, "memory_mib", kMaxHostAmount);
    if (!memory.ok()) return memory.status();
    const auto cards = table->Number(row, "gpu", kMaxCards);
    if (!cards.ok()) return cards.status();
    nodes.push_back({.cpu_milli_free = *cpu,
                     .memory_mib_free = *memory,
                     .units_per_card = kTraceUnitsPerCard,
                     .cards = std::vector<Card>(static_cast<std::size_t>(*cards), Card{.free = kTraceUnitsPerCard}),
                     .model = table->Text(row, "model")});
  }
  return nodes;
}

absl::StatusOr<std::vector<TracePod>> ParsePods(std::string_view text, std::string_view name) {
  absl::StatusOr<CsvTable> table = CsvTable::Read(text, name, {"cpu_milli", "memory_mib", "num_gpu", "gpu_milli"});
  if (!table.ok()) return table.status();
  std::vector<TracePod> pods;
  for (std::size_t row = 0; row < table->Rows(); ++row) {
    absl::StatusOr<Request> request = ParseRequest(*table, row);
    if (!request.ok()) return request.status();
    const std::string spec = table->Text(row, "gpu_spec");
    pods.push_back({*request, absl::StrSplit(spec, '|', absl::SkipEmpty())});
  }
  return pods;
}

absl::StatusOr<std::vector<Node>> ReadNodes(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  return ParseNodes(*text, path);
}

absl::StatusOr<std::vector<TracePod>> ReadPods(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  return ParsePods(*text, path);
}

std::string NodesCsv(const std::vector<Node>& nodes) {
  std::string text = "sn,cpu_milli,memory_mib,gpu,model\n";
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    absl::StrAppend(&text, "node-", i, ",", nodes[i].cpu_milli_free, ",", nodes[i].memory_mib_free, ",",
                    nodes[i].cards.size(), ",", nodes[i].model, "\n");
  }
  return text;
}

std::string PodsCsv(const std::vector<TracePod>& pods) {
  std::string text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n";
  for (std::size_t i = 0; i < pods.size(); ++i) {
    const Request& request = pods[i].request;
    absl::StrAppend(&text, "pod-", i, ",", request.cpu_milli, ",", request.memory_mib, ",", request.cards, ",",
                    request.units, ",", absl::StrJoin(pods[i].models, "|"), "\n");
  }
  return text;
}

}  // namespace sluice::scheduler
