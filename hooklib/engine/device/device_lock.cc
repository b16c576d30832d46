#include "hooklib/engine/device/device_lock.h"

namespace sluice {

constinit thread_local int HeldDeviceLocks::t_count = 0;
constinit thread_local int HeldDeviceLocks::t_own_waits = 0;

}  // namespace sluice
