#include "deviceplugin/reservation_watcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>

#include "absl/status/status.h"
#include "common/log/log.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {
namespace {

// A folder that was removed and recreated has no watch any more, so both watches are added again after this time.
constexpr int kRewatchMs = 10'000;

}  // namespace

ReservationWatcher::ReservationWatcher(std::string reservation_file, std::string kubelet_dir,
                                       std::shared_ptr<Reservations> reservations, std::shared_ptr<GrownShares> grown,
                                       std::shared_ptr<WaitingRequests> waiting, std::function<void()> withheld_changed)
    : file_(std::move(reservation_file)),
      kubelet_dir_(std::move(kubelet_dir)),
      reservations_(std::move(reservations)),
      grown_(std::move(grown)),
      waiting_(std::move(waiting)),
      withheld_changed_(std::move(withheld_changed)),
      inotify_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  Watch();
  ReadReservationFile();
  ReadCheckpointFile();
  thread_ = std::thread([this] { Run(); });
}

ReservationWatcher::~ReservationWatcher() {
  eventfd_write(stop_, 1);
  thread_.join();
  close(stop_);
  close(inotify_);
}

void ReservationWatcher::Watch() {
  const std::string folder = std::filesystem::path(file_).parent_path().string();
  (void)MakeDirs(folder);
  // Agent and kubelet rename both files into place; a test or a person may write them in place.
  for (const std::string& path : {folder, kubelet_dir_})
    inotify_add_watch(inotify_, path.c_str(), IN_MOVED_TO | IN_CLOSE_WRITE);
}

void ReservationWatcher::Run() {
  const std::string file_name = std::filesystem::path(file_).filename().string();
  while (true) {
    pollfd fds[2] = {{stop_, POLLIN, 0}, {inotify_, POLLIN, 0}};
    const int ready = poll(fds, 2, kRewatchMs);
    if (fds[0].revents != 0) return;
    bool reservations = ready == 0, given = ready == 0;
    alignas(inotify_event) char buffer[4096];
    for (ssize_t n; (n = read(inotify_, buffer, sizeof buffer)) > 0;) {
      for (char* at = buffer; at < buffer + n;) {
        const auto* event = reinterpret_cast<const inotify_event*>(at);
        const std::string_view name = event->len > 0 ? event->name : "";
        reservations |= name == file_name;
        given |= name == kCheckpointName;
        at += sizeof(inotify_event) + event->len;
      }
    }
    if (ready == 0) Watch();
    if (reservations) ReadReservationFile();
    if (given) ReadCheckpointFile();
  }
}

void ReservationWatcher::ReadReservationFile() {
  auto text = ReadFile(file_);
  auto pods = text.ok() ? ParseReservations(*text) : absl::StatusOr<std::map<std::string, BoundPod>>(text.status());
  if (!pods.ok()) {
    // The file is absent until the agent has listed the node's pods.
    Log(absl::IsNotFound(pods.status()) ? LogLevel::kDebug : LogLevel::kWarn,
        "reservations cannot be read, the previous ones stay in force",
        {{"why", std::string(pods.status().message())}});
    return;
  }
  std::string placed;
  for (const auto& [uid, pod] : *pods) {
    if (!pod.placement.empty()) placed += (placed.empty() ? "" : " ") + uid;
  }
  waiting_->SetPods(*pods);
  if (grown_->SetPods(*pods)) withheld_changed_();
  if (!reservations_) return;
  for (const std::string& problem : reservations_->SetPods(*std::move(pods))) {
    Log(LogLevel::kWarn, "a reservation cannot be honoured", {{"why", problem}});
  }
  Log(LogLevel::kDebug, "reservations", {{"pods", placed}});
}

void ReservationWatcher::ReadCheckpointFile() {
  auto checkpoint = ReadCheckpoint(kubelet_dir_);
  if (!checkpoint.ok()) return;
  waiting_->SetCheckpoint(*checkpoint);
  if (grown_->SetCheckpoint(*checkpoint)) withheld_changed_();
  if (reservations_) reservations_->SetCheckpoint(*std::move(checkpoint));
}

}  // namespace sluice::deviceplugin
