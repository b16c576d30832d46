// Decides when to serve again and when to register with kubelet. A pure state machine: the caller observes the folder,
// carries out the action and reports the result.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_REGISTRATION_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_REGISTRATION_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "common/backoff.h"

namespace sluice::deviceplugin {

// Identity of a socket file. Kubelet's restart makes a new one, often with the inode of the old; the change time tells
// them apart.
struct SocketId {
  uint64_t device = 0, inode = 0;
  int64_t changed_ns = 0;
  bool operator==(const SocketId&) const = default;
};

struct Observed {
  std::optional<SocketId> kubelet;  // kubelet.sock, if it exists
  std::optional<SocketId> own;      // the socket that we serve on, if it exists
  int watchers = 0;                 // open ListAndWatch streams
};

class Registration {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Action {
    kWait,
    kServe,     // (re)create our socket and server
    kRegister,  // call kubelet's Registration service
  };

  // Kubelet opens its stream right after Register; without a stream for this long, it has lost the registration. If an
  // open stream ends while kubelet's socket stays, the wait is shorter.
  static constexpr std::chrono::milliseconds kFirstStreamTimeout{5000};
  static constexpr std::chrono::milliseconds kLostStreamTimeout{1000};
  // Delay after our old server ended while kubelet kept running. Kubelet ends its old client late and by the resource's
  // name, which would end the new client too (kubelet 1.34, plugin/v1beta1 runClient).
  static constexpr std::chrono::milliseconds kSettleDelay{300};
  static constexpr std::chrono::milliseconds kInitialBackoff{100};
  static constexpr std::chrono::milliseconds kMaxBackoff{10'000};

  Action Next(const Observed& seen, Clock::time_point now);

  void Served(bool ok, std::optional<SocketId> own, Clock::time_point now);
  // The result of registering with the kubelet that Next saw last.
  void Registered(bool ok, Clock::time_point now);

  bool registered() const { return registered_; }
  // Why the registration was lost, in a few words, as of the last change.
  const char* why_unregistered() const { return why_unregistered_; }
  // The earliest time at which Next can answer differently without a change in the folder; nullopt: only after a
  // change.
  std::optional<Clock::time_point> NextWake() const { return wake_; }

 private:
  const char* why_unregistered_ = "";
  std::optional<SocketId> own_;      // the socket that we serve on
  std::optional<SocketId> kubelet_;  // kubelet's socket as last seen
  Clock::time_point not_before_{};   // earliest next registration
  Clock::time_point serve_after_{};  // earliest next attempt to serve
  bool registered_ = false, was_watched_ = false, settle_before_register_ = false;
  Clock::time_point last_watched_{};  // a stream was open then, or the registration was just done
  std::optional<Clock::time_point> wake_;
  Backoff backoff_{kInitialBackoff, kMaxBackoff};
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_REGISTRATION_H_
