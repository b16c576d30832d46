#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include <new>

#include "sluice/names.h"

namespace sluice::trace {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

uint64_t MonotonicNow() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

// One line in one write, so that lines of several threads or processes do not mix.
void LogWarning(const char* text) {
  char line[768];
  int n = snprintf(line, sizeof line, "sluice: WARN %s\n", text);
  if (n > static_cast<int>(sizeof line) - 1) n = sizeof line - 1;
  if (n > 0 && write(STDERR_FILENO, line, static_cast<size_t>(n)) < 0) return;
}

}  // namespace

// The bytes of one record under construction. The buffer grows by doubling; a record for which memory runs out is
// marked bad and dropped.
class Recorder::Payload {
 public:
  Payload() = default;
  ~Payload() {
    if (data_ != inline_) free(data_);
  }
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;

  Payload& U(uint64_t value) {
    while (value >= 0x80) {
      Byte(static_cast<uint8_t>(value | 0x80));
      value >>= 7;
    }
    Byte(static_cast<uint8_t>(value));
    return *this;
  }
  Payload& S(int64_t value) { return U((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63)); }
  Payload& Str(const char* text) {
    const size_t n = strlen(text);
    U(n);
    for (size_t i = 0; i < n; ++i) Byte(static_cast<uint8_t>(text[i]));
    return *this;
  }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool bad() const { return bad_; }

 private:
  void Byte(uint8_t b) {
    if (size_ == capacity_ && !Grow()) return;
    data_[size_++] = b;
  }
  bool Grow() {
    auto* bigger = static_cast<uint8_t*>(malloc(capacity_ * 2));
    if (bigger == nullptr) {
      bad_ = true;
      return false;
    }
    memcpy(bigger, data_, size_);
    if (data_ != inline_) free(data_);
    data_ = bigger;
    capacity_ *= 2;
    return true;
  }
  uint8_t inline_[512];
  uint8_t* data_ = inline_;
  size_t size_ = 0, capacity_ = sizeof inline_;
  bool bad_ = false;
};

Recorder* Recorder::FromEnvironment() {
  static Recorder* const instance = []() -> Recorder* {
    const char* path = getenv(SLUICE_ENV_RECORD);
    if (path == nullptr || *path == '\0') return nullptr;
    auto* made = new (std::nothrow) Recorder(path);
    // Never deleted: application threads may still launch while the process exits. An atexit handler writes the end
    // record.
    if (made != nullptr) atexit([] { FromEnvironment()->Finish(); });
    return made;
  }();
  return instance;
}

Recorder::Recorder(std::string path, uint32_t flags) : path_(std::move(path)), flags_(flags), owner_(getpid()) {
  const size_t at = path_.find("%p");
  if (at != std::string::npos) path_.replace(at, 2, std::to_string(owner_));
}

Recorder::~Recorder() {
  Finish();
  free(buffer_);
}

void Recorder::UseClock(uint64_t (*now)(void*), void* context) {
  MutexLock lock(mutex_);
  now_ = now;
  now_context_ = context;
}

void Recorder::Fail(const char* what) {
  const int error = errno;
  char text[640];
  snprintf(text, sizeof text, "recording to %.400s stopped: %s: %s; the program goes on", path_.c_str(), what,
           strerror(error));
  stopped_.store(true, std::memory_order_relaxed);
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  LogWarning(text);
}

bool Recorder::Open() {
  buffer_ = static_cast<char*>(malloc(kBufferBytes));
  if (buffer_ == nullptr) {
    Fail("no memory for the buffer");
    return false;
  }
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0) {  // another process of the same run records to this file
    close(fd_);
    path_ += "." + std::to_string(owner_);
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  }
  if (fd_ < 0 || ftruncate(fd_, 0) != 0) {
    Fail("cannot be written");
    return false;
  }
  memcpy(buffer_, kMagic, sizeof kMagic);
  const uint32_t head[2] = {kVersion, flags_};
  memcpy(buffer_ + sizeof kMagic, head, sizeof head);
  used_ = sizeof kMagic + sizeof head;
  last_ns_ = now_ != nullptr ? now_(now_context_) : MonotonicNow();
  return true;
}

void Recorder::WriteOut() {
  size_t done = 0;
  while (done < used_) {
    const ssize_t n = write(fd_, buffer_ + done, used_ - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Fail("write");
    done += static_cast<size_t>(n);
  }
  used_ = 0;
}

void Recorder::Append(const uint8_t* data, size_t bytes) {
  while (bytes > 0 && fd_ >= 0) {
    if (used_ == kBufferBytes) WriteOut();
    if (fd_ < 0) return;
    const size_t part = bytes < kBufferBytes - used_ ? bytes : kBufferBytes - used_;
    memcpy(buffer_ + used_, data, part);
    used_ += part;
    data += part;
    bytes -= part;
  }
}

void Recorder::Put(Type type, const Payload& payload, bool timed) {
  if (stopped_.load(std::memory_order_relaxed) || payload.bad()) return;
  if (getpid() != owner_) {
    stopped_.store(true, std::memory_order_relaxed);
    return;
  }
  if (buffer_ == nullptr && !Open()) return;
  uint8_t head[32];
  uint8_t time[10];
  size_t time_bytes = 0;
  const auto varint = [](uint8_t* to, uint64_t value) {
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) to[n++] = static_cast<uint8_t>(value | 0x80);
    to[n++] = static_cast<uint8_t>(value);
    return n;
  };
  if (timed) {
    const uint64_t now = now_ != nullptr ? now_(now_context_) : MonotonicNow();
    time_bytes = varint(time, now > last_ns_ ? now - last_ns_ : 0);
    if (now > last_ns_) last_ns_ = now;
  }
  head[0] = static_cast<uint8_t>(type);
  const size_t head_bytes = 1 + varint(head + 1, payload.size() + time_bytes);
  Append(head, head_bytes);
  Append(time, time_bytes);
  Append(payload.data(), payload.size());
  ++records_;
}

void Recorder::Flush() {
  MutexLock lock(mutex_);
  if (fd_ >= 0 && getpid() == owner_) WriteOut();
}

void Recorder::Finish() {
  MutexLock lock(mutex_);
  if (fd_ < 0 || getpid() != owner_) return;
  Payload p;
  p.U(records_);
  Put(Type::kEnd, p, true);
  if (fd_ >= 0) WriteOut();
  stopped_.store(true, std::memory_order_relaxed);
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void Recorder::Meta(const char* key, const char* value) {
  Payload p;
  p.Str(key).Str(value);
  MutexLock lock(mutex_);
  Put(Type::kMeta, p, false);
}

bool Recorder::HasFunction(uint64_t handle) {
  MutexLock lock(mutex_);
  return functions_.contains(handle);
}

uint32_t Recorder::Function(uint64_t handle, const char* name, std::span<const Parameter> parameters) {
  MutexLock lock(mutex_);
  const auto [it, fresh] = functions_.try_emplace(handle, static_cast<uint32_t>(functions_.size()));
  if (fresh) {
    Payload p;
    p.U(it->second).Str(name != nullptr ? name : "").U(parameters.size());
    for (const Parameter& parameter : parameters) p.U(parameter.offset).U(parameter.bytes);
    Put(Type::kFunction, p, false);
  }
  return it->second;
}

void Recorder::PutAccesses(Payload* p, std::span<const AccessRange> accesses) {
  p->U(accesses.size());
  for (const AccessRange& range : accesses) {
    p->U(range.address)
        .U(range.bytes)
        .U(static_cast<uint64_t>(range.access) | static_cast<uint64_t>(range.source) << 2);
  }
}

uint64_t Recorder::Launch(const LaunchRecord& launch) {
  Payload p;
  p.U(launch.function).U(launch.stream);
  for (const uint32_t n : launch.grid) p.U(n);
  for (const uint32_t n : launch.block) p.U(n);
  p.U(launch.shared_bytes).U(launch.flags).U(launch.words.size());
  for (const uint64_t word : launch.words) p.U(word);
  PutAccesses(&p, launch.accesses);
  MutexLock lock(mutex_);
  Put(Type::kLaunch, p, true);
  return launches_++;
}

void Recorder::Duration(uint64_t launch, uint64_t nanoseconds) {
  Payload p;
  p.U(launch).U(nanoseconds);
  MutexLock lock(mutex_);
  Put(Type::kDuration, p, false);
}

void Recorder::PutRanges(Type type, uint64_t launch, std::span<const AccessRange> ranges) {
  Payload p;
  p.U(launch).U(ranges.size());
  bool directed = false;
  for (const AccessRange& range : ranges) {
    p.U(range.address).U(range.bytes);
    directed = directed || range.access != Access::kUnknown;
  }
  for (size_t i = 0; directed && i < ranges.size(); ++i) p.U(static_cast<uint64_t>(ranges[i].access));
  MutexLock lock(mutex_);
  Put(type, p, false);
}

void Recorder::Truth(uint64_t launch, std::span<const AccessRange> pages) { PutRanges(Type::kTruth, launch, pages); }

void Recorder::Guessed(uint64_t launch, std::span<const AccessRange> pages) {
  PutRanges(Type::kGuessed, launch, pages);
}

void Recorder::Changed(uint64_t launch, std::span<const AccessRange> bytes) {
  PutRanges(Type::kChanged, launch, bytes);
}

#define SLUICE_TIMED(type, fields) \
  do {                             \
    Payload p;                     \
    p fields;                      \
    MutexLock lock(mutex_);        \
    Put(Type::type, p, true);      \
  } while (false)

void Recorder::Alloc(AllocKind kind, uint64_t address, uint64_t bytes, uint64_t stream, uint32_t device) {
  SLUICE_TIMED(kAlloc, .U(address).U(bytes).U(static_cast<uint64_t>(kind)).U(stream).U(device));
}
void Recorder::Free(uint64_t address, uint64_t stream) { SLUICE_TIMED(kFree, .U(address).U(stream)); }
void Recorder::Report(uint64_t address, int64_t bytes, uint32_t device) {
  SLUICE_TIMED(kReport, .U(address).S(bytes).U(device));
}
void Recorder::Copy(uint64_t stream, uint64_t destination, uint64_t source, uint64_t bytes, uint32_t copy_flags) {
  SLUICE_TIMED(kCopy, .U(stream).U(destination).U(source).U(bytes).U(copy_flags));
}
void Recorder::Set(uint64_t stream, uint64_t destination, uint64_t bytes, uint64_t value) {
  SLUICE_TIMED(kSet, .U(stream).U(destination).U(bytes).U(value));
}
void Recorder::StreamCreate(uint64_t stream, uint32_t flags) { SLUICE_TIMED(kStreamCreate, .U(stream).U(flags)); }
void Recorder::StreamDestroy(uint64_t stream) { SLUICE_TIMED(kStreamDestroy, .U(stream)); }
void Recorder::EventRecord(uint64_t event, uint64_t stream) { SLUICE_TIMED(kEventRecord, .U(event).U(stream)); }
void Recorder::StreamWaitEvent(uint64_t stream, uint64_t event) { SLUICE_TIMED(kStreamWaitEvent, .U(stream).U(event)); }
void Recorder::EventSync(uint64_t event) { SLUICE_TIMED(kEventSync, .U(event)); }
void Recorder::StreamSync(uint64_t stream) { SLUICE_TIMED(kStreamSync, .U(stream)); }
void Recorder::DeviceSync() {
  MutexLock lock(mutex_);
  Put(Type::kDeviceSync, Payload(), true);
}
void Recorder::CaptureBegin(uint64_t stream, uint32_t mode) { SLUICE_TIMED(kCaptureBegin, .U(stream).U(mode)); }
void Recorder::CaptureEnd(uint64_t stream, uint64_t graph) { SLUICE_TIMED(kCaptureEnd, .U(stream).U(graph)); }
void Recorder::GraphInstantiate(uint64_t graph, uint64_t executable) {
  SLUICE_TIMED(kGraphInstantiate, .U(graph).U(executable));
}
void Recorder::GraphLaunch(uint64_t executable, uint64_t stream, const std::vector<std::vector<AccessRange>>* nodes) {
  Payload p;
  p.U(executable).U(stream);
  if (nodes != nullptr) p.U(nodes->size());
  for (size_t i = 0; nodes != nullptr && i < nodes->size(); ++i) PutAccesses(&p, (*nodes)[i]);
  MutexLock lock(mutex_);
  Put(Type::kGraphLaunch, p, true);
}
void Recorder::Step(const char* name) { SLUICE_TIMED(kStep, .Str(name)); }
void Recorder::WorkingSet(uint32_t device, uint64_t managed_bytes, uint64_t other_bytes) {
  SLUICE_TIMED(kWorkingSet, .U(device).U(managed_bytes).U(other_bytes));
}
#undef SLUICE_TIMED

}  // namespace sluice::trace
