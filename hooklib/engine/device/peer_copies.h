// Copies that are work of another context than their stream's: cuMemFree waits for them.
//
// The driver runs a copy inside device memory in the context of its source. Between two GPUs, without access from the
// source's context to the destination's, it has a part in the destination's context, too (two H200s, driver 580:
// docs/lab/2026-11-30-frees-beside-copies.md). Copies to the host are taken to run in their source's context, too.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_PEER_COPIES_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_PEER_COPIES_H_

#include <atomic>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/engine/device/streams.h"

// Contexts are those that own memory; a green context's is the primary one. Thread-safe.
namespace sluice::peer_copies {

// Whether there ever were two. If not, nothing is to be noted.
inline std::atomic<bool> g_several_contexts{false};
void NoteContext(CUcontext context);

// The stream's newest work, a copy, is work of `context`, too. `owner`: the stream's context. Outside a capture, on the
// thread of a per-thread default stream.
void Note(CUcontext context, const Stream& stream, CUcontext owner);
// Waits for the noted copies, not for later work of their streams. Without a lock held.
void Await(CUcontext context);
bool AnyPending(CUcontext context);  // a query of the driver for each
// Before the driver may end the context: waits for copies in its memory and for those of its streams, and uses none of
// its events from then on. Without a lock held.
void EndContext(CUcontext context);
void ForgetContext(CUcontext context);  // it has ended, and access with it

// Copies from memory of `user` reach memory of `peer`: cuCtxEnablePeerAccess with `user` current.
void NoteAccess(CUcontext user, CUcontext peer, bool is_enabled);
bool HasAccess(CUcontext user, CUcontext peer);

}  // namespace sluice::peer_copies

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_PEER_COPIES_H_
