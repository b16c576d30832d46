// The reader reads every record that the recorder writes; and no file, whole, cut, or scrambled, causes worse than an
// error.
#include "trace/reader.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "folder.h"
#include "trace/recorder.h"

namespace sluice::trace {
namespace {

namespace fs = std::filesystem;

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

uint64_t Tick(void* state) { return *static_cast<uint64_t*>(state) += 1000; }

void WriteSample(const std::string& path, int launches) {
  Recorder recorder(path, kFlagSynthetic);
  uint64_t clock = 0;
  recorder.UseClock(Tick, &clock);
  recorder.Meta("command", "sample");
  recorder.Alloc(AllocKind::kDevice, 0x7f0000000000, 1 << 20, 0, 1);
  recorder.Report(0x7f0000000200, 4096, 1);
  recorder.Report(0x7f0000000200, -4096, 1);
  const Parameter layout[] = {{0, 8}, {8, 4}};
  for (int i = 0; i < launches; ++i) {
    recorder.Step("step");
    const uint64_t words[] = {0x7f0000000000 + static_cast<uint64_t>(i), ~uint64_t{0}};
    const AccessRange accesses[] = {{0x7f0000000000, 65536, Access::kReadWrite, AccessSource::kLibrary}};
    LaunchRecord launch;
    launch.function = recorder.Function(0xabc, "gemm", layout);
    launch.stream = 7;
    launch.grid[1] = 12;
    launch.words = words;
    launch.accesses = accesses;
    const uint64_t at = recorder.Launch(launch);
    recorder.Duration(at, 12345);
    recorder.Truth(at, accesses);
    recorder.Changed(at, {});
  }
  recorder.Free(0x7f0000000000);
}

TEST_CASE("the reader reads every record that the recorder writes") {
  const Folder folder;
  WriteSample(folder / "t", 3);
  const auto trace = Load(folder / "t");
  REQUIRE(trace.ok());
  CHECK(trace->complete);
  CHECK(trace->flags == kFlagSynthetic);
  CHECK(trace->meta.at("command") == "sample");
  REQUIRE(trace->launches.size() == 3);
  const Launch& launch = trace->launches[2];
  CHECK(launch.words == std::vector<uint64_t>{0x7f0000000002, ~uint64_t{0}});
  CHECK(launch.stream == 7);
  CHECK(launch.grid[1] == 12);
  CHECK(launch.duration_ns == 12345);
  REQUIRE(launch.accesses.size() == 1);
  CHECK(launch.accesses[0].access == Access::kReadWrite);
  CHECK(launch.accesses[0].source == AccessSource::kLibrary);
  CHECK(launch.truth == std::vector<Range>{{0x7f0000000000, 65536, Access::kReadWrite}});
  CHECK(launch.has_changed);
  CHECK(launch.changed.empty());
  REQUIRE(trace->functions.size() == 1);
  CHECK(trace->functions[0].name == "gemm");
  CHECK(trace->functions[0].parameters[1].offset == 8);
  CHECK(trace->step_names.size() == 3);
  REQUIRE(trace->events.front().type == Type::kAlloc);
  CHECK(trace->events.front().b == 1 << 20);
  CHECK(trace->events.front().e == 1);
  CHECK(static_cast<int64_t>(trace->events[2].b) == -4096);
  CHECK(PeakLive(*trace).allocated_peak == 1 << 20);
  CHECK(PeakLive(*trace).reported_peak == 4096);
}

TEST_CASE("a packed trace is read whole, and a cut one up to the cut") {
  const Folder folder;
  WriteSample(folder / "t", 500);
  REQUIRE(Compress(folder / "t", folder / "z", 19).ok());
  CHECK(fs::file_size(folder / "z") * 4 < fs::file_size(folder / "t"));
  const auto packed = Load(folder / "z");
  REQUIRE(packed.ok());
  CHECK(packed->launches.size() == 500);
  const std::string bytes = Slurp(folder / "t");
  for (const size_t cut : {bytes.size() - 1, bytes.size() / 2, size_t{40}, size_t{16}}) {
    const auto trace = Parse(std::string_view(bytes).substr(0, cut), "cut");
    REQUIRE(trace.ok());
    CHECK_FALSE(trace->complete);
    CHECK(trace->launches.size() <= 500);
  }
  const std::string z = Slurp(folder / "z");
  const auto half = Parse(std::string_view(z).substr(0, z.size() / 2), "cut.zst");
  CHECK((!half.ok() || !half->complete));
}

TEST_CASE("only traces are packed, plain or packed ones, and only into plain files") {
  const Folder folder;
  WriteSample(folder / "t", 50);
  REQUIRE(Compress(folder / "t", folder / "z", 1).ok());
  REQUIRE(Compress(folder / "z", folder / "again", 19).ok());
  const auto again = Load(folder / "again");
  REQUIRE(again.ok());
  CHECK(again->launches.size() == 50);
  std::ofstream(folder / "text") << "no trace at all";
  CHECK(Compress(folder / "text", folder / "out", 1).message() ==
        (folder / "text") + ": byte 0: not a sluice trace (it begins with other bytes than \"SLTRACE\")");
  CHECK_FALSE(fs::exists(folder / "out"));
  // A rename would replace /dev/null by a file.
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(Compress(folder / "t", folder / "pipe", 1).message() ==
        (folder / "pipe") + ": is no plain file; accepted: a file, or a name that is free");
  CHECK(fs::is_fifo(folder / "pipe"));
}

TEST_CASE("errors name the file, the byte and the reason") {
  const Folder folder;
  const auto message = [](std::string_view bytes) { return std::string(Parse(bytes, "x.trace").status().message()); };
  CHECK(message("hello, world, I am no trace") ==
        "x.trace: byte 0: not a sluice trace (it begins with other bytes than \"SLTRACE\")");
  CHECK(message("") == message("hello"));
  WriteSample(folder / "t", 1);
  std::string bytes = Slurp(folder / "t");
  bytes[8] = 9;
  CHECK(message(bytes) == "x.trace: byte 8: trace version 9; this sluice reads version 1");
  bytes[8] = 1;
  // A launch of a function that was never defined.
  std::string bad = bytes.substr(0, 16);
  bad += std::string("\x06\x0d", 2) + std::string("\x00\x05\x00\x01\x01\x01\x01\x01\x01\x00\x00\x00\x00", 13);
  CHECK(message(bad) == "x.trace: byte 16: launch: function 5 is not defined (0 are)");
  CHECK(message(bytes.substr(0, 16) + std::string("\x15\x02\x03\x01", 4)) ==
        "x.trace: byte 16: duration: names launch 3, but only 0 precede it");
  CHECK(message(bytes + "\x01") == "x.trace: byte " + std::to_string(bytes.size()) + ": records after the end record");
  CHECK(Load(folder / "absent").status().message() == (folder / "absent") + ": No such file or directory");
  fs::create_directory(folder / "folder");
  CHECK(Load(folder / "folder").status().message() == (folder / "folder") + ": Is a directory");
  // A parameter outside the parameters that CUDA allows, and ranges that no memory has.
  CHECK(message(bytes.substr(0, 16) + std::string("\x05\x07\x00\x00\x01\xff\xff\x03\x08", 9)) ==
        "x.trace: byte 16: function: a parameter ends at byte 65543; at most 65536");
  CHECK(message(bytes.substr(0, 16) + std::string("\x08\x0b\x00\x00\x00\xff\xff\xff\xff\xff\xff\x7f\x01", 13)) ==
        "x.trace: byte 16: set: a range of 562949953421311 bytes; at most 17592186044416");
  // An unknown record type of a newer recorder is skipped.
  std::string newer = bytes.substr(0, 16) + std::string("\x63\x03\x00\x01\x02", 5);
  CHECK(Parse(newer, "x").ok());
}

TEST_CASE("scrambled files give an error or a trace, never a crash") {
  const Folder folder;
  WriteSample(folder / "t", 40);
  const std::string good = Slurp(folder / "t");
  std::mt19937_64 random(20251121);
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    const auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
    for (size_t flips = 1 + pick(4); flips > 0; --flips) {
      const size_t at = 16 + pick(bytes.size() - 16);
      switch (pick(3)) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + pick(9));
          break;
        default:
          bytes.insert(at, 1 + pick(9), static_cast<char>(random()));
          break;
      }
      if (bytes.size() <= 16) break;
    }
    parsed += Parse(bytes, "fuzz").ok() ? 1 : 0;
  }
  CHECK(parsed > 0);  // flipped values are legal; if all were refused, the test would not reach deep
}

TEST_CASE("eight threads record at once and no record is lost") {
  const Folder folder;
  {
    Recorder recorder(folder / "t");
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&recorder, t] {
        for (int i = 0; i < 5000; ++i) {
          LaunchRecord launch;
          launch.function = recorder.Function(static_cast<uint64_t>(i % 50), "k", {});
          launch.stream = static_cast<uint64_t>(t);
          recorder.Launch(launch);
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
  const auto trace = Load(folder / "t");
  REQUIRE(trace.ok());
  CHECK(trace->complete);
  CHECK(trace->launches.size() == 40000);
  CHECK(trace->functions.size() == 50);
}

TEST_CASE("a full disk is logged once and the program goes on") {
  const Folder folder;
  const std::string log_path = folder / "stderr";
  const pid_t child = fork();
  if (child == 0) {
    // A file-size limit stands in for the full disk: write() fails the same way, at a known byte.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100000, 100000};
    setrlimit(RLIMIT_FSIZE, &limit);
    if (freopen(log_path.c_str(), "w", stderr) == nullptr) _exit(9);
    Recorder recorder(folder / "t");
    for (int i = 0; i < 200000; ++i) recorder.Set(1, 2, 3, 4);
    recorder.Finish();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  const std::string log = Slurp(log_path);
  CHECK(log.find("stopped: write: File too large; the program goes on") != std::string::npos);
  CHECK(std::count(log.begin(), log.end(), '\n') == 1);
  const auto trace = Load(folder / "t");
  REQUIRE(trace.ok());
  CHECK_FALSE(trace->complete);
  CHECK(trace->events.size() > 1000);
}

TEST_CASE("a forked child does not write to its parent's trace, and a second process gets its own file") {
  const Folder folder;
  {
    Recorder recorder(folder / "t");
    recorder.DeviceSync();
    const pid_t child = fork();
    if (child == 0) {
      recorder.Step("the child's");
      recorder.Finish();
      Recorder own(folder / "t");
      own.Step("own");
      own.Finish();
      _exit(fs::exists((folder / "t.") + std::to_string(getpid())) ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  const auto trace = Load(folder / "t");
  REQUIRE(trace.ok());
  CHECK(trace->complete);
  CHECK(trace->step_names.empty());
}

}  // namespace
}  // namespace sluice::trace
