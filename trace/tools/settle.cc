#include "settle.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "ranges.h"
#include "settle_times.h"

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

// A touched range and the tensor that it lies in (bytes 0: in none).
struct Piece {
  Range range, tensor;
};

// The same, said by what the launch's parameters name.
struct Portable {
  std::vector<size_t> words;  // the parameter words that point into the tensor
  uint64_t offset, bytes;
  Access access;
  Range tensor;
};

// A launch of the first measured step, for others like it elsewhere.
struct Measured {
  size_t launch = SIZE_MAX;  // none: the recording was cut off before it
  std::vector<Portable> parts;
  std::vector<Range> named;  // what each of its words pointed into
};

// Of pieces of one tensor: those bytes that the launch changed were written, the rest was read only. Some values are
// written as what they were, though: where at least half is changed, all was written.
void Direct(std::vector<Piece>& pieces, const std::vector<Range>& changed) {
  struct Sums {
    uint64_t touched = 0, changed = 0, overwritten = 0;
  };
  const auto common = [&changed](const Range& range, const auto& each) {
    auto run = std::upper_bound(changed.begin(), changed.end(), range.address,
                                [](uint64_t address, const Range& r) { return address < r.address + r.bytes; });
    for (; run != changed.end() && run->address < range.address + range.bytes; ++run) {
      const uint64_t first = std::max(run->address, range.address);
      each(Range{first, std::min(run->address + run->bytes, range.address + range.bytes) - first, run->access});
    }
  };
  std::map<uint64_t, Sums> tensors;
  const auto key = [](const Piece& p) { return p.tensor.bytes != 0 ? p.tensor.address : p.range.address; };
  for (const Piece& piece : pieces) {
    Sums& sums = tensors[key(piece)];
    sums.touched += piece.range.bytes;
    common(piece.range, [&sums](const Range& run) {
      (run.access == Access::kWrite ? sums.overwritten : sums.changed) += run.bytes;
    });
  }
  std::vector<Piece> directed;
  for (Piece piece : pieces) {
    const Sums& sums = tensors[key(piece)];
    piece.range.access = Access::kRead;
    if (2 * (sums.changed + sums.overwritten) >= sums.touched) {
      piece.range.access = sums.overwritten > sums.changed ? Access::kWrite : Access::kReadWrite;
      directed.push_back(piece);
      continue;
    }
    uint64_t at = piece.range.address;
    const uint64_t end = at + piece.range.bytes;
    common(piece.range, [&](const Range& run) {
      directed.push_back({{at, run.address - at, Access::kRead}, piece.tensor});
      directed.push_back({run, piece.tensor});
      at = run.address + run.bytes;
    });
    directed.push_back({{at, end - at, Access::kRead}, piece.tensor});
  }
  std::erase_if(directed, [](const Piece& p) { return p.range.bytes == 0; });
  pieces = std::move(directed);
}

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
    Index();
    const auto measured = static_cast<size_t>(slow_from);
    if (steps_.size() <= measured) {
      return absl::InvalidArgumentError(
          absl::StrCat("slow from step ", measured, ", but there are ", steps_.size(), " steps"));
    }
    for (size_t step = 0; step < steps_.size(); ++step) {
      absl::Status alike = Alike(measured, step);
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
    measured_.resize(steps_[measured].size());
    std::map<uint64_t, size_t> position;
    for (size_t i = 0; i < steps_[measured].size(); ++i) position[steps_[measured][i]] = i;
    Living living;
    for (const Event& e : out_.trace.events) {
      living.Apply(e);
      if (e.type != Type::kLaunch) continue;
      Launch& launch = out_.trace.launches[e.a];
      if (!launch.has_truth) continue;
      std::vector<Piece> pieces = Touched(launch, living);
      if (launch.has_changed) Direct(pieces, launch.changed);
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
      Measured& m = measured_[at->second];
      m = {e.a, Port(launch, pieces), {}};
      for (const uint64_t word : launch.words) m.named.push_back(living.At(word));
    }
    ForgetLeftovers();
  }

  // Padding of a kernel's parameters holds words of earlier calls. A word whose tensor some launch of the kernel leaves
  // alone is not what the kernel goes by, where there is another that names the part.
  void ForgetLeftovers() {
    std::map<uint32_t, std::vector<bool>> idle;  // by function: of each word, whether its tensor was once left alone
    for (const Measured& m : measured_) {
      if (m.launch == SIZE_MAX) continue;
      std::vector<bool>& words = idle[out_.trace.launches[m.launch].function];
      words.resize(std::max(words.size(), m.named.size()));
      for (size_t i = 0; i < m.named.size(); ++i) {
        const bool touched = std::any_of(m.parts.begin(), m.parts.end(),
                                         [&](const Portable& p) { return p.tensor.address == m.named[i].address; });
        words[i] = words[i] || (m.named[i].bytes != 0 && !touched);
      }
    }
    for (Measured& m : measured_) {
      if (m.launch == SIZE_MAX) continue;
      const std::vector<bool>& words = idle[out_.trace.launches[m.launch].function];
      for (Portable& p : m.parts) {
        std::vector<size_t> kept;
        std::copy_if(p.words.begin(), p.words.end(), std::back_inserter(kept), [&](size_t i) { return !words[i]; });
        if (!kept.empty()) p.words = std::move(kept);
      }
    }
  }

  std::vector<Piece> Touched(const Launch& launch, const Living& living) {
    std::vector<Piece> pieces;
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
        const bool alone = FaultedAlone(tensor, tensors, parts.first) || Common(launch.changed, {tensor}) != 0;
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

  static std::vector<Portable> Port(const Launch& launch, const std::vector<Piece>& pieces) {
    std::vector<Portable> out;
    for (const auto& [piece, tensor] : pieces) {
      Portable p{{}, piece.address - tensor.address, piece.bytes, piece.access, tensor};
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
    for (const std::vector<uint64_t>& step : alike_) {
      for (size_t i = 0; i < step.size(); ++i) position[step[i]] = i;
    }
    std::map<Shape, std::vector<const Measured*>> shapes;
    for (const Measured& m : measured_) {
      if (m.launch != SIZE_MAX) shapes[ShapeOf(out_.trace.launches[m.launch])].push_back(&m);
    }
    Living living;
    for (const Event& e : out_.trace.events) {
      living.Apply(e);
      if (e.type != Type::kLaunch) continue;
      Launch& launch = out_.trace.launches[e.a];
      const auto at = position.find(e.a);
      if (at == position.end() || measured_[at->second].launch == SIZE_MAX) {
        if (launch.has_truth) continue;
        const auto like = shapes.find(ShapeOf(launch));
        const Measured* m = like == shapes.end() ? nullptr : Likest(like->second, launch, living);
        if (m == nullptr) {
          ++out_.without;
          continue;
        }
        launch.truth = Carried(m->parts, launch, living);
        launch.has_truth = true;
        ++out_.carried_by_shape;
        continue;
      }
      std::vector<Range> carried = Carried(measured_[at->second].parts, launch, living);
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

  static std::vector<Range> Carried(const std::vector<Portable>& parts, const Launch& launch, const Living& living) {
    std::vector<Range> carried;
    for (const Portable& p : parts) {
      const Range tensor = Like(p, launch, living);
      if (tensor.bytes == 0 && p.tensor.bytes != 0) continue;
      // A tensor that grew since (a cache of one more position) is touched to its end as its like was.
      if (tensor.bytes != 0 && p.offset >= tensor.bytes) continue;
      uint64_t bytes = tensor.bytes != 0 ? std::min(p.bytes, tensor.bytes - p.offset) : p.bytes;
      if (p.tensor.bytes != 0 && p.offset + p.bytes == p.tensor.bytes) bytes = tensor.bytes - p.offset;
      carried.push_back({tensor.address + p.offset, bytes, p.access});
    }
    Merge(carried);
    return carried;
  }

  // In steps that are unlike the measured one (the first, and what comes before it) launches are known by what they
  // are: kernel, grid and block.
  using Shape = std::vector<uint64_t>;
  static Shape ShapeOf(const Launch& launch) {
    Shape shape = {launch.function, launch.words.size()};
    shape.insert(shape.end(), std::begin(launch.grid), std::end(launch.grid));
    shape.insert(shape.end(), std::begin(launch.block), std::end(launch.block));
    return shape;
  }

  // The one whose parameters are most like this launch's: numbers equal, pointers to the same place in tensors of one
  // size. Null where a part has no such tensor: it would be about other bytes than this launch touches. (Small tensors
  // that share a faulted page with one that is named do not count.)
  const Measured* Likest(const std::vector<const Measured*>& all, const Launch& launch, const Living& living) const {
    std::vector<Range> named;
    named.reserve(launch.words.size());
    for (const uint64_t word : launch.words) named.push_back(living.At(word));
    const Measured* best = nullptr;
    size_t most = 0;
    for (const Measured* m : all) {
      const std::vector<uint64_t>& words = out_.trace.launches[m->launch].words;
      size_t alike = 1;
      std::vector<bool> fits(words.size());
      for (size_t i = 0; i < words.size(); ++i) {
        const bool pointer = m->named[i].bytes != 0;
        fits[i] = pointer && named[i].bytes == m->named[i].bytes &&
                  launch.words[i] - named[i].address == words[i] - m->named[i].address;
        alike += fits[i] || (!pointer && words[i] == launch.words[i]) ? 1 : 0;
      }
      uint64_t fitting = 0, unnamed = 0;
      bool misfit = false;
      for (const Portable& p : m->parts) {
        const bool fit = std::any_of(p.words.begin(), p.words.end(), [&fits](size_t i) { return fits[i]; });
        misfit = misfit || (!fit && !p.words.empty());
        (fit ? fitting : unnamed) += p.bytes;
      }
      if (!misfit && unnamed * 20 <= fitting && alike > most) {
        most = alike;
        best = m;
      }
    }
    return best;
  }

  Settled out_;
  std::vector<std::vector<uint64_t>> steps_;  // launches
  std::vector<std::vector<uint64_t>> alike_;  // the same of steps like the measured one; of others nothing
  std::vector<Measured> measured_;            // by place in a step
};

}  // namespace

absl::StatusOr<Settled> Settle(Trace raw) { return Settler(std::move(raw)).Run(); }

}  // namespace sluice::trace
