// How a library call's access set meets the launches that the call makes (hooklib/libraries/library_calls.h).
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_LIBRARY_LAUNCHES_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_LIBRARY_LAUNCHES_H_

#include <vector>

#include "hooklib/libraries/library_calls.h"
#include "hooklib/memory/types.h"

namespace sluice {

struct Device;
struct Named;
struct Stream;

// For a launch on `stream` inside `call`: appends the call's ranges to `exact`, and to `words` the pointers of unknown
// reach. So many that it adds are only read: `reads` at the begin. So many at the end of `exact` are overwritten whole
// by what begins with this launch: `overwritten`. Words that the ranges hold are dropped, so that an operand inside a
// large block fetches its own bytes and no more; what other live memory they name (the library's workspaces) stays, and
// is counted. True where all that the call touches is known.
bool AttachLibraryCall(Stream* stream, LibraryCall* call, Named* named, std::vector<memory::Extent>* exact,
                       size_t* reads, size_t* overwritten);
// Where all that the call touches is known, drops of what a kernel of its own names the operands: words, and tensors
// that TMA descriptors stand for, which do not say whether they are written.
void DropOperands(const LibraryCall& call, Named* named);
// Sets are wanted while a trace is recorded, once residency is managed, and while anything is captured: a graph's nodes
// are launched later, when it may be. Call when one of these has changed.
void WantLibraryCalls();
// Counts what a launch's parameters name of what lives, and its call's ranges do not hold. The device's lock is held.
void NoteWordsBeyond(Device* device, const LibraryCall& call, const std::vector<uint64_t>& words);
// All that a call touches was known: less room need be left for what is not seen. The device's lock is held.
void NoteExtentsSeen(Device* device);
// What a captured launch of the call names belongs to the graph.
void MarkCapturedCall(const Stream& stream, const LibraryCall& call);

// The counters, on a line at DEBUG; nothing where no call was described.
void LogLibraryCounters();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_LIBRARY_LAUNCHES_H_
