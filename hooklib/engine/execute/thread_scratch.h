// Buffers that a thread reuses from call to call.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_THREAD_SCRATCH_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_THREAD_SCRATCH_H_

namespace sluice {

// The calling thread's T; null once the thread's storage is destroyed. Destructors of the application's static and
// thread-local objects run later than that, and may launch.
template <typename T>
T* ThreadScratch() {
  static constinit thread_local bool has_ended = false;
  struct Holder {
    T value;
    ~Holder() { has_ended = true; }
  };
  if (has_ended) return nullptr;
  static thread_local Holder holder;
  return &holder.value;
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_THREAD_SCRATCH_H_
