// GPU time under the test's control.
#ifndef SLUICE_TEST_UNIT_FAKE_TIMELINE_H_
#define SLUICE_TEST_UNIT_FAKE_TIMELINE_H_

#include <map>

#include "hooklib/memory/timeline.h"

namespace sluice::memory {

class FakeTimeline final : public Timeline {
 public:
  // The application queued work up to `seq`; the GPU has finished up to `seq`.
  void Queue(StreamId stream, Seq seq) { queued_[stream] = seq; }
  void Finish(StreamId stream, Seq seq) { done_[stream] = seq; }
  void FinishTransfers(StreamId stream, uint64_t in, uint64_t out) {
    in_[stream] = in;
    out_[stream] = out;
  }
  bool capturing = false;
  bool transfers_instant = true;

  uint64_t queries = 0;  // calls of Done

  bool Done(Mark mark) override {
    ++queries;
    return mark.seq <= done_[mark.stream];
  }
  bool MarkAll(std::vector<Mark>* marks) override {
    if (capturing) return false;
    for (const auto& [stream, seq] : queued_) {
      if (seq > done_[stream]) marks->push_back({stream, seq});
    }
    return true;
  }
  bool InDone(StreamId stream, uint64_t op) override { return transfers_instant || op <= in_[stream]; }
  bool OutDone(StreamId stream, uint64_t op) override { return transfers_instant || op <= out_[stream]; }

 private:
  std::map<StreamId, Seq> queued_, done_;
  std::map<StreamId, uint64_t> in_, out_;
};

}  // namespace sluice::memory

#endif  // SLUICE_TEST_UNIT_FAKE_TIMELINE_H_
