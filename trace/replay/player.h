// Plays a trace's events as CUDA calls, in order, on one thread.
#ifndef SLUICE_TRACE_REPLAY_PLAYER_H_
#define SLUICE_TRACE_REPLAY_PLAYER_H_

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "driver.h"
#include "image.h"
#include "played_memory.h"
#include "trace/reader.h"

namespace sluice::replay {

struct Options {
  int device = 0;
  int steps = 0;        // stop before step N (0: play all)
  bool report = true;   // pass PyTorch's allocator reports through c10's symbol
  bool objects = true;  // name each tensor to the simulated GPU's misuse detector, where accesses are exact
  uint64_t pause_limit_ns = 5'000'000;  // longest pause of the host between two calls that is played
  bool pace = true;                     // play the host's pauses at all
  double host_pace = 1;                 // factor on the recorded pauses: another host's pace
};

// Another engine's rules between the program and the driver, played for comparison (experiments/bench).
class Companion {
 public:
  virtual ~Companion() = default;
  virtual CUresult Allocate(CUdeviceptr* address, size_t bytes) = 0;
  virtual void Freed(CUdeviceptr address) = 0;
  virtual void Reported(CUdeviceptr address, int64_t bytes) = 0;  // the framework's allocator; bytes < 0: freed
  // `words` are the parameters as the kernel gets them, each where `layout` says; `touches` are the ranges that it will
  // touch, which a real engine does not know.
  virtual void BeforeLaunch(CUstream stream, const std::vector<trace::Parameter>& layout,
                            const std::vector<uint64_t>& words, const std::vector<simgpu_touch>& touches) = 0;
  virtual void AfterLaunch(CUstream stream) = 0;
  virtual void BeforeCopy(CUstream stream, CUdeviceptr address, uint64_t bytes) = 0;  // copies and memsets
};

struct StepFigures {
  std::string name;
  double milliseconds = 0;
  SimFigures before{}, after{};  // zero on a real GPU
};

struct Outcome {
  std::string error;  // empty: all events were played
  std::vector<StepFigures> steps;
  uint64_t launches = 0, refused_allocations = 0;
  double whole_milliseconds = 0;
};

class Player {
 public:
  Player(const Driver& driver, const trace::Trace& trace, Options options, Companion* companion = nullptr)
      : driver_(driver), trace_(trace), options_(options), companion_(companion), memory_(trace, options.objects) {}
  Outcome Play();

 private:
  // Each returns an error's text, or empty.
  std::string Prepare();
  std::string PrepareTable();
  std::string PlayEvent(const trace::Event& event);
  std::string Alloc(const trace::Event& event);
  std::string KeepPoolMemory();
  std::string Free(const trace::Event& event);
  std::string Launch(const trace::Launch& launch);
  std::string Copy(const trace::Event& event);
  std::string BeginStep(const std::string& name);
  std::string EndSteps();
  std::string Check(CUresult result, const char* call) const;

  void Report(const trace::Event& event);
  void Pause(const trace::Event& event);
  uint64_t Now() const;
  uint64_t Translate(uint64_t address) const { return memory_.Translate(address); }
  void NotifyCopy(CUstream stream, uint64_t address, uint64_t bytes);
  CUstream Stream(uint64_t id);
  CUevent EventOf(uint64_t id);
  void* Scratch(uint64_t bytes);

  const Driver& driver_;
  const trace::Trace& trace_;
  const Options options_;
  Companion* const companion_;
  Outcome outcome_;

  CUcontext context_ = nullptr;
  std::vector<CUfunction> functions_;
  std::vector<std::vector<trace::Parameter>> layouts_;  // by function, as its module declares them
  PlayedMemory memory_;
  uint64_t reported_bytes_ = 0, reserved_bytes_ = 0;
  std::unordered_map<uint64_t, CUstream> streams_;
  std::unordered_map<uint64_t, CUevent> events_;
  std::unordered_map<uint64_t, CUgraph> graphs_;
  std::unordered_map<uint64_t, CUgraphExec> executables_;
  std::vector<CUevent> step_events_;
  CUstream main_stream_ = nullptr;  // the last launch's; step markers record their events on it
  void* scratch_ = nullptr;
  uint64_t scratch_bytes_ = 0;
  uint64_t last_event_ns_ = 0, due_ns_ = 0;
  bool after_wait_ = true, keeps_pool_memory_ = false;

  // On a real GPU, the table of the ranges that each launch touches: pinned host memory that the kernels read.
  TableEntry* table_ = nullptr;
  TableRun* runs_ = nullptr;
  uint64_t runs_device_ = 0, next_run_ = 0, run_capacity_ = 0;
  uint32_t next_entry_ = 0;
};

}  // namespace sluice::replay

#endif  // SLUICE_TRACE_REPLAY_PLAYER_H_
