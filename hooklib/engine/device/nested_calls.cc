#include "hooklib/engine/device/nested_calls.h"

namespace sluice {

constinit thread_local int CallUnderway::t_depth = 0;

}  // namespace sluice
