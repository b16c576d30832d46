// A thread that follows the agent's reservation file and kubelet's checkpoint by inotify, and passes both to
// GrownShares, WaitingRequests and, with an extender, Reservations.
#ifndef SLUICE_DEVICEPLUGIN_RESERVATION_WATCHER_H_
#define SLUICE_DEVICEPLUGIN_RESERVATION_WATCHER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "deviceplugin/decide/grown_shares.h"
#include "deviceplugin/decide/reservations.h"
#include "deviceplugin/decide/waiting_requests.h"

namespace sluice::deviceplugin {

class ReservationWatcher {
 public:
  // `reservations`: nullptr without an extender. `withheld_changed` is called when other devices are withheld. Both
  // files have been read when it returns.
  ReservationWatcher(std::string reservation_file, std::string kubelet_dir, std::shared_ptr<Reservations> reservations,
                     std::shared_ptr<GrownShares> grown, std::shared_ptr<WaitingRequests> waiting,
                     std::function<void()> withheld_changed);
  ~ReservationWatcher();

 private:
  void Watch();
  void Run();
  void ReadReservationFile();
  void ReadCheckpointFile();

  const std::string file_, kubelet_dir_;
  const std::shared_ptr<Reservations> reservations_;
  const std::shared_ptr<GrownShares> grown_;
  const std::shared_ptr<WaitingRequests> waiting_;
  const std::function<void()> withheld_changed_;
  int inotify_ = -1, stop_ = -1;
  std::thread thread_;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_RESERVATION_WATCHER_H_
