#include "settle.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "ranges.h"
#include "settle_carry.h"
#include "settle_times.h"
#include "settle_truth.h"

namespace sluice::trace {
namespace {

class Settler {
 public:
  explicit Settler(Trace raw) { out_.trace = std::move(raw); }

  absl::StatusOr<Settled> Run() {
    Trace& trace = out_.trace;
    const auto from = trace.meta.find("slow-from");
    const int slow_from = from == trace.meta.end() ? 0 : std::atoi(from->second.c_str());
    if (slow_from < 2) {
      return absl::InvalidArgumentError("not a raw recording of test/gpu/truth with at least two undisturbed steps");
    }
    CutEnd();
    IndexSteps();
    const auto measured = static_cast<size_t>(slow_from);
    if (steps_.size() <= measured) {
      return absl::InvalidArgumentError(
          absl::StrCat("slow from step ", measured, ", but there are ", steps_.size(), " steps"));
    }
    for (size_t step = 0; step < steps_.size(); ++step) {
      absl::Status alike = CheckAlike(measured, step);
      if (step + 1 >= measured && !alike.ok()) return alike;
      alike_.push_back(alike.ok() ? steps_[step] : std::vector<uint64_t>());
    }
    ResolveTruth(measured);
    CarryOver(measured);
    SettleTimes(trace, alike_, measured);
    return std::move(out_);
  }

 private:
  void CutEnd() {
    std::vector<Event>& events = out_.trace.events;
    const auto ends = [](const Event& e) {
      return e.type == Type::kCopy || e.type == Type::kDeviceSync || e.type == Type::kStreamSync ||
             e.type == Type::kEventSync || e.type == Type::kLaunch;
    };
    const auto last = std::find_if(events.rbegin(), events.rend(), ends);
    events.erase(last.base(), events.end());
  }

  void IndexSteps() {
    for (const Event& e : out_.trace.events) {
      if (e.type == Type::kStep) steps_.emplace_back();
      if (e.type == Type::kLaunch && !steps_.empty()) steps_.back().push_back(e.a);
    }
  }

  absl::Status CheckAlike(size_t a, size_t b) const {
    const auto& launches = out_.trace.launches;
    if (steps_[a].size() != steps_[b].size()) {
      return absl::InvalidArgumentError(absl::StrCat("step ", a, " has ", steps_[a].size(), " launches, step ", b,
                                                     " has ", steps_[b].size(), ": the steps differ"));
    }
    for (size_t i = 0; i < steps_[a].size(); ++i) {
      if (launches[steps_[a][i]].function == launches[steps_[b][i]].function) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("launch ", i, " of step ", a, " is another kernel than that of step ", b));
    }
    return absl::OkStatus();
  }

  // Completes the truth of all measured launches, and keeps that of the first measured step for other launches.
  void ResolveTruth(size_t measured) {
    measured_.resize(steps_[measured].size());
    std::map<uint64_t, size_t> position;
    for (size_t i = 0; i < steps_[measured].size(); ++i) position[steps_[measured][i]] = i;
    LiveTensors live;
    for (const Event& e : out_.trace.events) {
      live.Apply(e);
      if (e.type != Type::kLaunch) continue;
      Launch& launch = out_.trace.launches[e.a];
      if (!launch.has_truth) continue;
      out_.faulted_bytes += Bytes(launch.truth);
      uint64_t accepted = 0;
      std::vector<Piece> pieces = TouchedPieces(launch, live, accepted);
      const uint64_t guessed = Bytes(launch.guessed);
      out_.guessed_bytes += accepted;
      out_.refused_bytes += guessed - std::min(guessed, accepted);
      if (launch.has_changed) AddDirections(pieces, launch.changed);
      launch.truth.clear();
      for (const Piece& piece : pieces) launch.truth.push_back(piece.range);
      Merge(launch.truth);
      for (const Range& r : launch.truth) {
        (r.access == Access::kRead    ? out_.read_bytes
         : r.access == Access::kWrite ? out_.written_bytes
                                      : out_.both_bytes) += r.bytes;
      }
      launch.guessed.clear();
      launch.changed.clear();
      launch.has_changed = false;
      ++out_.measured;
      const auto at = position.find(e.a);
      if (at == position.end()) continue;
      MeasuredLaunch& m = measured_[at->second];
      m = {e.a, MakePortable(launch, pieces), {}};
      for (const uint64_t word : launch.words) m.named.push_back(live.At(word));
    }
    DropLeftoverWords(measured_, out_.trace.launches);
  }

  void CarryOver(size_t measured) {
    std::map<uint64_t, size_t> position;  // launch -> its index in its step, for steps that are like the measured one
    for (const std::vector<uint64_t>& step : alike_) {
      for (size_t i = 0; i < step.size(); ++i) position[step[i]] = i;
    }
    std::map<Shape, std::vector<const MeasuredLaunch*>> shapes;
    for (const MeasuredLaunch& m : measured_) {
      if (m.launch != SIZE_MAX) shapes[ShapeOf(out_.trace.launches[m.launch])].push_back(&m);
    }
    LiveTensors live;
    for (const Event& e : out_.trace.events) {
      live.Apply(e);
      if (e.type != Type::kLaunch) continue;
      Launch& launch = out_.trace.launches[e.a];
      const auto at = position.find(e.a);
      if (at == position.end() || measured_[at->second].launch == SIZE_MAX) {
        if (launch.has_truth) continue;
        const auto like = shapes.find(ShapeOf(launch));
        const MeasuredLaunch* m =
            like == shapes.end() ? nullptr : MostAlike(like->second, launch, out_.trace.launches, live);
        if (m == nullptr) {
          ++out_.without;
          continue;
        }
        launch.truth = Carry(m->pieces, launch, live);
        launch.has_truth = true;
        ++out_.carried_by_shape;
        continue;
      }
      std::vector<Range> carried = Carry(measured_[at->second].pieces, launch, live);
      if (launch.has_truth) {
        if (e.a == steps_[measured][at->second]) continue;
        out_.checked_bytes += Bytes(launch.truth);
        out_.differing_bytes += Bytes(launch.truth) + Bytes(carried) - 2 * Common(launch.truth, carried);
      } else {
        launch.truth = std::move(carried);
        launch.has_truth = true;
        ++out_.carried_over;
      }
    }
  }

  Settled out_;
  std::vector<std::vector<uint64_t>> steps_;  // launches
  std::vector<std::vector<uint64_t>> alike_;  // the same of steps like the measured one; empty for the others
  std::vector<MeasuredLaunch> measured_;      // by index in the step
};

}  // namespace

absl::StatusOr<Settled> Settle(Trace raw) { return Settler(std::move(raw)).Run(); }

}  // namespace sluice::trace
