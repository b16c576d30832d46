// The layout of a sluice trace: the GPU calls of one process, in order.
//
// A file is the eight bytes of kMagic, a 32-bit version and 32 flag bits (both little-endian), then records. The whole
// file may be one zstd stream, which begins with zstd's own magic. A record is a type byte, its payload's length and
// the payload. Integers are LEB128 varints ("u"), signed ones zigzag varints ("s"), strings a length and bytes ("str").
// A reader skips record types and trailing payload bytes that it does not know, so both may be added without a new
// version.
//
// Every payload begins with dt (u): nanoseconds of host time since the last record that has one. Meta, Function,
// Duration, Truth, Guessed and Changed have none. Addresses are the recording process's own; the Alloc and Free records
// before an address tell its block. Stream, event, graph and device are the recording process's handles or ordinals.
// Stream 0 is the legacy default stream; 1 and 2 are CUDA's own names for the legacy and the per-thread default stream.
#ifndef SLUICE_TRACE_FORMAT_H_
#define SLUICE_TRACE_FORMAT_H_

#include <cstddef>
#include <cstdint>

namespace sluice::trace {

inline constexpr char kMagic[8] = {'S', 'L', 'T', 'R', 'A', 'C', 'E', '\n'};
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kFlagSynthetic = 1;  // made by a generator, not recorded from a program
inline constexpr uint64_t kPageBytes = 65536;  // granularity of Truth: the driver's unit of migration

enum class Type : uint8_t {
  kMeta = 1,   // str key, str value ("command", "gpu", "driver", "peak-live-bytes", ...)
  kAlloc = 2,  // dt, u addr, u bytes, u AllocKind, u stream (asynchronous ones), u device
  kFree = 3,   // dt, u addr, u stream (asynchronous ones)
  // dt, u addr, s bytes (negative: freed), u device: PyTorch's allocator reports a range inside an allocation
  kReport = 4,
  kFunction = 5,  // u id (ids count up from 0), str name, u n, n x (u offset, u size) of the parameters
  // dt, u function, u stream, 3 x u grid, 3 x u block, u shared bytes, u LaunchFlags, u n, n x u word (the 8-byte words
  // of the parameters, in order), u m, m x (u addr, u bytes, u Access | AccessSource << 2): the engine's access set
  kLaunch = 6,
  kCopy = 7,               // dt, u stream, u destination, u source, u bytes, u CopyFlags
  kSet = 8,                // dt, u stream, u destination, u bytes, u value
  kStreamCreate = 9,       // dt, u stream, u flags
  kStreamDestroy = 10,     // dt, u stream
  kEventRecord = 11,       // dt, u event, u stream
  kStreamWaitEvent = 12,   // dt, u stream, u event
  kEventSync = 13,         // dt, u event
  kStreamSync = 14,        // dt, u stream
  kDeviceSync = 15,        // dt
  kCaptureBegin = 16,      // dt, u stream, u mode
  kCaptureEnd = 17,        // dt, u stream, u graph
  kGraphInstantiate = 18,  // dt, u graph, u executable
  // dt, u executable, u stream; then, where an engine recorded it (since 2026-11-23), u n, n x (u m, m x (u addr,
  // u bytes, u Access | AccessSource << 2)): the access set of each node that touches memory
  kGraphLaunch = 19,
  kStep = 20,      // dt, str name: a training step (a token, ...) begins
  kDuration = 21,  // u launch (ordinal of the kLaunch record, from 0), u nanoseconds on the GPU
  // u launch, u n, n x (u addr, u bytes), then n x u Access where the direction is known (recordings since
  // 2026-11-22): the pages that the launch truly touched. Engines never read it.
  kTruth = 22,
  kEnd = 23,  // dt, u records before this one: the recording is complete
  // u launch, u n, n x (u addr, u bytes): pages that the driver's density heuristic fetched beside a measured launch's
  // faults. Only raw recordings have it: `sluice-trace settle` turns Truth, Guessed and Changed into one Truth.
  kGuessed = 24,
  // As Truth: ranges whose bytes differ after a measured launch. kWrite: before it they held one repeated word, as
  // memory is filled that has not been written yet, so that there was nothing to read; else kReadWrite. Only raw
  // recordings have it; a launch without such a record was not compared.
  kChanged = 25,
  // dt, u device, u bytes, u bytes: about once a second, what work used within the last minute as the engine knows it:
  // chunks of managed memory, and memory that always stays on the GPU (since 2026-11-26)
  kWorkingSet = 26,
};

enum class AllocKind : uint8_t { kDevice = 0, kManaged = 1, kAsync = 2, kVmm = 3, kHost = 4 };

enum class Access : uint8_t { kUnknown = 0, kRead = 1, kWrite = 2, kReadWrite = 3 };
// kStruct: a struct among the parameters names the part of the memory that it points to (PyTorch's, TMA descriptors).
enum class AccessSource : uint8_t {
  kParameters = 0,
  kLibrary = 1,
  kGraph = 2,
  kLearned = 3,
  kCopy = 4,
  kStruct = 5,
};
inline constexpr size_t kAccessSources = 6;

enum LaunchFlags : uint32_t {
  kLaunchCooperative = 1,
  kLaunchCaptured = 2,
  kLaunchIncomplete = 4 /* some parameter words are missing */
};

// The sides of a copy; a side that neither flag names is host memory.
enum CopyFlags : uint32_t { kCopyFromDevice = 1, kCopyToDevice = 2, kCopySync = 4, kCopyPinned = 8 };

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_FORMAT_H_
