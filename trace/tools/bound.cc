#include "bound.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <queue>
#include <unordered_map>
#include <utility>

namespace sluice::trace {
namespace {

constexpr uint32_t kNever = UINT32_MAX, kFreedFirst = UINT32_MAX - 1;

struct Use {
  uint32_t page;
  uint32_t next = kNever;  // the launch that uses the page next; kFreedFirst: it is freed before that
  bool writes;
};

struct Page {
  uint32_t next = kNever;
  uint64_t stamp = 0;   // of its newest entry in the victim queue
  uint64_t launch = 0;  // the last one that used it
  bool resident = false, dirty = false, has_contents = false;
};

// One item of the order in which pages are used and freed.
struct Entry {
  enum class Type : uint8_t { kLaunch, kFree, kStep } type;
  uint32_t index;  // launch number, page, unused
};

class Timeline {
 public:
  explicit Timeline(const Trace& trace) {
    for (const Event& event : trace.events) Add(trace, event);
    LinkUses();
  }

  std::vector<Entry> entries;
  std::vector<std::vector<Use>> uses;  // by launch
  std::vector<uint64_t> kernel_ns;
  size_t pages() const { return count_.size(); }

 private:
  uint32_t Id(uint64_t page) {
    const auto [it, fresh] = ids_.try_emplace(page, static_cast<uint32_t>(count_.size()));
    if (fresh) count_.push_back(0);
    return it->second;
  }

  void Live(uint64_t address, uint64_t bytes, bool alive) {
    for (uint64_t page = address / kPageBytes; page <= (address + bytes - 1) / kPageBytes; ++page) {
      const uint32_t id = Id(page);
      if (alive) {
        ++count_[id];
      } else if (count_[id] > 0) {
        --count_[id];
        if (count_[id] == 0) entries.push_back({Entry::Type::kFree, id});
      }
    }
  }

  void Add(const Trace& trace, const Event& event) {
    switch (event.type) {
      case Type::kAlloc:
        if (event.c == static_cast<uint64_t>(AllocKind::kHost) || event.b == 0) return;
        blocks_[event.a] = {event.b, false};
        Live(event.a, event.b, true);
        return;
      case Type::kFree: {
        const auto it = blocks_.find(event.a);
        if (it == blocks_.end()) return;
        if (!it->second.reported) Live(event.a, it->second.bytes, false);
        blocks_.erase(it);
        return;
      }
      case Type::kReport: {
        const auto bytes = static_cast<int64_t>(event.b);
        if (bytes == 0) return;
        auto block = blocks_.upper_bound(event.a);
        if (bytes > 0 && block != blocks_.begin()) {
          --block;
          // From its first report on, a segment's tensors are live, no longer the segment as a whole.
          if (!block->second.reported && event.a - block->first < block->second.bytes) {
            block->second.reported = true;
            Live(block->first, block->second.bytes, false);
          }
        }
        Live(event.a, static_cast<uint64_t>(std::abs(bytes)), bytes > 0);
        return;
      }
      case Type::kStep:
        entries.push_back({Entry::Type::kStep, 0});
        return;
      case Type::kLaunch:
        AddLaunch(trace.launches[event.a]);
        return;
      default:
        return;
    }
  }

  void AddLaunch(const Launch& launch) {
    std::vector<Use> uses_now;
    const auto add = [&](uint64_t address, uint64_t bytes, bool writes) {
      if (bytes == 0) return;
      for (uint64_t page = address / kPageBytes; page <= (address + bytes - 1) / kPageBytes; ++page) {
        uses_now.push_back({Id(page), kNever, writes});
      }
    };
    if (launch.has_truth) {
      for (const Range& range : launch.truth) {
        bool known = false, writes = false;
        for (const AccessRange& a : launch.accesses) {
          if (a.address >= range.address + range.bytes || range.address >= a.address + a.bytes) continue;
          known = true;
          writes |= a.access != Access::kRead;
        }
        const bool directed = range.access != Access::kUnknown;
        add(range.address, range.bytes, directed ? range.access != Access::kRead : writes || !known);
      }
    } else {
      for (const AccessRange& a : launch.accesses) add(a.address, a.bytes, a.access != Access::kRead);
    }
    std::sort(uses_now.begin(), uses_now.end(), [](const Use& a, const Use& b) { return a.page < b.page; });
    size_t kept = 0;
    for (const Use& use : uses_now) {
      if (kept > 0 && uses_now[kept - 1].page == use.page) {
        uses_now[kept - 1].writes |= use.writes;
      } else {
        uses_now[kept++] = use;
      }
    }
    uses_now.resize(kept);
    entries.push_back({Entry::Type::kLaunch, static_cast<uint32_t>(uses.size())});
    uses.push_back(std::move(uses_now));
    kernel_ns.push_back(launch.duration_ns);
  }

  // Goes backwards: finds each use's next use, unless the page is freed in between.
  void LinkUses() {
    std::vector<uint32_t> next(count_.size(), kNever);
    for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
      if (entry->type == Entry::Type::kFree) next[entry->index] = kFreedFirst;
      if (entry->type != Entry::Type::kLaunch) continue;
      for (Use& use : uses[entry->index]) {
        use.next = next[use.page];
        next[use.page] = entry->index;
      }
    }
  }

  struct Block {
    uint64_t bytes;
    bool reported;
  };
  std::unordered_map<uint64_t, uint32_t> ids_;
  std::vector<uint32_t> count_;
  std::map<uint64_t, Block> blocks_;
};

class Machine {
 public:
  Machine(size_t pages, uint64_t budget, Policy policy)
      : pages_(pages), capacity_(budget / kPageBytes), policy_(policy) {}

  // All pages of a launch are resident together: its own are no victims, unless it alone exceeds the budget.
  void Launch(const std::vector<Use>& uses, StepTraffic& traffic) {
    ++launch_;
    traffic.touched_bytes += uses.size() * kPageBytes;
    std::vector<Victim> later;
    for (const Use& use : uses) {
      Page& page = pages_[use.page];
      page.launch = launch_;
      if (!page.resident) {
        if (page.has_contents) traffic.in_bytes += kPageBytes;
        page.resident = true;
        page.dirty = false;
        ++resident_;
        page.stamp = 0;
      }
      page.dirty |= use.writes;
      page.has_contents = true;
      page.next = use.next;
      if (policy_ == Policy::kFifo && page.stamp != 0) continue;
      page.stamp = ++order_;
      // Largest first: farthest next use, or oldest stamp.
      later.push_back({policy_ == Policy::kBelady ? use.next : ~page.stamp, use.page, page.stamp});
    }
    while (resident_ > capacity_ && Evict(traffic, later)) {
    }
    for (const Victim& victim : later) victims_.push(victim);
    later.clear();
    ++launch_;
    while (resident_ > capacity_ && Evict(traffic, later)) {
    }
  }

  void Free(uint32_t id) {
    Page& page = pages_[id];
    resident_ -= page.resident ? 1 : 0;
    page.resident = page.dirty = page.has_contents = false;
  }

 private:
  struct Victim {
    uint64_t key;
    uint32_t page;
    uint64_t stamp;
    bool operator<(const Victim& o) const { return key < o.key; }
  };

  // False: no page may be evicted. Pages of the running launch are moved to `deferred`.
  bool Evict(StepTraffic& traffic, std::vector<Victim>& deferred) {
    while (!victims_.empty()) {
      const Victim victim = victims_.top();
      victims_.pop();
      Page& page = pages_[victim.page];
      if (!page.resident || page.stamp != victim.stamp) continue;
      if (page.launch == launch_) {
        deferred.push_back(victim);
        continue;
      }
      page.resident = false;
      --resident_;
      const bool needed = policy_ != Policy::kBelady || page.next < kFreedFirst;
      if (!needed && page.next == kFreedFirst && page.dirty) traffic.dropped_bytes += kPageBytes;
      if (needed) (page.dirty ? traffic.out_bytes : traffic.clean_out_bytes) += kPageBytes;
      return true;
    }
    return false;
  }

  std::vector<Page> pages_;
  std::priority_queue<Victim> victims_;
  const uint64_t capacity_;
  const Policy policy_;
  uint64_t resident_ = 0, order_ = 0, launch_ = 0;
};

}  // namespace

absl::Status WriteUses(const Trace& trace, const std::string& path) {
  const Timeline timeline(trace);
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return absl::NotFoundError(path + ": " + std::strerror(errno));
  for (const Entry& entry : timeline.entries) {
    if (entry.type == Entry::Type::kStep) {
      std::fputs("S\n", file);
    } else if (entry.type == Entry::Type::kFree) {
      std::fprintf(file, "D %u\n", entry.index);
    } else {
      std::fputs("L", file);
      for (const Use& use : timeline.uses[entry.index]) std::fprintf(file, " %u%c", use.page, use.writes ? 'w' : 'r');
      std::fputs("\n", file);
    }
  }
  const bool written = std::ferror(file) == 0;
  return std::fclose(file) == 0 && written ? absl::OkStatus() : absl::DataLossError(path + ": " + std::strerror(errno));
}

std::vector<StepTraffic> Traffic(const Trace& trace, uint64_t budget, Policy policy) {
  const Timeline timeline(trace);
  Machine machine(timeline.pages(), std::max(budget, kPageBytes), policy);
  std::vector<StepTraffic> steps;
  StepTraffic before;
  for (const Entry& entry : timeline.entries) {
    StepTraffic& traffic = steps.empty() ? before : steps.back();
    switch (entry.type) {
      case Entry::Type::kStep:
        steps.emplace_back();
        break;
      case Entry::Type::kFree:
        machine.Free(entry.index);
        break;
      case Entry::Type::kLaunch:
        traffic.kernel_ns += timeline.kernel_ns[entry.index];
        machine.Launch(timeline.uses[entry.index], traffic);
        break;
    }
  }
  return steps;
}

double LinkLimitMs(const StepTraffic& step, double bytes_per_s) {
  const double link = static_cast<double>(std::max(step.in_bytes, step.out_bytes)) / bytes_per_s * 1e3;
  return std::max(static_cast<double>(step.kernel_ns) / 1e6, link);
}

double ManagedLimitMs(const StepTraffic& step, double out_per_s, double both_per_s) {
  const auto out = static_cast<double>(step.out_bytes + step.clean_out_bytes);
  const double link = std::max(out / out_per_s, (static_cast<double>(step.in_bytes) + out) / both_per_s) * 1e3;
  return std::max(static_cast<double>(step.kernel_ns) / 1e6, link);
}

}  // namespace sluice::trace
