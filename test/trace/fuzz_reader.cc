// libFuzzer target: the input is a trace file, or, behind a 'G', choices from which valid records are built. If the
// reader accepts the trace, every tool and the player must cope with it: the tools in memory, the player over a fake
// driver, as on a real and on a simulated GPU. ../webhook/fuzz_replay.cc runs it without libFuzzer.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>

#include "fake_driver.h"
#include "trace/reader.h"
#include "trace/replay/figures.h"
#include "trace/replay/player.h"
#include "trace/tools/bound.h"
#include "trace/tools/explain.h"
#include "trace/tools/interval.h"
#include "trace/tools/merge.h"
#include "trace/tools/settle.h"
#include "trace/tools/working_set.h"

namespace {

using namespace sluice::trace;  // NOLINT(google-build-using-namespace): the library under test

// Bound and settle take time and memory by the pages that a trace names: larger traces are legal, but slow to fuzz.
constexpr uint64_t kMaxNamedBytes = uint64_t{256} << 20;
constexpr size_t kMaxInputBytes = 65536;

// Builds a trace whose records are well formed, with values that the input chooses.
class Builder {
 public:
  Builder(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  std::string Build() {
    std::string trace(kMagic, sizeof kMagic);
    trace += std::string("\x01\0\0\0", 4) + std::string({static_cast<char>(Byte() & 1), 0, 0, 0});
    while (size_ > 0) {
      const uint8_t type = 1 + Byte() % 25;
      const bool about_launch =
          type == static_cast<uint8_t>(Type::kDuration) || type == static_cast<uint8_t>(Type::kTruth) ||
          type == static_cast<uint8_t>(Type::kGuessed) || type == static_cast<uint8_t>(Type::kChanged);
      if (type == static_cast<uint8_t>(Type::kEnd) || (about_launch && launches_ == 0)) continue;
      if (type == static_cast<uint8_t>(Type::kLaunch) && functions_ == 0) continue;
      std::string payload;
      Fields(static_cast<Type>(type), payload);
      trace += static_cast<char>(type);
      U(payload.size(), trace);
      trace += payload;
    }
    return trace;
  }

 private:
  uint8_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  static void U(uint64_t value, std::string& to) {
    for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
    to += static_cast<char>(value);
  }
  uint64_t Value() {
    static constexpr uint64_t kValues[] = {0,         1,          7,          21,         22,
                                           4095,      65536,      1 << 20,    INT32_MAX,  UINT32_MAX,
                                           INT64_MAX, UINT64_MAX, 0x10000000, 0x20000000, uint64_t{1} << 47,
                                           1ull << 63};
    const uint8_t choice = Byte();
    switch (choice & 3) {
      case 0:
        return choice >> 2;
      case 1:
        return kValues[(choice >> 2) % std::size(kValues)];
      case 2:
        return 0x10000000 + uint64_t{4096} * Byte();
      default: {
        uint64_t value = 0;
        for (int i = choice >> 5; i >= 0; --i) value = value << 8 | Byte();
        return value;
      }
    }
  }
  void Values(size_t n, std::string& to) {
    while (n-- > 0) U(Value(), to);
  }
  // An address; rarely one at which ranges wrap around, which the reader refuses.
  uint64_t Address() {
    const uint64_t value = Value();
    return value > INT64_MAX && Byte() != 255 ? value >> 17 : value;
  }
  // Bytes of a range; rarely more than memory has.
  uint64_t Size() {
    const uint8_t choice = Byte();
    return choice == 255 ? Value() : uint64_t{Byte()} << choice % 14;
  }
  void Ranges(size_t n, std::string& to) {
    while (n-- > 0) {
      U(Address(), to);
      U(Size(), to);
    }
  }
  void Text(std::string& to) {
    static constexpr std::string_view kTexts[] = {"slow-from", "light-from", "2", "1", "gemm_a", "reduce_b"};
    const std::string_view text = kTexts[Byte() % std::size(kTexts)];
    U(text.size(), to);
    to += text;
  }
  void Accesses(std::string& to) {
    const size_t n = Byte() % 4;
    U(n, to);
    for (size_t i = 0; i < n; ++i) {
      Ranges(1, to);
      U(Byte() % (4 * kAccessSources), to);
    }
  }
  void Fields(Type type, std::string& to) {
    switch (type) {
      case Type::kMeta:
        Text(to);
        return Text(to);
      case Type::kFunction: {
        U(functions_++, to);
        Text(to);
        const size_t n = Byte() % 4;
        U(n, to);
        for (size_t i = 0; i < 2 * n; ++i) U(Size() % 8192, to);
        return;
      }
      case Type::kDuration:
        U(Byte() % launches_, to);
        return Values(1, to);
      case Type::kTruth:
      case Type::kGuessed:
      case Type::kChanged: {
        U(Byte() % launches_, to);
        const size_t n = Byte() % 4;
        U(n, to);
        Ranges(n, to);
        for (size_t i = 0; i < n; ++i) U(Byte() % 4, to);
        return;
      }
      default:
        break;
    }
    U(Value(), to);  // dt
    if (type == Type::kStep) return Text(to);
    if (type == Type::kLaunch) {
      ++launches_;
      U(Byte() % functions_, to);
      U(Value(), to);
      for (int i = 0; i < 8; ++i) U(Byte(), to);
      const size_t n = Byte() % 4;
      U(n, to);
      Values(n, to);
      return Accesses(to);
    }
    if (type == Type::kGraphLaunch) {
      Values(2, to);
      const size_t n = Byte() % 3;
      if (n == 2) return;
      U(n, to);
      for (size_t i = 0; i < n; ++i) Accesses(to);
      return;
    }
    if (type == Type::kAlloc) {
      Ranges(1, to);
      U(Byte() % 5, to);
      return Values(2, to);
    }
    if (type == Type::kReport) {
      U(Address(), to);
      const uint64_t bytes = Size();
      U(bytes << 1 | (Byte() & 1), to);  // zigzag: odd is negative
      return Values(1, to);
    }
    if (type == Type::kCopy || type == Type::kSet) {
      U(Value(), to);
      for (int i = type == Type::kCopy ? 2 : 1; i > 0; --i) U(Address(), to);
      U(Size(), to);
      return Values(1, to);
    }
    Values(5, to);  // a reader skips the fields that a record does not have
  }

  const uint8_t* data_;
  size_t size_;
  uint64_t functions_ = 0, launches_ = 0;
};

uint64_t NamedBytes(const Trace& trace) {
  uint64_t sum = 0;
  const auto add = [&sum](uint64_t bytes) { sum += std::min(bytes, kMaxNamedBytes + 1); };
  for (const Event& e : trace.events) {
    if (e.type == Type::kAlloc) add(e.b);
    if (e.type == Type::kReport) {
      const auto bytes = static_cast<int64_t>(e.b);
      add(bytes < 0 ? 0 - e.b : e.b);
    }
  }
  for (const Launch& launch : trace.launches) {
    for (const AccessRange& r : launch.accesses) add(r.bytes);
    for (const auto* ranges : {&launch.truth, &launch.guessed, &launch.changed}) {
      for (const Range& r : *ranges) add(r.bytes);
    }
  }
  return sum;
}

void Play(const Trace& trace, bool simulated) {
  sluice::replay::FakeGpu gpu(trace);
  const sluice::replay::Driver driver = sluice::replay::FakeDriver(gpu, simulated);
  sluice::replay::Options options;
  options.report = options.pace = false;
  const sluice::replay::Outcome outcome = sluice::replay::Player(driver, trace, options).Play();
  if (sluice::replay::Figures("fuzz", trace, outcome, 1)
          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
          .empty())
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > kMaxInputBytes) return 0;
  const bool built = size > 0 && data[0] == 'G';
  const absl::StatusOr<Trace> trace = Parse(
      built ? Builder(data + 1, size - 1).Build() : std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!trace.ok()) {
    if (trace.status().message().empty()) std::abort();
    return 0;
  }
  (void)PeakLive(*trace);
  (void)Intervals(*trace, "a", "b");
  Play(*trace, false);
  Play(*trace, true);
  // A written trace is read back with the same launches. (Without an event the recorder makes no file.)
  if (trace->events.empty()) return 0;
  static const char* const folder = getenv("TMPDIR");
  static const std::string path =
      std::string(folder != nullptr ? folder : "/tmp") + "/sluice-fuzz-reader." + std::to_string(getpid());
  if (!Write(*trace, path, nullptr).ok()) std::abort();
  const absl::StatusOr<Trace> back = Load(path);
  std::remove(path.c_str());
  if (!back.ok() || back->events.size() != trace->events.size() || back->launches.size() != trace->launches.size())
    std::abort();
  if (NamedBytes(*trace) > kMaxNamedBytes) return 0;
  for (const Policy policy : {Policy::kBelady, Policy::kLru, Policy::kFifo}) (void)Traffic(*trace, 1 << 20, policy);
  const auto explained = Explain(*trace, *trace);
  if (explained.ok()) (void)ExplanationText(*explained);
  (void)WorkingSetText(CheckWorkingSet(*trace, *trace));
  if (!trace->launches.empty() && explained.ok() && explained->empty()) std::abort();
  (void)Settle(*trace);
  return 0;
}
