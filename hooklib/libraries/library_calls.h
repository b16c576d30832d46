// Calls of cuDNN, cuBLAS and cuBLASLt (SLUICE_LIB rows of hooks.def): their entries, and the access sets of the
// launches that they make. hooklib/engine reads CurrentLibraryCall() at a launch. Includes no CUDA and no library
// header.
#ifndef SLUICE_HOOKLIB_LIBRARIES_LIBRARY_CALLS_H_
#define SLUICE_HOOKLIB_LIBRARIES_LIBRARY_CALLS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

// --- the seam with the shim ---

// The engine's entry for `symbol`, with that function's signature, or null: its calls then go straight to the library.
// Asked once for each symbol, when it is first called. hooklib/libraries defines it; without it nothing is intercepted.
void* LibraryEntry(const char* symbol);
// For an entry, before anything else: the function of the copy of the library that the program called. Valid on this
// thread until the next call into a library.
void* LibraryReal();
// Another function of the copy that holds `real`, or null. Takes the loader's lock.
void* LibrarySymbol(void* real, const char* symbol);

// --- the access set of a call ---

struct LibraryRange {
  uint64_t address = 0;
  uint64_t bytes = 0;  // 0: a pointer whose reach is not known; it may mean all live memory around it
  bool read = false, written = false;
  // Every byte of the range is written by this call, and none is read before. Holds for the call as a whole: a later
  // launch of it may read the results of an earlier one.
  bool overwritten = false;
  // A workspace: by the library's documentation its contents count neither before nor after the call.
  bool scratch = false;
};

// Why a set does not hold everything that a call touches.
enum class UnknownReason : uint8_t {
  kNone,          // it holds everything
  kNullOperand,   // an operand that is needed is null
  kUnsupported,   // sizes, strides or types that are invalid, or that this version does not know
  kDescriptor,    // a descriptor that is destroyed, not finalized, or older than the engine
  kPointerArray,  // pointers are in device memory, and the copy that put them there was not seen
  kCount
};

struct LibraryCall {
  const char* symbol = nullptr;
  std::span<const LibraryRange> ranges;  // by address
  bool known = false;                    // the ranges are all that it touches, apart from the library's own memory
  // It reads pointers from device memory whose copy there was not seen: neither the set nor the kernels' parameters
  // name the memory behind them.
  bool has_unseen_pointers = false;
  // Each byte is touched about once and in order, so that remote access is an option. False for calls that read
  // operands repeatedly: GEMM, convolution, attention.
  bool streaming = false;
  uint32_t launches = 0;  // made so far; the engine counts each one that it attaches the set to
  // The call has queued something (a launch, a copy, an event) or entered another library. From here on the order of
  // its own work is not known, so memory that it overwrites may have been written already.
  bool has_queued = false;

  bool Covers(uint64_t address) const;  // some range holds the address
};

// The library call that this thread is in and whose set was computed, or null. Valid until the call returns.
LibraryCall* CurrentLibraryCall();

// Whether sets are computed at all: set by hooklib/engine once residency is managed or a trace is recorded. While it is
// false, an entry only jumps to the library.
extern std::atomic<bool> g_library_calls_wanted;

// Something was queued on this thread.
inline void NoteQueued() {
  if (!g_library_calls_wanted.load(std::memory_order_relaxed)) [[likely]]
    return;
  if (LibraryCall* call = CurrentLibraryCall()) call->has_queued = true;
}

struct LibraryCounters {
  std::atomic<uint64_t> calls{0};               // whose set was computed
  std::atomic<uint64_t> launches{0};            // that a set was attached to
  std::atomic<uint64_t> words_outside_sets{0};  // a launch's parameters name live memory that its call's set lacks
  std::array<std::atomic<uint64_t>, static_cast<std::size_t>(UnknownReason::kCount)> unknown{};  // calls, by reason
};
extern LibraryCounters g_library_counters;

// Pointer arrays of batched calls are known where they came from the host: hooklib/engine reports every small copy to
// the device. Does nothing unless sets are wanted. Any thread.
void NoteHostCopy(uint64_t destination, const void* host, uint64_t bytes);
// The range was freed, or its contents were replaced by a copy that nothing is known of. Any thread.
void ForgetHostCopies(uint64_t address, uint64_t bytes);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_LIBRARIES_LIBRARY_CALLS_H_
