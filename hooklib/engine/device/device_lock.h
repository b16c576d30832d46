// The lock of a device, in the form that clang's thread-safety analysis checks.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_LOCK_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_LOCK_H_

#include "common/thread_annotations.h"
#include "hooklib/memory/lock.h"

namespace sluice {

// Stands for the lock of the device that the data belong to. One capability for all devices, because streams, contexts
// and queues reach their device by a pointer, which the analysis does not follow. No thread holds two devices' locks.
class SLUICE_CAPABILITY("device lock") DeviceLockCapability {};
inline DeviceLockCapability g_device_lock;

// On data: read and written with the device's lock held. On functions: the caller holds it; the function takes it.
#define SLUICE_BY_DEVICE_LOCK SLUICE_GUARDED_BY(::sluice::g_device_lock)
#define SLUICE_DEVICE_LOCKED SLUICE_REQUIRES(::sluice::g_device_lock)
#define SLUICE_TAKES_DEVICE_LOCK SLUICE_EXCLUDES(::sluice::g_device_lock)

// How many devices' locks the calling thread holds.
class HeldDeviceLocks {
 public:
  static bool IsAny() { return t_count != 0; }
  static void Add() { ++t_count; }
  static void Remove() { --t_count; }
  // The same for calls that wait: none while an OwnWait is open.
  static int CountInWaits() { return t_own_waits != 0 ? 0 : t_count; }

 private:
  friend class OwnWait;
  static constinit thread_local int t_count, t_own_waits;
};

// A wait for the engine's own transfers, which depend on no work of the application: it may be made with a device's
// lock held. The simulated driver reports every other one (driver_port.h).
class OwnWait {
 public:
  OwnWait() { ++HeldDeviceLocks::t_own_waits; }
  ~OwnWait() { --HeldDeviceLocks::t_own_waits; }
  OwnWait(const OwnWait&) = delete;
  OwnWait& operator=(const OwnWait&) = delete;
};

// Holds the lock of one device for a scope. The bodies are not checked: they are where Device::mutex becomes the
// capability.
class SLUICE_SCOPED_LOCK DeviceLock {
 public:
  explicit DeviceLock(memory::CountedLock& mutex) SLUICE_ACQUIRE(g_device_lock) SLUICE_NO_THREAD_SAFETY_ANALYSIS
      : mutex_(mutex) {
    TakeIt();
  }
  ~DeviceLock() SLUICE_RELEASE() SLUICE_NO_THREAD_SAFETY_ANALYSIS {
    if (held_) GiveBack();
  }
  DeviceLock(const DeviceLock&) = delete;
  DeviceLock& operator=(const DeviceLock&) = delete;

  void Unlock() SLUICE_RELEASE() SLUICE_NO_THREAD_SAFETY_ANALYSIS {
    held_ = false;
    GiveBack();
  }
  void Lock() SLUICE_ACQUIRE() SLUICE_NO_THREAD_SAFETY_ANALYSIS {
    TakeIt();
    held_ = true;
  }

 private:
  void TakeIt() SLUICE_NO_THREAD_SAFETY_ANALYSIS {
    mutex_.lock();
    HeldDeviceLocks::Add();
  }
  void GiveBack() SLUICE_NO_THREAD_SAFETY_ANALYSIS {
    HeldDeviceLocks::Remove();
    mutex_.unlock();
  }

  memory::CountedLock& mutex_;
  bool held_ = true;
};

// Releases the held lock for a scope, and takes it again at its end.
class SLUICE_SCOPED_LOCK DeviceUnlock {
 public:
  explicit DeviceUnlock(memory::CountedLock& mutex) SLUICE_RELEASE(g_device_lock) SLUICE_NO_THREAD_SAFETY_ANALYSIS
      : mutex_(mutex) {
    HeldDeviceLocks::Remove();
    mutex_.unlock();
  }
  ~DeviceUnlock() SLUICE_RELEASE() SLUICE_NO_THREAD_SAFETY_ANALYSIS {
    mutex_.lock();
    HeldDeviceLocks::Add();
  }
  DeviceUnlock(const DeviceUnlock&) = delete;
  DeviceUnlock& operator=(const DeviceUnlock&) = delete;

 private:
  memory::CountedLock& mutex_;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_LOCK_H_
