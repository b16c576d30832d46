// A thread of the engine's own in somebody else's process.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_OWN_THREAD_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_OWN_THREAD_H_

namespace sluice {

// Starts it, detached, with all signals blocked (they are the program's) and a small stack, on whichever processors the
// process had when it began: who starts it may be a thread that is pinned to one. False: there is no such thread.
bool StartOwnThread(const char* name, void* (*run)(void*));

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_OWN_THREAD_H_
