// Which threads of the process queue work.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_QUEUEING_THREADS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_QUEUEING_THREADS_H_

namespace sluice {

// Whether a running thread other than the calling one has named a stream in a call. Such a thread may queue work at any
// time. Thread-safe.
bool OtherThreadsQueue();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_QUEUEING_THREADS_H_
