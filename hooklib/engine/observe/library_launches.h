// How a library call's access set meets the launches that the call makes (hooklib/libraries/library_calls.h).
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_LIBRARY_LAUNCHES_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_LIBRARY_LAUNCHES_H_

#include <vector>

#include "hooklib/engine/device/device_lock.h"
#include "hooklib/libraries/library_calls.h"
#include "hooklib/memory/types.h"

namespace sluice {

struct Device;
struct NamedMemory;
struct Stream;

// For a launch on `stream` inside `call`: appends the call's ranges to `exact`, and pointers of unknown reach to the
// words.
// - `*read_only`: so many of the added ranges, at the start, are only read.
// - `*overwritten`: so many, at the end, are overwritten whole by the call, which begins with this launch.
// Words inside the ranges are dropped, so that an operand in a large block fetches its own bytes and no more. Words
// that name other live memory (the library's workspaces) stay and are counted. True: all memory that the call touches
// is known.
bool AttachLibraryCall(Stream* stream, LibraryCall* call, NamedMemory* named, std::vector<memory::Extent>* exact,
                       size_t* read_only, size_t* overwritten) SLUICE_TAKES_DEVICE_LOCK;
// Where all memory that the call touches is known: drops its operands from those that one of its kernels names. TMA
// descriptors among these do not say whether their tensors are written.
void DropOperands(const LibraryCall& call, NamedMemory* named);
// Access sets are wanted while a trace is recorded, once residency is managed, and while anything is captured: a
// graph's nodes are launched later, perhaps under pressure. Call when one of these has changed.
void WantLibraryCalls();
// Counts words of a launch that name live memory outside its call's ranges.
void NoteWordsOutside(Device* device, const LibraryCall& call, const std::vector<uint64_t>& words) SLUICE_DEVICE_LOCKED;
// All memory that a call touches was known: the memory factor may leave less room for unknown accesses.
void NoteExtentsSeen(Device* device) SLUICE_DEVICE_LOCKED;
// Memory that a captured launch of the call names belongs to the graph.
void MarkCapturedCall(const Stream& stream, const LibraryCall& call);

// One line at DEBUG with the counters; none where no call was described.
void LogLibraryCounters();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_LIBRARY_LAUNCHES_H_
