// Keeps Promises up to date: a thread that follows the agent's file and kubelet's checkpoint by inotify.
#ifndef SLUICE_DEVICEPLUGIN_PROMISE_FOLLOWER_H_
#define SLUICE_DEVICEPLUGIN_PROMISE_FOLLOWER_H_

#include <memory>
#include <string>
#include <thread>

#include "deviceplugin/promises.h"

namespace sluice::deviceplugin {

class PromiseFollower {
 public:
  // Has read both files when it returns.
  PromiseFollower(std::string promise_file, std::string kubelet_dir, std::shared_ptr<Promises> promises);
  ~PromiseFollower();

 private:
  void Watch();
  void Follow();
  void ReadPromises();
  void ReadGiven();

  const std::string file_, kubelet_dir_;
  const std::shared_ptr<Promises> promises_;
  int inotify_ = -1, stop_ = -1;
  std::thread thread_;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_PROMISE_FOLLOWER_H_
