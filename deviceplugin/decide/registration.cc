#include "deviceplugin/decide/registration.h"

#include <algorithm>

namespace sluice::deviceplugin {

Registration::Action Registration::Next(const Observed& seen, Clock::time_point now) {
  wake_.reset();
  // Another kubelet, or none: what we tried with the last one says nothing about this one. A kubelet that was killed
  // leaves its socket, on which every try fails.
  if (seen.kubelet != kubelet_) {
    why_lost_ = seen.kubelet ? "another kubelet's socket" : "kubelet's socket is gone";
    kubelet_ = seen.kubelet;
    registered_ = false;
    backoff_ = kFirstBackoff;
    not_before_ = now;
  }
  if (!own_ || seen.own != own_) {
    // Kubelet removes all sockets when it starts; someone may also have deleted ours, or put another in its place.
    own_.reset();
    if (registered_) {
      settle_ = true;
      why_lost_ = seen.own ? "another socket lies in the place of ours" : "our socket is gone";
    }
    registered_ = false;
    if (now < serve_after_) {
      wake_ = serve_after_;
      return Action::kWait;
    }
    return Action::kServe;
  }
  if (!seen.kubelet) return Action::kWait;
  if (registered_) {
    if (seen.watchers > 0) {
      last_watched_ = now;
      was_watched_ = true;
      backoff_ = kFirstBackoff;
      return Action::kWait;
    }
    const auto patience = was_watched_ ? kLostStreamPatience : kStreamPatience;
    if (now - last_watched_ < patience) {
      wake_ = last_watched_ + patience;
      return Action::kWait;
    }
    registered_ = false;
    why_lost_ = "kubelet does not watch";
  }
  if (now < not_before_) {
    wake_ = not_before_;
    return Action::kWait;
  }
  return Action::kRegister;
}

void Registration::Served(bool ok, std::optional<SocketId> own, Clock::time_point now) {
  if (ok && own) {
    own_ = own;
    not_before_ = settle_ ? now + kSettle : now;
    settle_ = false;
    return;
  }
  own_.reset();
  BackOff(now);
  serve_after_ = not_before_;
}

void Registration::Registered(bool ok, Clock::time_point now) {
  registered_ = ok;
  if (ok) {
    last_watched_ = now;
    was_watched_ = false;
    // Kept until a stream was seen: a kubelet that answers and never watches is not called again and again.
    not_before_ = now + backoff_;
    return;
  }
  BackOff(now);
}

void Registration::BackOff(Clock::time_point now) {
  not_before_ = now + backoff_;
  backoff_ = std::min(backoff_ * 2, kLongestBackoff);
}

}  // namespace sluice::deviceplugin
