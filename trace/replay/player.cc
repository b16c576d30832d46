#include "player.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <set>

#include "c10_standin.h"
#include "sleep.h"

namespace sluice::replay {

using trace::Access;
using trace::AccessRange;
using trace::AllocKind;
using trace::Event;
using trace::Range;
using trace::Type;

namespace {

constexpr uint32_t kTouchBoth = SIMGPU_READ | SIMGPU_WRITE;

bool Waits(const Event& event) {
  return event.type == Type::kDeviceSync || event.type == Type::kStreamSync || event.type == Type::kEventSync ||
         (event.type == Type::kCopy && (event.e & trace::kCopySync) != 0);
}

uint32_t TouchOf(Access access) {
  switch (access) {
    case Access::kRead:
      return SIMGPU_READ;
    case Access::kWrite:
      return SIMGPU_WRITE;
    default:
      return kTouchBoth;
  }
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
  if (driver_.simulated()) SleepOnCard(driver_.sim_advance);
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

// The host's own time between two calls. What it spent waiting for the GPU is not its own: after a wait the clock
// starts anew.
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
    due_ns_ = now;  // late: the calls took longer than in the recording; the program would not have caught up either
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
      NoteWritten(event.b, event.c);
      TellCopy(Stream(event.a), event.b, event.c);
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
  blocks_[event.a] = {event.b, played, kind, false};
  reserved_bytes_ += event.b;
  return {};
}

std::string Player::Free(const Event& event) {
  const auto it = blocks_.find(event.a);
  if (it == blocks_.end()) return {};  // made before the recording began
  const Block block = it->second;
  blocks_.erase(it);
  reserved_bytes_ -= block.bytes;
  if (block.kind == AllocKind::kAsync) return Check(driver_.free_async(block.played, Stream(event.b)), "free");
  if (companion_ != nullptr) companion_->Freed(block.played);
  return Check(driver_.free(block.played), "free");
}

void Player::Report(const Event& event) {
  const auto bytes = static_cast<int64_t>(event.b);
  if (bytes > 0) {
    tensors_[event.a] = {event.b, next_object_++, {}};
    if (const auto block = FindBlock(event.a); block != blocks_.end()) blocks_.at(block->first).reported = true;
  } else {
    tensors_.erase(event.a);
  }
  reported_bytes_ += event.b;
  if (companion_ != nullptr) companion_->Reported(Translate(event.a), bytes);
  if (!options_.report) return;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): device addresses are numbers here, pointers in PyTorch.
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(Translate(event.a)), bytes, reported_bytes_, reserved_bytes_,
                                   c10::Device{1, static_cast<int8_t>(event.c)});
}

std::map<uint64_t, Player::Block>::const_iterator Player::FindBlock(uint64_t address) const {
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return blocks_.end();
  --it;
  return address - it->first < it->second.bytes ? it : blocks_.end();
}

std::map<uint64_t, Player::Tensor>::const_iterator Player::FindTensor(uint64_t address) const {
  auto it = tensors_.upper_bound(address);
  if (it == tensors_.begin()) return tensors_.end();
  --it;
  return address - it->first < it->second.bytes ? it : tensors_.end();
}

uint64_t Player::Translate(uint64_t address) const {
  const auto it = FindBlock(address);
  return it == blocks_.end() ? address : it->second.played + (address - it->first);
}

// A recorded range may reach over a block's end (pages) or over several blocks.
void Player::AddTouch(uint64_t address, uint64_t bytes, uint32_t access, bool name_object,
                      std::vector<simgpu_touch>& out) const {
  const uint64_t end = address + bytes;
  auto block = blocks_.upper_bound(address);
  if (block != blocks_.begin()) --block;
  for (; block != blocks_.end() && block->first < end; ++block) {
    const uint64_t first = std::max(address, block->first), last = std::min(end, block->first + block->second.bytes);
    if (first >= last) continue;
    uint32_t object = 0;
    if (name_object) {
      const auto tensor = FindTensor(first);
      if (tensor != tensors_.end()) object = tensor->second.object;
    }
    out.push_back({block->second.played + (first - block->first), last - first, access, object});
  }
}

// What was truly touched. Bytes of a tensor that nothing has touched since it was allocated can only have been written,
// whatever their contents told (so that fresh memory may hold anything); the rest in the direction that is known.
void Player::AddTruth(uint64_t address, uint64_t bytes, Access access, std::vector<simgpu_touch>& out) {
  const uint64_t end = address + bytes;
  const uint32_t touch = TouchOf(access);
  while (address < end) {
    const auto found = FindTensor(address);
    if (found == tensors_.end()) {
      const auto next = tensors_.upper_bound(address);
      const uint64_t until = next == tensors_.end() ? end : std::min(end, next->first);
      AddTouch(address, until - address, touch, false, out);
      address = until;
      continue;
    }
    std::map<uint64_t, uint64_t>& written = tensors_.at(found->first).written;
    const uint64_t until = std::min(end, found->first + found->second.bytes);
    auto first_part = written.upper_bound(address);
    if (first_part != written.begin() && std::prev(first_part)->second > address) --first_part;
    auto part = first_part;
    uint64_t first = address, last = until;
    while (address < until && part != written.end() && part->first < until) {
      if (address < part->first) AddTouch(address, part->first - address, SIMGPU_WRITE, false, out);
      address = std::max(address, part->first);
      const uint64_t stop = std::min(until, part->second);
      AddTouch(address, stop - address, touch, false, out);
      address = stop;
      first = std::min(first, part->first);
      last = std::max(last, part->second);
      ++part;
    }
    AddTouch(address, until - address, SIMGPU_WRITE, false, out);
    address = until;
    written.erase(first_part, part);
    written[first] = last;
  }
}

void Player::NoteWritten(uint64_t address, uint64_t bytes) {
  std::vector<simgpu_touch> ignored;
  AddTruth(address, bytes, Access::kWrite, ignored);
}

// Truth first. A synthetic trace's access sets are exact, so that they say more than pages do: direction and tensor.
void Player::Touches(const trace::Launch& launch, std::vector<simgpu_touch>& out) {
  const bool exact = (trace_.flags & trace::kFlagSynthetic) != 0;
  if (exact || !launch.has_truth) {
    for (const AccessRange& range : launch.accesses) {
      AddTouch(range.address, range.bytes, TouchOf(range.access), exact && options_.objects, out);
    }
    if (!out.empty()) return;
  }
  for (const Range& page : launch.truth) AddTruth(page.address, page.bytes, page.access, out);
  if (launch.has_truth) return;
  // Nothing is known: whole tensors, or whole blocks, that the parameters point into; each once. A pointer to what no
  // longer lives was left over from an earlier call.
  std::set<uint64_t> seen;
  for (const uint64_t word : launch.words) {
    if (const auto tensor = FindTensor(word); tensor != tensors_.end()) {
      if (seen.insert(tensor->first).second) AddTruth(tensor->first, tensor->second.bytes, Access::kUnknown, out);
    } else if (const auto block = FindBlock(word); block != blocks_.end() && !block->second.reported) {
      if (seen.insert(block->first).second) AddTouch(block->first, block->second.bytes, kTouchBoth, false, out);
    }
  }
}

// How the kernel goes over its memory, by its name, and of a matrix product how often it reads each operand: once for
// every row of tiles of the other dimension. Of three matrices m x k, k x n and m x n the dimension that one lacks is
// the root of the others' product over it. Matters only where an operand is read over the link. (H200,
// experiments/probes: a product of 2,048 rows reads its weights 8.0 times, of 8,192 columns its rows 32.0 times;
// convolutions read more often than such a product, by a factor of the card's.)
simgpu_kernel Player::Kind(const trace::Launch& launch, std::vector<simgpu_touch>& touches) const {
  const std::string& name = trace_.functions[launch.function].name;
  const auto holds = [&name](std::initializer_list<const char*> parts) {
    return std::any_of(parts.begin(), parts.end(), [&](const char* p) { return name.find(p) != std::string::npos; });
  };
  const bool convolution = holds({"fprop", "dgrad", "wgrad"});
  if (!convolution && !holds({"gemm", "nvjet", "cutlass", "xmma", "flash", "fmha"})) {
    if (holds({"multi_tensor_apply"})) return SIMGPU_LISTS;
    if (holds({"elementwise", "transform_input", "backward_elemt", "Padding", "CatArray"})) return SIMGPU_ELEMENTWISE;
    return holds({"reduce", "norm", "oftmax"}) ? SIMGPU_REDUCTION : SIMGPU_UNKNOWN;
  }
  std::map<uint64_t, double> sizes;  // by tensor
  const auto owner = [this](const simgpu_touch& touch) {
    // The card's addresses are not the recorded ones, but blocks are moved as wholes.
    for (const auto& [recorded, block] : blocks_) {
      if (touch.address - block.played < block.bytes) {
        const uint64_t address = recorded + (touch.address - block.played);
        const auto tensor = FindTensor(address);
        return tensor != tensors_.end() ? tensor->first : recorded;
      }
    }
    return uint64_t{0};
  };
  for (const simgpu_touch& touch : touches) sizes[owner(touch)] += static_cast<double>(touch.length) / 2;  // elements
  std::vector<double> largest;
  largest.reserve(sizes.size());
  for (const auto& [tensor, elements] : sizes) largest.push_back(elements);
  std::sort(largest.rbegin(), largest.rend());
  if (largest.size() < 3) return convolution ? SIMGPU_CONVOLUTION : SIMGPU_PRODUCT;
  for (simgpu_touch& touch : touches) {
    const double own = sizes[owner(touch)];
    if (own < largest[2]) continue;
    const double others = largest[0] * largest[1] * largest[2] / own;
    const double passes = std::ceil(std::sqrt(others / own) / 256);
    touch.access |= SIMGPU_PASSES(static_cast<uint32_t>(std::clamp(passes, 1.0, 1000.0)));
  }
  if (convolution) return SIMGPU_CONVOLUTION;
  constexpr double kFewRows = 64;
  return std::sqrt(largest[1] * largest[2] / largest[0]) < kFewRows ? SIMGPU_FEW_ROWS : SIMGPU_PRODUCT;
}

std::string Player::Launch(const trace::Launch& launch) {
  std::vector<simgpu_touch> touches;
  Touches(launch, touches);
  // The parameters as the recorded kernel got them, pointers translated. One guard word: an 8-byte parameter may lie in
  // the last 4.
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
    const simgpu_kernel kind = Kind(launch, touches);
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

void Player::TellCopy(CUstream stream, uint64_t address, uint64_t bytes) {
  if (companion_ != nullptr) companion_->BeforeCopy(stream, Translate(address), bytes);
}

std::string Player::Copy(const Event& event) {
  const CUstream stream = Stream(event.a);
  const uint64_t bytes = event.d;
  const bool from_device = (event.e & trace::kCopyFromDevice) != 0, to_device = (event.e & trace::kCopyToDevice) != 0;
  const bool sync = (event.e & trace::kCopySync) != 0;
  if (to_device) TellCopy(stream, event.b, bytes);
  if (from_device) TellCopy(stream, event.c, bytes);
  if (from_device && to_device) {
    NoteWritten(event.b, bytes);
    return Check(driver_.copy_async(Translate(event.b), Translate(event.c), bytes, stream), "copy on the device");
  }
  if (!from_device && !to_device) return {};
  if (to_device) NoteWritten(event.b, bytes);
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

// One pinned buffer for all copies: what is copied is of no interest, and asynchronous copies may then share it.
void* Player::Scratch(uint64_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  void* bigger = nullptr;
  if (driver_.host_alloc(&bigger, bytes, 0) != CUDA_SUCCESS) return nullptr;
  std::memset(bigger, 0, bytes);
  scratch_ = bigger;  // the smaller one may still be in use by a copy: it is left to the process's end
  scratch_bytes_ = bytes;
  return scratch_;
}

CUstream Player::Stream(uint64_t id) {
  if (id <= 2) return reinterpret_cast<CUstream>(id);  // NOLINT(performance-no-int-to-ptr): CUDA names these so
  const auto [it, fresh] = streams_.try_emplace(id, nullptr);
  // Made before the recording began: as frameworks make theirs.
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
