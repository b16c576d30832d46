#include "settle.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "ranges.h"

namespace sluice::trace {
namespace {

constexpr uint64_t kMigrationBytes = uint64_t{2} << 20;  // the heuristic looks at one block of the driver at a time
constexpr uint64_t kSmallPage = 4096;

bool Overlap(uint64_t a, uint64_t a_end, uint64_t b, uint64_t b_end) { return a < b_end && b < a_end; }

// What lives: PyTorch's tensors; blocks of which nothing was ever reported, as wholes.
class Living {
 public:
  void Apply(const Event& e) {
    if (e.type == Type::kAlloc && e.c != static_cast<uint64_t>(AllocKind::kHost)) {
      blocks_[e.a] = e.b;
    } else if (e.type == Type::kFree) {
      blocks_.erase(e.a);
      reported_.erase(e.a);
    } else if (e.type == Type::kReport) {
      if (static_cast<int64_t>(e.b) > 0) {
        tensors_[e.a] = e.b;
        if (const auto block = Containing(blocks_, e.a); block != blocks_.end()) reported_.insert(block->first);
      } else {
        tensors_.erase(e.a);
      }
    }
  }

  // The thing that holds the address; bytes 0: nothing.
  Range At(uint64_t address) const {
    if (const auto t = Containing(tensors_, address); t != tensors_.end()) return {t->first, t->second};
    const auto b = Containing(blocks_, address);
    return b != blocks_.end() && !reported_.contains(b->first) ? Range{b->first, b->second} : Range{0, 0};
  }

  // Those that overlap the range.
  std::vector<Range> Over(uint64_t address, uint64_t end) const {
    std::vector<Range> out;
    const auto add = [&](const Map& map, bool whole_blocks) {
      auto it = map.upper_bound(address);
      if (it != map.begin()) --it;
      for (; it != map.end() && it->first < end; ++it) {
        if (!Overlap(it->first, it->first + it->second, address, end)) continue;
        if (whole_blocks && reported_.contains(it->first)) continue;
        out.push_back({it->first, it->second});
      }
    };
    add(tensors_, false);
    add(blocks_, true);
    return out;
  }

 private:
  using Map = std::map<uint64_t, uint64_t>;
  static Map::const_iterator Containing(const Map& map, uint64_t address) {
    auto it = map.upper_bound(address);
    if (it == map.begin()) return map.end();
    --it;
    return address - it->first < it->second ? it : map.end();
  }

  Map blocks_, tensors_;
  std::set<uint64_t> reported_;
};

// A touched range, said by what the launch's parameters name.
struct Portable {
  std::vector<size_t> words;  // the parameter words that point into the tensor
  uint64_t offset, bytes;
  Range tensor;
};

class Settler {
 public:
  Settler(Trace raw, double host_scale) : host_scale_(host_scale) { out_.trace = std::move(raw); }

  absl::StatusOr<Settled> Run() {
    Trace& trace = out_.trace;
    const auto from = trace.meta.find("slow-from");
    const int slow_from = from == trace.meta.end() ? 0 : std::atoi(from->second.c_str());
    if (slow_from < 2) {
      return absl::InvalidArgumentError("not a raw recording of test/gpu/truth with at least two undisturbed steps");
    }
    CutEnd();
    Index();
    const auto measured = static_cast<size_t>(slow_from);
    if (steps_.size() <= measured) {
      return absl::InvalidArgumentError(
          absl::StrCat("slow from step ", measured, ", but there are ", steps_.size(), " steps"));
    }
    for (size_t step = measured - 1; step < steps_.size(); ++step) {
      if (absl::Status alike = Alike(measured, step); !alike.ok()) return alike;
    }
    ResolveTruth(measured);
    CarryOver(measured);
    Times(measured);
    trace.meta["host-scale"] = absl::StrCat(host_scale_);
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

  void Index() {
    for (const Event& e : out_.trace.events) {
      if (e.type == Type::kStep) steps_.emplace_back();
      if (e.type == Type::kLaunch && !steps_.empty()) steps_.back().push_back(e.a);
    }
  }

  absl::Status Alike(size_t a, size_t b) const {
    const auto& launches = out_.trace.launches;
    if (steps_[a].size() != steps_[b].size()) {
      return absl::InvalidArgumentError(absl::StrCat("step ", a, " has ", steps_[a].size(), " launches, step ", b,
                                                     " has ", steps_[b].size(), ": not alike"));
    }
    for (size_t i = 0; i < steps_[a].size(); ++i) {
      if (launches[steps_[a][i]].function == launches[steps_[b][i]].function) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("launch ", i, " of step ", a, " is another kernel than that of step ", b));
    }
    return absl::OkStatus();
  }

  // The measured launches' final truth, and what the first measured step's says of launches elsewhere.
  void ResolveTruth(size_t measured) {
    portable_.resize(steps_[measured].size());
    const std::map<uint64_t, size_t> position = [&] {
      std::map<uint64_t, size_t> map;
      for (size_t i = 0; i < steps_[measured].size(); ++i) map[steps_[measured][i]] = i;
      return map;
    }();
    Living living;
    for (const Event& e : out_.trace.events) {
      living.Apply(e);
      if (e.type != Type::kLaunch) continue;
      Launch& launch = out_.trace.launches[e.a];
      if (!launch.has_truth) continue;
      std::vector<std::pair<Range, Range>> pieces = Touched(launch, living);
      launch.truth.clear();
      for (const auto& [piece, tensor] : pieces) launch.truth.push_back(piece);
      Merge(launch.truth);
      launch.guessed.clear();
      ++out_.measured;
      if (const auto at = position.find(e.a); at != position.end()) portable_[at->second] = Port(launch, pieces);
    }
  }

  // Pieces of what was touched, each with the tensor that it lies in (bytes 0: in none).
  std::vector<std::pair<Range, Range>> Touched(const Launch& launch, const Living& living) {
    std::vector<std::pair<Range, Range>> pieces;
    out_.faulted_bytes += Bytes(launch.truth);
    uint64_t guessed = Bytes(launch.guessed);
    std::map<uint64_t, std::pair<std::vector<Range>, std::vector<Range>>> blocks;  // faulted, guessed by 2 MiB
    const auto split = [&blocks](const std::vector<Range>& ranges, bool faulted) {
      for (const Range& r : ranges) {
        for (uint64_t at = r.address; at < r.address + r.bytes;) {
          const uint64_t block = at / kMigrationBytes;
          const uint64_t end = std::min(r.address + r.bytes, (block + 1) * kMigrationBytes);
          auto& [f, g] = blocks[block];
          (faulted ? f : g).push_back({at, end - at});
          at = end;
        }
      }
    };
    split(launch.truth, true);
    split(launch.guessed, false);
    uint64_t taken = 0;
    for (const auto& [number, parts] : blocks) {
      const uint64_t begin = number * kMigrationBytes, end = begin + kMigrationBytes;
      const std::vector<Range> tensors = living.Over(begin, end);
      for (const Range& tensor : tensors) {
        const bool alone = FaultedAlone(tensor, tensors, parts.first);
        const auto clip = [&](const std::vector<Range>& from) {
          uint64_t sum = 0;
          for (const Range& r : from) {
            const uint64_t first = std::max(r.address, tensor.address);
            const uint64_t last = std::min(r.address + r.bytes, tensor.address + tensor.bytes);
            if (first >= last) continue;
            pieces.push_back({{first, last - first}, tensor});
            sum += last - first;
          }
          return sum;
        };
        clip(parts.first);
        if (alone) taken += clip(parts.second);
      }
      // Faults outside everything that is known to live (a library's own block) stay as they are.
      for (const Range& r : parts.first) {
        if (living.Over(r.address, r.address + r.bytes).empty()) pieces.push_back({r, {0, 0}});
      }
    }
    out_.guessed_bytes += taken;
    out_.refused_bytes += guessed - std::min(guessed, taken);
    return pieces;
  }

  // Whether a page that no other tensor shares faulted in it.
  static bool FaultedAlone(const Range& tensor, const std::vector<Range>& tensors, const std::vector<Range>& faulted) {
    for (const Range& r : faulted) {
      const uint64_t first = std::max(r.address, tensor.address / kSmallPage * kSmallPage);
      const uint64_t last = std::min(r.address + r.bytes, tensor.address + tensor.bytes);
      for (uint64_t page = first; page < last; page += kSmallPage) {
        bool shared = false;
        for (const Range& other : tensors) {
          shared = shared || (other.address != tensor.address &&
                              Overlap(other.address, other.address + other.bytes, page, page + kSmallPage));
        }
        if (!shared) return true;
      }
    }
    return false;
  }

  static std::vector<Portable> Port(const Launch& launch, const std::vector<std::pair<Range, Range>>& pieces) {
    std::vector<Portable> out;
    for (const auto& [piece, tensor] : pieces) {
      Portable p{{}, piece.address - tensor.address, piece.bytes, tensor};
      for (size_t i = 0; i < launch.words.size(); ++i) {
        if (launch.words[i] - tensor.address < tensor.bytes) p.words.push_back(i);
      }
      out.push_back(std::move(p));
    }
    return out;
  }

  // The tensor that is to this launch what p's was to the measured one; bytes 0: none is. Parameters may hold words
  // left over from an earlier call (PyTorch's foreach kernels), so that a word alone is no proof: the very same tensor
  // is taken where a word names it, else one of the same size, else what the first word names.
  static Range Like(const Portable& p, const Launch& launch, const Living& living) {
    if (p.words.empty()) return p.tensor.bytes == 0 || living.At(p.tensor.address) == p.tensor ? p.tensor : Range{0, 0};
    Range like{0, 0}, first{0, 0};
    for (const size_t i : p.words) {
      if (i >= launch.words.size()) continue;
      const Range tensor = living.At(launch.words[i]);
      if (tensor == p.tensor) return tensor;
      if (first.bytes == 0) first = tensor;
      if (like.bytes == 0 && tensor.bytes == p.tensor.bytes) like = tensor;
    }
    return like.bytes != 0 ? like : first;
  }

  void CarryOver(size_t measured) {
    std::map<uint64_t, size_t> position;  // launch -> place in its step, for steps that are like the measured one
    for (size_t s = 0; s < steps_.size(); ++s) {
      if (!Alike(measured, s).ok()) continue;
      for (size_t i = 0; i < steps_[s].size(); ++i) position[steps_[s][i]] = i;
    }
    Living living;
    for (const Event& e : out_.trace.events) {
      living.Apply(e);
      if (e.type != Type::kLaunch) continue;
      Launch& launch = out_.trace.launches[e.a];
      const auto at = position.find(e.a);
      if (at == position.end()) {
        out_.without += launch.has_truth ? 0 : 1;
        continue;
      }
      std::vector<Range> carried;
      for (const Portable& p : portable_[at->second]) {
        const Range tensor = Like(p, launch, living);
        if (tensor.bytes == 0 && p.tensor.bytes != 0) continue;
        // A tensor that grew since (a cache of one more position) is touched to its end as its like was.
        if (tensor.bytes != 0 && p.offset >= tensor.bytes) continue;
        uint64_t bytes = tensor.bytes != 0 ? std::min(p.bytes, tensor.bytes - p.offset) : p.bytes;
        if (p.tensor.bytes != 0 && p.offset + p.bytes == p.tensor.bytes) bytes = tensor.bytes - p.offset;
        carried.push_back({tensor.address + p.offset, bytes});
      }
      Merge(carried);
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

  // Measured launches took as long as their likes in the step before the first measured one (the median of all
  // undisturbed steps but the first), and were made at the same times.
  void Times(size_t measured) {
    auto& launches = out_.trace.launches;
    for (size_t s = measured; s < steps_.size(); ++s) {
      for (size_t i = 0; i < steps_[s].size(); ++i) {
        std::vector<uint64_t> all;
        for (size_t fast = 1; fast < measured; ++fast) {
          if (i < steps_[fast].size() && launches[steps_[fast][i]].duration_ns != 0) {
            all.push_back(launches[steps_[fast][i]].duration_ns);
          }
        }
        if (all.empty()) continue;
        std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
        launches[steps_[s][i]].duration_ns = all[all.size() / 2];
      }
    }
    RetimeSteps(measured);
    for (Event& e : out_.trace.events) {
      e.time_ns = static_cast<uint64_t>(static_cast<double>(e.time_ns) * host_scale_);
    }
  }

  // Between two launches an undisturbed step's time is spread over the measured one's events.
  void RetimeSteps(size_t measured) {
    std::vector<Event>& events = out_.trace.events;
    std::vector<uint64_t> like{0};  // times of the launches, and the end, of the step before; from its marker
    size_t step = 0;
    uint64_t begin = 0;
    for (const Event& e : events) {
      if (e.type == Type::kStep) {
        if (step++ == measured - 1) begin = e.time_ns;
        if (step == measured + 1) like.push_back(e.time_ns - begin);
      }
      if (step == measured && e.type == Type::kLaunch) like.push_back(e.time_ns - begin);
    }
    step = 0;
    size_t next = 0, first = 0;
    uint64_t origin = 0;
    const auto spread = [&](size_t end) {
      const uint64_t from = like[next], until = like[next + 1];
      for (size_t j = first; j < end; ++j) {
        events[j].time_ns = origin + from + (until - from) * (j - first + 1) / (end - first);
      }
      first = end;
      ++next;
    };
    for (size_t i = 0; i < events.size(); ++i) {
      if (events[i].type == Type::kStep) {
        if (++step == measured + 1) origin = events[i].time_ns;
        if (step > measured + 1) {
          if (first < i) spread(i);
          origin += like.back();
          events[i].time_ns = origin;
        }
        if (step > measured) first = i + 1, next = 0;
        continue;
      }
      if (step > measured && events[i].type == Type::kLaunch) spread(i + 1);
    }
    if (first < events.size() && next + 1 < like.size()) spread(events.size());
  }

  const double host_scale_;
  Settled out_;
  std::vector<std::vector<uint64_t>> steps_;     // launches
  std::vector<std::vector<Portable>> portable_;  // by place in a step
};

}  // namespace

absl::StatusOr<Settled> Settle(Trace raw, double host_scale) { return Settler(std::move(raw), host_scale).Run(); }

}  // namespace sluice::trace
