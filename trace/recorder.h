// Writes a trace from inside the recorded process. Nothing here may disturb that process: it throws nothing and never
// exits, and a full disk is logged once on stderr and ends the recording only. It needs libc alone (and the C++ runtime
// that the engine links statically).
#ifndef SLUICE_TRACE_RECORDER_H_
#define SLUICE_TRACE_RECORDER_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "format.h"

namespace sluice::trace {

struct Parameter {
  uint32_t offset, bytes;
};

struct AccessRange {
  uint64_t address, bytes;
  Access access;
  AccessSource source;
};

struct LaunchRecord {
  uint32_t function = 0;  // from Recorder::Function
  uint64_t stream = 0;
  uint32_t grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  uint32_t shared_bytes = 0;
  uint32_t flags = 0;                     // LaunchFlags
  std::span<const uint64_t> words;        // the parameters, packed by their offsets
  std::span<const AccessRange> accesses;  // the engine's access set; empty where it knows nothing
};

// One recording, to one file. Thread-safe. Every call costs a lock and some tens of bytes in a buffer of 1 MiB.
class Recorder {
 public:
  // The process's recorder when SLUICE_RECORD names a file, else null. The file is made with the first event. "%p" in
  // its name is the process id. Where another live process records to that file, ".<pid>" is appended, so that
  // launchers and workers do not mix.
  static Recorder* FromEnvironment();

  explicit Recorder(std::string path, uint32_t flags = 0);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void Meta(const char* key, const char* value);
  void Alloc(AllocKind kind, uint64_t address, uint64_t bytes, uint64_t stream = 0, uint32_t device = 0);
  void Free(uint64_t address, uint64_t stream = 0);
  void Report(uint64_t address, int64_t bytes, uint32_t device = 0);  // bytes < 0: freed

  // A kernel's id; the first call with a handle writes its record. `name` may be null.
  uint32_t Function(uint64_t handle, const char* name, std::span<const Parameter> parameters);
  bool HasFunction(uint64_t handle);            // lets the caller ask the driver for name and layout only once
  uint64_t Launch(const LaunchRecord& launch);  // its ordinal, for Duration and Truth

  void Duration(uint64_t launch, uint64_t nanoseconds);
  void Truth(uint64_t launch, std::span<const AccessRange> pages);
  void Guessed(uint64_t launch, std::span<const AccessRange> pages);
  void Changed(uint64_t launch, std::span<const AccessRange> bytes);

  void Copy(uint64_t stream, uint64_t destination, uint64_t source, uint64_t bytes, uint32_t copy_flags);
  void Set(uint64_t stream, uint64_t destination, uint64_t bytes, uint64_t value);
  void StreamCreate(uint64_t stream, uint32_t flags);
  void StreamDestroy(uint64_t stream);
  void EventRecord(uint64_t event, uint64_t stream);
  void StreamWaitEvent(uint64_t stream, uint64_t event);
  void EventSync(uint64_t event);
  void StreamSync(uint64_t stream);
  void DeviceSync();
  void CaptureBegin(uint64_t stream, uint32_t mode);
  void CaptureEnd(uint64_t stream, uint64_t graph);
  void GraphInstantiate(uint64_t graph, uint64_t executable);
  // `nodes` null: their access sets are unknown.
  void GraphLaunch(uint64_t executable, uint64_t stream, const std::vector<std::vector<AccessRange>>* nodes = nullptr);
  void Step(const char* name);
  void WorkingSet(uint32_t device, uint64_t managed_bytes, uint64_t other_bytes);

  void Flush();   // writes the buffer to the file
  void Finish();  // writes kEnd and closes; later calls do nothing. Runs at the process's exit for FromEnvironment's.

  // Takes time stamps from `now` instead of CLOCK_MONOTONIC (generators and tests): nanoseconds, must not decrease.
  void UseClock(uint64_t (*now)(void*), void* context);

 private:
  class Payload;
  static void PutAccesses(Payload* p, std::span<const AccessRange> accesses);
  void PutRanges(Type type, uint64_t launch, std::span<const AccessRange> ranges);
  void Put(Type type, const Payload& payload, bool timed) SLUICE_REQUIRES(mutex_);
  bool Open() SLUICE_REQUIRES(mutex_);
  void Append(const uint8_t* data, size_t bytes) SLUICE_REQUIRES(mutex_);
  void WriteOut() SLUICE_REQUIRES(mutex_);
  void Fail(const char* what) SLUICE_REQUIRES(mutex_);

  Mutex mutex_;  // held while a record is written to the file; no other lock is taken inside
  std::string path_ SLUICE_GUARDED_BY(mutex_);
  const uint32_t flags_;
  const pid_t owner_;  // a forked child inherits the object and the descriptor, and must not write through either
  int fd_ SLUICE_GUARDED_BY(mutex_) = -1;
  std::atomic<bool> stopped_ = false;
  char* buffer_ SLUICE_GUARDED_BY(mutex_) = nullptr;
  size_t used_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t last_ns_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t records_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t launches_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t (*now_)(void*) SLUICE_GUARDED_BY(mutex_) = nullptr;
  void* now_context_ SLUICE_GUARDED_BY(mutex_) = nullptr;
  std::unordered_map<uint64_t, uint32_t> functions_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_RECORDER_H_
