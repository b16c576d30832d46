// Plays a trace under another engine's rules, for the tables of residency_table.py and test/gpu/run:
//   peer_replay TRACE --rules uvm|pump --budget-mib N [--warm-up N] [--steps N] [--larger-card]
// Neither engine evicts, the driver does: the GPU must be as large as the budget (SIMGPU_PROFILE), or is made to look
// so
// (--larger-card, small_card.h). On a real GPU it always is, with no more managed memory than SLUICE_MANAGED_LIMIT.
//
// uvm: managed memory alone. pump: PUMP's published rules:
// - Blocks are the ranges that the framework's allocator reports, and allocations.
// - A block is a candidate when it is allocated, and when one of the first eight parameters of a launch is its address.
// - Before a launch, its candidates are prefetched on a stream of the engine's own, each behind an empty host function
//   that keeps the call from occupying the caller. The launch waits for that stream.
// - While the distinct bytes of this launch and of those admitted and not retired exceed factor x memory, the oldest
//   launch is retired: the prefetch stream waits for its end.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "experiments/bench/small_card.h"
#include "trace/replay/figures.h"
#include "trace/replay/player.h"

namespace {

using sluice::bench::SmallCard;
using sluice::replay::Companion;
using sluice::replay::Driver;
using sluice::trace::Parameter;

class Uvm : public Companion {
 public:
  // `card`: null where the GPU is as large as the budget.
  Uvm(const Driver& driver, SmallCard* card) : driver_(driver), card_(card) {}
  CUresult Allocate(CUdeviceptr* address, size_t bytes) override {
    if (card_ != nullptr && !card_->MayAllocate(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = driver_.alloc_managed(address, bytes, CU_MEM_ATTACH_GLOBAL);
    if (result == CUDA_SUCCESS && card_ != nullptr) card_->Allocated(*address, bytes);
    return result;
  }
  void Freed(CUdeviceptr address) override {
    if (card_ != nullptr) card_->Freed(address);
  }
  void Reported(CUdeviceptr, int64_t) override {}
  void BeforeLaunch(CUstream stream, const std::vector<Parameter>&, const std::vector<uint64_t>&,
                    const std::vector<simgpu_touch>& touches) override {
    if (card_ != nullptr) card_->MakeResident(stream, touches);
  }
  void AfterLaunch(CUstream) override {}
  void BeforeCopy(CUstream stream, CUdeviceptr address, uint64_t bytes) override {
    if (card_ != nullptr) card_->MakeResident(stream, {{address, bytes, SIMGPU_WRITE, 0}});
  }

 protected:
  const Driver& driver_;
  SmallCard* const card_;
};

class Pump final : public Uvm {
 public:
  Pump(const Driver& driver, SmallCard* card, uint64_t memory) : Uvm(driver, card), memory_(memory) {}

  CUresult Allocate(CUdeviceptr* address, size_t bytes) override {
    const CUresult result = Uvm::Allocate(address, bytes);
    if (result == CUDA_SUCCESS) blocks_[*address] = bytes;
    return result;
  }

  void Reported(CUdeviceptr address, int64_t bytes) override {
    if (bytes > 0) {
      factor_ = 80;  // its default once the allocator reports
      blocks_[address] = static_cast<uint64_t>(bytes);
      candidates_[address] = static_cast<uint64_t>(bytes);
      return;
    }
    const uint64_t end = address + static_cast<uint64_t>(-bytes);
    blocks_.erase(address);
    candidates_.erase(candidates_.lower_bound(address), candidates_.lower_bound(end));
  }

  void BeforeLaunch(CUstream stream, const std::vector<Parameter>& layout, const std::vector<uint64_t>& words,
                    const std::vector<simgpu_touch>& touches) override {
    if (stream_ == nullptr) driver_.stream_create(&stream_, CU_STREAM_NON_BLOCKING);
    for (size_t i = 0; i < layout.size() && i < 8; ++i) {
      if (layout[i].bytes != 8 || layout[i].offset % 8 != 0) continue;
      const auto block = blocks_.find(words[layout[i].offset / 8]);
      if (block != blocks_.end()) candidates_[block->first] = block->second;
    }
    while (!admitted_.empty() && Wanted() > memory_ / 100 * factor_) Retire();
    if (card_ != nullptr) {
      std::vector<simgpu_touch> wanted = touches;
      for (const auto& [address, bytes] : candidates_) {
        if (bytes <= memory_) wanted.push_back({address, bytes, SIMGPU_READ, 0});
      }
      card_->MakeResident(stream_, wanted);
    }
    if (candidates_.empty()) return;
    for (const auto& [address, bytes] : candidates_) {
      if (bytes > memory_) continue;
      driver_.host_func(stream_, [](void*) {}, nullptr);
      driver_.prefetch(address, bytes, {CU_MEM_LOCATION_TYPE_DEVICE, {0}}, 0, stream_);
    }
    CUevent fetched = nullptr;
    driver_.event_create(&fetched, CU_EVENT_DISABLE_TIMING);
    driver_.event_record(fetched, stream_);
    driver_.stream_wait(stream, fetched, 0);
    driver_.event_destroy(fetched);
  }

  void AfterLaunch(CUstream stream) override {
    CUevent done = nullptr;
    driver_.event_create(&done, CU_EVENT_DISABLE_TIMING);
    driver_.event_record(done, stream);
    for (const auto& block : candidates_) {
      if (uses_[block]++ == 0) admitted_bytes_ += block.second;
    }
    admitted_.emplace_back(done, std::exchange(candidates_, {}));
  }

 private:
  using Blocks = std::map<uint64_t, uint64_t>;

  uint64_t Wanted() const {
    uint64_t sum = admitted_bytes_;
    for (const auto& block : candidates_) {
      const auto use = uses_.find(block);
      if (use == uses_.end() || use->second == 0) sum += block.second;
    }
    return sum;
  }

  void Retire() {
    const auto& [event, blocks] = admitted_.front();
    driver_.stream_wait(stream_, event, 0);
    driver_.event_destroy(event);
    for (const auto& block : blocks) {
      if (--uses_[block] == 0) admitted_bytes_ -= block.second;
    }
    admitted_.pop_front();
  }

  const uint64_t memory_;
  uint64_t factor_ = 60;
  CUstream stream_ = nullptr;
  Blocks blocks_, candidates_;
  std::deque<std::pair<CUevent, Blocks>> admitted_;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> uses_;
  uint64_t admitted_bytes_ = 0;
};

struct Arguments {
  std::string file, rules = "uvm";
  uint64_t budget = 4096;  // MiB
  int warm_up = 2, steps = 0;
  bool larger_card = false;
};

int Play(const Arguments& arguments) {
  const std::string& file = arguments.file;
  const uint64_t budget = arguments.budget << 20;
  const auto trace = sluice::trace::Load(file);
  if (!trace.ok()) {
    std::fprintf(stderr, "peer_replay: %s\n", std::string(trace.status().message()).c_str());
    return 1;
  }
  Driver driver;
  std::string error = driver.Load();
  const char* const limit = std::getenv("SLUICE_MANAGED_LIMIT");
  const uint64_t max_managed = limit != nullptr     ? std::strtoull(limit, nullptr, 10)
                               : driver.simulated() ? UINT64_MAX
                                                    : 0;
  if (error.empty() && max_managed == 0) {
    error = "SLUICE_MANAGED_LIMIT: a number of bytes of managed memory is required on a real GPU";
  }
  if (!error.empty()) {
    std::fprintf(stderr, "peer_replay: %s\n", error.c_str());
    return 1;
  }
  SmallCard small_card(driver, budget, max_managed);
  SmallCard* const card = arguments.larger_card || !driver.simulated() ? &small_card : nullptr;
  std::unique_ptr<Companion> companion;
  if (arguments.rules == "pump") {
    companion = std::make_unique<Pump>(driver, card, budget);
  } else {
    companion = std::make_unique<Uvm>(driver, card);
  }
  sluice::replay::Options options;
  options.steps = arguments.steps;
  const sluice::replay::Outcome outcome = sluice::replay::Player(driver, *trace, options, companion.get()).Play();
  std::printf("%s\n", sluice::replay::Figures(file, *trace, outcome, arguments.warm_up).dump().c_str());
  if (outcome.error.empty()) return 0;
  std::fprintf(stderr, "peer_replay: %s: %s\n", file.c_str(), outcome.error.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Plays a trace under another engine's rules", "peer_replay");
  Arguments arguments;
  app.add_option("TRACE", arguments.file, "trace")->required();
  app.add_option("--rules", arguments.rules, "uvm, pump")->check(CLI::IsMember({"uvm", "pump"}));
  app.add_option("--budget-mib", arguments.budget, "the GPU's memory for the program")->check(CLI::Range(64, 1 << 20));
  app.add_option("--warm-up", arguments.warm_up, "steps that the figures leave out")->check(CLI::Range(0, 1000));
  app.add_option("--steps", arguments.steps, "play only the first N steps")->check(CLI::Range(1, 1000000));
  app.add_flag("--larger-card", arguments.larger_card, "the GPU is larger than the budget: keep residency within it");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "peer_replay: %s\n", error.what());
    return 2;
  }
  return Play(arguments);
}
