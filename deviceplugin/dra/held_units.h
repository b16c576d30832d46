// Units that containers of the device plugin still hold, after the node has switched to DRA.
#ifndef SLUICE_DEVICEPLUGIN_DRA_HELD_UNITS_H_
#define SLUICE_DEVICEPLUGIN_DRA_HELD_UNITS_H_

#include <map>
#include <string>

#include "common/mutex.h"
#include "deviceplugin/host/allocation_store.h"

namespace sluice::deviceplugin::dra {

// Thread-safe. The driver holds the node's lock, so that no such container can come: once none is left, no file is
// read.
class HeldUnits {
 public:
  explicit HeldUnits(AllocationStore store) : store_(std::move(store)) {}

  // By the card's uuid. After an error the last answer.
  std::map<std::string, int> Now() SLUICE_EXCLUDES(mutex_);

 private:
  const AllocationStore store_;
  Mutex mutex_;
  std::map<std::string, int> held_ SLUICE_GUARDED_BY(mutex_);
  bool is_read_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::deviceplugin::dra

#endif  // SLUICE_DEVICEPLUGIN_DRA_HELD_UNITS_H_
