// A thread of the engine's own in the hooked process.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_OWN_THREAD_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_OWN_THREAD_H_

namespace sluice {

// Starts it, detached, with a small stack and all signals blocked, because signals are the program's. It may run on all
// CPUs that the process had when it began: the starting thread may be pinned to one. `name`: a literal, of 15
// characters at most. False: it could not be started.
bool StartOwnThread(const char* name, void* (*run)(void*));

// Whether the main thread has ended, by pthread_exit, and no thread is left but the engine's. Reads /proc:
// cheap enough for ten calls a second.
bool OnlyOwnThreadsAreLeft();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_OWN_THREAD_H_
