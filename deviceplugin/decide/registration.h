// When to serve anew and when to register with kubelet. A pure state machine: the caller looks at the folder, acts,
// reports.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_REGISTRATION_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_REGISTRATION_H_

#include <chrono>
#include <cstdint>
#include <optional>

namespace sluice::deviceplugin {

// Identity of a socket file. Kubelet's restart makes a new one, often with the inode of the old: the change time tells
// them apart.
struct SocketId {
  uint64_t device = 0, inode = 0;
  int64_t changed_ns = 0;
  bool operator==(const SocketId&) const = default;
};

struct Observed {
  std::optional<SocketId> kubelet;  // kubelet.sock, if it is there
  std::optional<SocketId> own;      // the socket that we serve on, if it is there
  int watchers = 0;                 // open ListAndWatch streams
};

class Registration {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Action {
    kWait,
    kServe,     // (re)create our socket and server
    kRegister,  // call kubelet
  };

  // Kubelet opens its stream right after Register; where it stays away longer it has forgotten us. A stream that ended
  // while kubelet's socket stays is waited for less long.
  static constexpr std::chrono::milliseconds kStreamPatience{5000};
  static constexpr std::chrono::milliseconds kLostStreamPatience{1000};
  // After our old server ended under a living kubelet: it ends its old client by the resource's name, late, and would
  // end the new one (kubelet 1.34, plugin/v1beta1 runClient).
  static constexpr std::chrono::milliseconds kSettle{300};
  static constexpr std::chrono::milliseconds kFirstBackoff{100};
  static constexpr std::chrono::milliseconds kLongestBackoff{10'000};

  Action Next(const Observed& seen, Clock::time_point now);

  void Served(bool ok, std::optional<SocketId> own, Clock::time_point now);
  // With the kubelet that Next saw last.
  void Registered(bool ok, Clock::time_point now);

  bool registered() const { return registered_; }
  // Why it is not registered any more, in a few words; as of the last change.
  const char* why_lost() const { return why_lost_; }
  // The earliest time at which Next can answer otherwise without a change in the folder; nothing: only a change can.
  std::optional<Clock::time_point> Wake() const { return wake_; }

 private:
  void BackOff(Clock::time_point now);

  const char* why_lost_ = "";
  std::optional<SocketId> own_;      // what we serve on
  std::optional<SocketId> kubelet_;  // seen last
  Clock::time_point not_before_{};   // next registration
  Clock::time_point serve_after_{};  // next try to serve
  bool registered_ = false, was_watched_ = false, settle_ = false;
  Clock::time_point last_watched_{};  // a stream was open, or registration just done
  std::optional<Clock::time_point> wake_;
  std::chrono::milliseconds backoff_ = kFirstBackoff;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_REGISTRATION_H_
