#include "deviceplugin/decide/registration.h"

namespace sluice::deviceplugin {

Registration::Action Registration::Next(const Observed& seen, Clock::time_point now) {
  wake_.reset();
  // Another kubelet, or none: the back-off of the last one says nothing about this one. (A killed kubelet leaves its
  // socket, on which every attempt fails.)
  if (seen.kubelet != kubelet_) {
    why_unregistered_ = seen.kubelet ? "kubelet restarted: its socket is a new one" : "kubelet's socket is gone";
    kubelet_ = seen.kubelet;
    registered_ = false;
    backoff_.Reset();
    not_before_ = now;
  }
  if (!own_ || seen.own != own_) {
    // Kubelet removes all sockets when it starts. Someone may also have deleted or replaced ours.
    own_.reset();
    if (registered_) {
      settle_before_register_ = true;
      why_unregistered_ = seen.own ? "another socket replaced ours" : "our socket is gone";
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
      backoff_.Reset();
      return Action::kWait;
    }
    const auto timeout = was_watched_ ? kLostStreamTimeout : kFirstStreamTimeout;
    if (now - last_watched_ < timeout) {
      wake_ = last_watched_ + timeout;
      return Action::kWait;
    }
    registered_ = false;
    why_unregistered_ = "kubelet has no ListAndWatch stream open";
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
    not_before_ = settle_before_register_ ? now + kSettleDelay : now;
    settle_before_register_ = false;
    return;
  }
  own_.reset();
  not_before_ = now + backoff_.Next();
  serve_after_ = not_before_;
}

void Registration::Registered(bool ok, Clock::time_point now) {
  registered_ = ok;
  if (ok) {
    last_watched_ = now;
    was_watched_ = false;
    // The back-off stays until a stream is seen, so that a kubelet that accepts the registration but opens no stream is
    // not called again and again.
    not_before_ = now + backoff_.current();
    return;
  }
  not_before_ = now + backoff_.Next();
}

}  // namespace sluice::deviceplugin
