// Writes a trace whose launches name whole blocks and touch a quarter of each: parts_trace TO. So a quarter of the
// fetched bytes is touched, which replay_test.py counts.
#include <array>

#include "trace/recorder.h"

using namespace sluice::trace;  // NOLINT(google-build-using-namespace): a program of one file

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  constexpr uint64_t kMiB = uint64_t{1} << 20, kBlock = 64 * kMiB, kBlocks = 16, kBase = 0x7f2000000000;
  uint64_t now = 0;
  Recorder recorder(argv[1], kFlagSynthetic);
  recorder.UseClock([](void* at) { return *static_cast<uint64_t*>(at); }, &now);
  recorder.Meta("source", "synthetic: a quarter of each block is touched");
  for (uint64_t i = 0; i < kBlocks; ++i) recorder.Alloc(AllocKind::kDevice, kBase + 2 * i * kBlock, kBlock);
  const std::array<Parameter, 1> parameters = {{{0, 8}}};
  const uint32_t part = recorder.Function(1, "part", parameters), whole = recorder.Function(2, "whole", parameters);
  const auto launch = [&](uint32_t function, uint64_t block, uint64_t bytes, Access access) {
    const uint64_t word = kBase + 2 * block * kBlock;
    const AccessRange range{word, bytes, access, AccessSource::kLibrary};
    LaunchRecord record;
    record.function = function;
    record.words = {&word, 1};
    record.accesses = {&range, 1};
    now += 10'000;
    recorder.Duration(recorder.Launch(record), 1'000'000);
  };
  for (uint64_t i = 0; i < kBlocks; ++i) launch(whole, i, kBlock, Access::kWrite);  // gives them contents to move
  for (int step = 0; step < 6; ++step) {
    recorder.Step("step");
    for (uint64_t i = 0; i < kBlocks; ++i) launch(part, i, kBlock / 4, Access::kRead);
  }
  recorder.DeviceSync();
  recorder.Finish();
  return 0;
}
