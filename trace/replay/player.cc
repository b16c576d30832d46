#include "player.h"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "c10_standin.h"
#include "sleep.h"

namespace sluice::replay {

using trace::AllocKind;
using trace::Event;
using trace::Type;

namespace {

bool Waits(const Event& event) {
  return event.type == Type::kDeviceSync || event.type == Type::kStreamSync || event.type == Type::kEventSync ||
         (event.type == Type::kCopy && (event.e & trace::kCopySync) != 0);
}

}  // namespace

std::string Player::Check(CUresult result, const char* call) const {
  return result == CUDA_SUCCESS ? "" : std::string(call) + ": " + driver_.Name(result);
}

#define SLUICE_TRY(expression)                              \
  do {                                                      \
    if (std::string e = (expression); !e.empty()) return e; \
  } while (false)
#define SLUICE_CALL(member, ...) SLUICE_TRY(Check(driver_.member(__VA_ARGS__), #member))

uint64_t Player::Now() const {
  if (driver_.simulated()) return driver_.sim_now();
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

std::string Player::Prepare() {
  SLUICE_CALL(init, 0);
  if (driver_.simulated()) SleepOnSimulatedClock(driver_.sim_advance);
  CUdevice device = 0;
  SLUICE_CALL(device_get, &device, options_.device);
  SLUICE_CALL(retain, &context_, device);
  SLUICE_CALL(set_current, context_);
  const std::string image = driver_.simulated() ? SimulatedImage(trace_.functions) : Image(trace_.functions);
  CUmodule module = nullptr;
  SLUICE_CALL(module_load, &module, image.c_str());
  functions_.resize(trace_.functions.size());
  const std::vector<std::string> names = SimulatedNames(trace_.functions);
  for (size_t i = 0; i < functions_.size(); ++i) {
    const std::string name = driver_.simulated() ? names[i] : "k" + std::to_string(i);
    SLUICE_CALL(module_function, &functions_[i], module, name.c_str());
    layouts_.push_back(Pieces(trace_.functions[i]));
  }
  if (driver_.simulated()) return {};
  SLUICE_TRY(PrepareTable());
  CUdeviceptr global = 0;
  size_t bytes = 0;
  SLUICE_CALL(module_global, &global, &bytes, module, "sluice_table");
  CUdeviceptr table = 0;
  SLUICE_CALL(host_device_pointer, &table, table_, 0);
  SLUICE_CALL(copy_in, global, &table, sizeof table);
  return {};
}

std::string Player::PrepareTable() {
  for (const trace::Launch& launch : trace_.launches) {
    run_capacity_ += std::max(launch.truth.size(), launch.accesses.size()) + launch.words.size();
  }
  run_capacity_ = run_capacity_ * 2 + 16;  // a run may be split where two blocks meet
  void* memory = nullptr;
  SLUICE_CALL(host_alloc, &memory, trace_.launches.size() * sizeof(TableEntry) + 64, CU_MEMHOSTALLOC_DEVICEMAP);
  table_ = static_cast<TableEntry*>(memory);
  SLUICE_CALL(host_alloc, &memory, run_capacity_ * sizeof(TableRun), CU_MEMHOSTALLOC_DEVICEMAP);
  runs_ = static_cast<TableRun*>(memory);
  CUdeviceptr device = 0;
  SLUICE_CALL(host_device_pointer, &device, runs_, 0);
  runs_device_ = device;
  return {};
}

Outcome Player::Play() {
  outcome_.error = Prepare();
  if (!outcome_.error.empty()) return outcome_;
  const uint64_t begin = Now();
  due_ns_ = begin;
  for (const Event& event : trace_.events) {
    if (event.type == Type::kStep && options_.steps > 0 && event.a >= static_cast<uint64_t>(options_.steps)) break;
    Pause(event);
    outcome_.error = PlayEvent(event);
    if (!outcome_.error.empty()) {
      outcome_.error =
          std::string(trace::TypeName(event.type)) + " at " + std::to_string(event.time_ns) + " ns: " + outcome_.error;
      return outcome_;
    }
  }
  outcome_.error = EndSteps();
  outcome_.whole_milliseconds = static_cast<double>(Now() - begin) / 1e6;
  return outcome_;
}

// Plays the host's own time between two calls. Time spent waiting for the GPU is not the host's own, so the clock
// restarts after a wait.
void Player::Pause(const Event& event) {
  const uint64_t gap = event.time_ns - last_event_ns_;
  last_event_ns_ = event.time_ns;
  const bool fresh = after_wait_ || Waits(event);
  after_wait_ = Waits(event);
  if (!options_.pace || fresh) {
    due_ns_ = Now();
    return;
  }
  due_ns_ += static_cast<uint64_t>(static_cast<double>(std::min(gap, options_.pause_limit_ns)) * options_.host_pace);
  const uint64_t now = Now();
  if (now >= due_ns_) {
    due_ns_ = now;  // late: the calls took longer than in the recording, and the program could not have caught up
    return;
  }
  if (driver_.simulated()) {
    driver_.sim_advance(due_ns_ - now);
    return;
  }
  while (Now() < due_ns_) {
  }
}

std::string Player::PlayEvent(const Event& event) {
  switch (event.type) {
    case Type::kAlloc:
      return Alloc(event);
    case Type::kFree:
      return Free(event);
    case Type::kReport:
      Report(event);
      return {};
    case Type::kLaunch:
      return Launch(trace_.launches[event.a]);
    case Type::kCopy:
      return Copy(event);
    case Type::kSet:
      memory_.NoteWritten(event.b, event.c);
      NotifyCopy(Stream(event.a), event.b, event.c);
      return Check(driver_.set_async(Translate(event.b), static_cast<unsigned char>(event.d), event.c, Stream(event.a)),
                   "memset");
    case Type::kStreamCreate: {
      CUstream stream = nullptr;
      SLUICE_CALL(stream_create, &stream, static_cast<unsigned>(event.b));
      streams_[event.a] = stream;
      return {};
    }
    case Type::kStreamDestroy: {
      const auto it = streams_.find(event.a);
      if (it == streams_.end()) return {};
      const CUstream stream = it->second;
      streams_.erase(it);
      if (main_stream_ == stream) main_stream_ = nullptr;
      return Check(driver_.stream_destroy(stream), "stream destroy");
    }
    case Type::kEventRecord:
      return Check(driver_.event_record(EventOf(event.a), Stream(event.b)), "event record");
    case Type::kStreamWaitEvent:
      return Check(driver_.stream_wait(Stream(event.a), EventOf(event.b), 0), "stream wait");
    case Type::kEventSync:
      return Check(driver_.event_sync(EventOf(event.a)), "event synchronize");
    case Type::kStreamSync:
      return Check(driver_.stream_sync(Stream(event.a)), "stream synchronize");
    case Type::kDeviceSync:
      return Check(driver_.synchronize(), "synchronize");
    case Type::kCaptureBegin:
      return Check(driver_.begin_capture(Stream(event.a), static_cast<CUstreamCaptureMode>(event.b)), "begin capture");
    case Type::kCaptureEnd:
      return Check(driver_.end_capture(Stream(event.a), &graphs_[event.b]), "end capture");
    case Type::kGraphInstantiate: {
      const auto graph = graphs_.find(event.a);
      if (graph == graphs_.end()) return {};  // built by calls that traces do not hold
      return Check(driver_.instantiate(&executables_[event.b], graph->second, 0), "graph instantiate");
    }
    case Type::kGraphLaunch: {
      const auto executable = executables_.find(event.a);
      if (executable == executables_.end()) return {};
      return Check(driver_.graph_launch(executable->second, Stream(event.b)), "graph launch");
    }
    case Type::kStep:
      return BeginStep(trace_.step_names[event.a]);
    default:
      return {};
  }
}

std::string Player::Alloc(const Event& event) {
  const auto kind = static_cast<AllocKind>(event.c);
  if (kind == AllocKind::kHost) return {};
  CUdeviceptr played = 0;
  CUresult result;
  if (kind == AllocKind::kManaged) {
    result = driver_.alloc_managed(&played, event.b, CU_MEM_ATTACH_GLOBAL);
  } else if (kind == AllocKind::kAsync) {
    SLUICE_TRY(KeepPoolMemory());
    result = driver_.alloc_async(&played, event.b, Stream(event.d));
  } else if (companion_ != nullptr) {
    result = companion_->Allocate(&played, event.b);
  } else {  // VMM memory is replayed as an ordinary allocation: the trace does not hold handles and mappings
    result = driver_.alloc(&played, event.b);
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    ++outcome_.refused_allocations;
    return "out of memory: " + std::to_string(event.b >> 20) + " MiB with " + std::to_string(reserved_bytes_ >> 20) +
           " MiB held";
  }
  SLUICE_TRY(Check(result, "allocate"));
  memory_.AddBlock(event.a, {event.b, played, kind, false});
  reserved_bytes_ += event.b;
  return {};
}

// The trace does not hold the attributes of pools. PyTorch and RMM keep all memory of theirs.
std::string Player::KeepPoolMemory() {
  if (keeps_pool_memory_) return {};
  keeps_pool_memory_ = true;
  CUmemoryPool pool = nullptr;
  cuuint64_t threshold = UINT64_MAX;
  SLUICE_TRY(Check(driver_.default_pool(&pool, options_.device), "get the default pool"));
  return Check(driver_.set_pool(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), "set the release threshold");
}

std::string Player::Free(const Event& event) {
  const PlayedMemory::Block block = memory_.RemoveBlock(event.a);
  if (block.played == 0) return {};  // allocated before the recording began
  reserved_bytes_ -= block.bytes;
  // cuMemFree of such a block has no stream.
  if (block.kind == AllocKind::kAsync && event.b)
    return Check(driver_.free_async(block.played, Stream(event.b)), "free");
  if (companion_ != nullptr && block.kind != AllocKind::kAsync) companion_->Freed(block.played);
  return Check(driver_.free(block.played), "free");
}

void Player::Report(const Event& event) {
  const auto bytes = static_cast<int64_t>(event.b);
  memory_.Report(event.a, bytes);
  reported_bytes_ += event.b;
  if (companion_ != nullptr) companion_->Reported(Translate(event.a), bytes);
  if (!options_.report) return;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): device addresses are numbers here, pointers in PyTorch.
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(Translate(event.a)), bytes, reported_bytes_, reserved_bytes_,
                                   c10::Device{1, static_cast<int8_t>(event.c)});
}

std::string Player::Launch(const trace::Launch& launch) {
  std::vector<simgpu_touch> touches;
  memory_.AddTouches(launch, touches);
  // The parameters as the recorded kernel got them, pointers translated. One guard word is added: an 8-byte parameter
  // may begin in the last 4 bytes.
  std::vector<uint64_t> words;
  words.reserve(launch.words.size() + 1);
  for (const uint64_t word : launch.words) words.push_back(Translate(word));
  const trace::Function& function = trace_.functions[launch.function];
  words.resize(std::max<size_t>(words.size(), (ParameterBytes(function) + 7) / 8) + 1);
  std::vector<void*> parameters;
  for (const trace::Parameter& parameter : layouts_[launch.function]) {
    if (parameter.bytes != 0) parameters.push_back(reinterpret_cast<char*>(words.data()) + parameter.offset);
  }
  const CUstream stream = Stream(launch.stream);
  main_stream_ = stream;
  ++outcome_.launches;
  if (companion_ != nullptr) companion_->BeforeLaunch(stream, function.parameters, words, touches);
  CUresult result;
  if (driver_.simulated()) {
    const simgpu_kernel kind = memory_.Kind(launch, touches);
    driver_.sim_next_launch(touches.data(), touches.size(), launch.duration_ns, SIMGPU_KERNEL(kind));
    result = driver_.launch(functions_[launch.function], launch.grid[0], launch.grid[1], launch.grid[2],
                            launch.block[0], launch.block[1], launch.block[2], 0, stream, parameters.data(), nullptr);
  } else {
    uint32_t entry = next_entry_++;
    if (next_run_ + touches.size() > run_capacity_) return "the table of touched pages is full";
    table_[entry] = {runs_device_ + next_run_ * sizeof(TableRun), touches.size(), launch.duration_ns};
    for (const simgpu_touch& touch : touches) runs_[next_run_++] = {touch.address, touch.length};
    parameters.push_back(&entry);
    result = driver_.launch(functions_[launch.function], 132, 1, 1, 1024, 1, 1, 0, stream, parameters.data(), nullptr);
  }
  if (companion_ != nullptr) companion_->AfterLaunch(stream);
  return Check(result, "launch");
}

void Player::NotifyCopy(CUstream stream, uint64_t address, uint64_t bytes) {
  if (companion_ != nullptr) companion_->BeforeCopy(stream, Translate(address), bytes);
}

std::string Player::Copy(const Event& event) {
  const CUstream stream = Stream(event.a);
  const uint64_t bytes = event.d;
  const bool from_device = (event.e & trace::kCopyFromDevice) != 0, to_device = (event.e & trace::kCopyToDevice) != 0;
  const bool sync = (event.e & trace::kCopySync) != 0;
  if (to_device) NotifyCopy(stream, event.b, bytes);
  if (from_device) NotifyCopy(stream, event.c, bytes);
  if (from_device && to_device) {
    memory_.NoteWritten(event.b, bytes);
    return Check(driver_.copy_async(Translate(event.b), Translate(event.c), bytes, stream), "copy on the device");
  }
  if (!from_device && !to_device) return {};
  if (to_device) memory_.NoteWritten(event.b, bytes);
  void* host = Scratch(bytes);
  if (host == nullptr) return "no host memory for a copy of " + std::to_string(bytes) + " bytes";
  if (to_device) {
    return Check(sync ? driver_.copy_in(Translate(event.b), host, bytes)
                      : driver_.copy_in_async(Translate(event.b), host, bytes, stream),
                 "copy to the device");
  }
  return Check(sync ? driver_.copy_out(host, Translate(event.c), bytes)
                    : driver_.copy_out_async(host, Translate(event.c), bytes, stream),
               "copy from the device");
}

// One pinned buffer for all copies: the contents do not matter, so asynchronous copies may share it.
void* Player::Scratch(uint64_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  void* bigger = nullptr;
  if (driver_.host_alloc(&bigger, bytes, 0) != CUDA_SUCCESS) return nullptr;
  std::memset(bigger, 0, bytes);
  scratch_ = bigger;  // a copy may still use the smaller one, so it is never freed
  scratch_bytes_ = bytes;
  return scratch_;
}

CUstream Player::Stream(uint64_t id) {
  if (id <= 2) return reinterpret_cast<CUstream>(id);  // NOLINT(performance-no-int-to-ptr): CUDA names these so
  const auto [it, fresh] = streams_.try_emplace(id, nullptr);
  // Created before the recording began; frameworks create non-blocking streams.
  if (fresh) driver_.stream_create(&it->second, CU_STREAM_NON_BLOCKING);
  return it->second;
}

CUevent Player::EventOf(uint64_t id) {
  const auto [it, fresh] = events_.try_emplace(id, nullptr);
  if (fresh) driver_.event_create(&it->second, CU_EVENT_DISABLE_TIMING);
  return it->second;
}

std::string Player::BeginStep(const std::string& name) {
  CUevent event = nullptr;
  SLUICE_CALL(event_create, &event, CU_EVENT_DEFAULT);
  SLUICE_CALL(event_record, event, main_stream_);
  step_events_.push_back(event);
  StepFigures figures;
  figures.name = name;
  if (driver_.simulated()) {
    if (driver_.sim_mark != nullptr) driver_.sim_mark(name.c_str());
    figures.before.size = sizeof figures.before;
    driver_.sim_stats(options_.device, &figures.before);
    if (!outcome_.steps.empty()) outcome_.steps.back().after = figures.before;
  }
  outcome_.steps.push_back(std::move(figures));
  return {};
}

std::string Player::EndSteps() {
  CUevent last = nullptr;
  SLUICE_CALL(event_create, &last, CU_EVENT_DEFAULT);
  SLUICE_CALL(event_record, last, main_stream_);
  SLUICE_CALL(synchronize);
  step_events_.push_back(last);
  if (driver_.simulated() && !outcome_.steps.empty()) {
    outcome_.steps.back().after.size = sizeof(SimFigures);
    driver_.sim_stats(options_.device, &outcome_.steps.back().after);
  }
  for (size_t i = 0; i + 1 < step_events_.size(); ++i) {
    float milliseconds = 0;
    SLUICE_CALL(elapsed, &milliseconds, step_events_[i], step_events_[i + 1]);
    outcome_.steps[i].milliseconds = static_cast<double>(milliseconds);
  }
  return {};
}

}  // namespace sluice::replay
