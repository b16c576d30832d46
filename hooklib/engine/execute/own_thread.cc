#include "hooklib/engine/execute/own_thread.h"

#include <pthread.h>
#include <signal.h>

#include "hooklib/engine/device/host_limits.h"

namespace sluice {

bool StartOwnThread(const char* name, void* (*run)(void*)) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  const cpu_set_t mask = CpuMask();
  pthread_attr_setaffinity_np(&attributes, sizeof mask, &mask);
  pthread_t thread;
  const bool made = pthread_create(&thread, &attributes, run, nullptr) == 0;
  if (made) pthread_setname_np(thread, name);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return made;
}

}  // namespace sluice
