// What a call, a copy or a memset overwrites whole comes back to the card empty: a discard and a prefetch in the order
// of the application's stream, before the work (core/overwrites.cc decides for which chunks).
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_OVERWRITES_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_OVERWRITES_H_

#include "hooklib/engine/device/streams.h"
#include "hooklib/policy/plan.h"

namespace sluice {

// Whether an event set on the stream now stands behind everything that its next work waits for. The device's lock is
// held.
bool OrderIsKnown(Stream* stream);
// Queues what the plan renews, and the stream's wait for it. The device's lock and the stream's order are held.
void Repopulate(const policy::Plan& plan, Stream* stream);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_OVERWRITES_H_
