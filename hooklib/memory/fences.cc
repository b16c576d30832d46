#include "hooklib/memory/fences.h"

#include <utility>

namespace sluice::memory {

void Fences::Close() {
  if (!used_ || held_) return;
  Closed closed{open_, {}};
  if (!timeline_->MarkAll(&closed.marks)) return;
  closed_.push_back(std::move(closed));
  ++open_;
  used_ = false;
}

bool Fences::Done(Epoch epoch) {
  if (epoch <= done_) return true;
  while (!closed_.empty() && closed_.front().epoch <= epoch) {
    auto& marks = closed_.front().marks;
    while (!marks.empty() && timeline_->Done(marks.back())) marks.pop_back();
    if (!marks.empty()) return false;
    done_ = closed_.front().epoch;
    closed_.pop_front();
  }
  return epoch <= done_;
}

}  // namespace sluice::memory
