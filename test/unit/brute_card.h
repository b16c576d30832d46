// A GPU without any cleverness, on which plans are carried out one queue entry at a time: where each chunk is, whether
// it is discarded, and which write it holds on either side. It throws where a plan, or its effect, breaks a
// promise of residency.h.
#ifndef SLUICE_TEST_UNIT_BRUTE_CARD_H_
#define SLUICE_TEST_UNIT_BRUTE_CARD_H_

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hooklib/memory/timeline.h"
#include "hooklib/policy/plan.h"
#include "test/unit/fake_gpu.h"

namespace sluice::policy {

class BruteCard final : public memory::Timeline {
 public:
  struct Page {
    bool on_gpu = false, mapped = false, discarded = false, duplicate = false, live = false;
    bool faulted = false;             // a fault brought it to the GPU
    uint64_t evictions = 0;           // queued
    uint64_t gpu = 0, host = 0;       // the writes that the two sides hold; 0: undefined
    uint64_t truth = 0;               // the newest write
    std::vector<memory::Mark> users;  // work that may not be over
    std::vector<memory::Mark> left_out_users;
  };
  // A launch names these chunks. `fresh`: those whose contents it does not need.
  struct Launch {
    StreamId stream = 0;
    std::vector<uint64_t> set;
    std::set<uint64_t> fresh;
    bool writes = true;
    std::set<uint64_t> left_out{};  // taken not to be touched: it may be evicted meanwhile, though not discarded
  };

  explicit BruteCard(uint64_t chunks) : pages_(chunks) {}
  Page& page(uint64_t chunk) { return pages_.at(chunk); }
  size_t size() const { return pages_.size(); }
  // On the GPU by plans, not by faults, and not for one launch alone. The driver takes discarded memory where it needs
  // some.
  uint64_t Fetched() const {
    const auto is_fetched = [](const Page& p) { return p.on_gpu && !p.faulted && !p.evictions && !p.discarded; };
    return static_cast<uint64_t>(std::count_if(pages_.begin(), pages_.end(), is_fetched));
  }

  // Another GPU writes a chunk that has no pages: they are made here.
  void WriteElsewhere(uint64_t chunk) {
    Page& p = page(chunk);
    Expect(!p.on_gpu, "a chunk is on the GPU that was never fetched");
    p.on_gpu = p.faulted = true;
    p.gpu = p.truth = ++writes_;
  }
  // The addresses of chunks that faults have brought since the last call.
  std::vector<Va> TakeFaults() { return std::exchange(faults_, {}); }

  // The engine's steps for a launch (WorkScope::CarryOut, End), in its order.
  Seq Queue(const Plan& plan, const Launch& launch) {
    Lane& lane = lanes_[launch.stream];
    Immediate(plan);
    for (const Extent& run : plan.stream_discard) {
      for (Va va = run.base; va < run.end(); va += kChunkBytes) CheckUnmoved(va, launch.stream, kDiscardedInEviction);
      Each(run, [&](Page& p) { CheckDiscard(p, launch.stream); });
    }
    if (!plan.stream_discard.empty()) lane.work.push_back({.action = Action::kDiscard, .runs = plan.stream_discard});
    const uint64_t behind = lane.queued_work += !plan.stream_discard.empty();
    // At once; but behind discards that are still queued, and then the launch waits (Device::PopulateNow).
    Do(&lane, {.action = Action::kPopulate, .runs = plan.populate_now});
    Do(&lane, {.action = Action::kEvict, .runs = plan.populate_on_host, .populates = true});
    Step(plan.now, launch.stream, behind);
    if (!plan.repopulate.empty()) {
      lane.work.push_back({.action = Action::kRepopulate, .runs = plan.repopulate, .after_out = plan.repopulate_after});
      ++lane.queued_work;
    }
    Expect(plan.wait_in <= lane.in_op, "a launch waits for a fetch that is not queued");
    Step(plan.ahead, launch.stream, behind);
    const Seq seq = ++lane.seq;
    lane.work.push_back({.action = Action::kLaunch, .after_in = plan.wait_in, .seq = seq, .launch = launch});
    ++lane.queued_work;
    for (const uint64_t chunk : launch.set) {
      Page& p = page(chunk);
      (launch.left_out.contains(chunk) ? p.left_out_users : p.users).push_back({launch.stream, seq});
    }
    if (plan.evict_after_op) {
      Expect(plan.evict_after_op == ++lane.out_op, "evictions behind a launch have another number");
      CheckRuns(plan.evict_after);
      for (const Extent& run : plan.evict_after) Each(run, [](Page& p) { ++p.evictions; });
      lane.out.push_back({.action = Action::kEvictBehind,
                          .runs = plan.evict_after,
                          .after_work = lane.queued_work,
                          .number = ++queued_});
    }
    return seq;
  }
  // A plan without a launch, on a stream of the engine's own.
  void Queue(const Plan& plan, StreamId stream) {
    Immediate(plan);
    Step(plan.now, stream, 0);
  }
  // Carries out one entry of some queue. False: nothing is left.
  bool Advance(std::mt19937* random) {
    std::vector<std::pair<Lane*, int>> ready;
    for (auto& [id, lane] : lanes_) {
      for (int which = 0; which < 3; ++which) {
        if (lane.IsReady(which)) ready.push_back({&lane, which});
      }
    }
    if (ready.empty()) {
      for (auto& [id, lane] : lanes_)
        Expect(lane.work.empty() && lane.in.empty() && lane.out.empty(), "queues wait for one another");
      return false;
    }
    const auto [lane, which] = ready[(*random)() % ready.size()];
    const Entry entry = lane->Get(which).front();
    lane->Get(which).pop_front();
    CarryOut(entry, *lane);
    ++(which == 0 ? lane->work_done : which == 1 ? lane->in_done : lane->out_done);
    if (entry.action == Action::kLaunch) lane->done = entry.seq;
    return true;
  }

  // --- memory::Timeline ---
  bool Done(memory::Mark mark) override { return mark.seq <= lanes_[mark.stream].done; }
  bool MarkAll(std::vector<memory::Mark>* marks) override {
    for (const auto& [id, lane] : lanes_) {
      if (lane.seq > lane.done) marks->push_back({id, lane.seq});
    }
    return true;
  }
  bool InDone(StreamId stream, uint64_t op) override { return op <= lanes_[stream].in_done; }
  bool OutDone(StreamId stream, uint64_t op) override { return op <= lanes_[stream].out_done; }

  static void Expect(bool holds, const char* promise) {
    if (!holds) throw std::logic_error(promise);
  }

 private:
  static constexpr char kDiscardedInEviction[] = "a chunk is discarded that a queue may be evicting";
  enum class Action : uint8_t { kLaunch, kDiscard, kRepopulate, kPopulate, kFetch, kEvict, kEvictBehind };
  struct Entry {
    Action action;
    std::vector<Extent> runs{};
    // Of the same stream: operations of its in and out queue, and entries of its work, that come first.
    uint64_t after_in = 0, after_out = 0, after_work = 0;
    bool populates = false;  // ends a discard
    uint64_t number = 0;     // of fetches and evictions, in the order in which they were queued
    Seq seq = 0;
    Launch launch{};
  };
  struct Lane {  // a stream and its two queues
    std::deque<Entry> work, in, out;
    uint64_t queued_work = 0, work_done = 0, in_op = 0, in_done = 0, out_op = 0, out_done = 0;
    Seq seq = 0, done = 0;
    std::deque<Entry>& Get(int which) { return which == 0 ? work : which == 1 ? in : out; }
    bool IsReady(int which) {
      const std::deque<Entry>& queue = Get(which);
      return !queue.empty() && in_done >= queue.front().after_in && out_done >= queue.front().after_out &&
             work_done >= queue.front().after_work;
    }
  };

  void Do(Lane* lane, const Entry& entry) {
    if (entry.runs.empty()) return;
    const auto discards = [](const Entry& other) { return other.action == Action::kDiscard; };
    if (std::none_of(lane->work.begin(), lane->work.end(), discards)) return CarryOut(entry, *lane);
    lane->work.push_back(entry);
    ++lane->queued_work;
  }
  template <typename F>
  void Each(const Extent& run, F f) {
    for (Va va = run.base; va < run.end(); va += kChunkBytes) f(page((va - kBase) / kChunkBytes));
  }
  static void CheckRuns(const std::vector<Extent>& runs) {
    for (size_t i = 0; i < runs.size(); ++i) {
      Expect(runs[i].bytes && runs[i].bytes % kChunkBytes == 0 && runs[i].base % kChunkBytes == 0,
             "a run is not of whole chunks");
      Expect(i == 0 || runs[i - 1].end() < runs[i].base, "runs are not sorted and joined");
    }
  }
  // Users that are not over may only be of this stream (0: of none), up to this position.
  void CheckUsers(std::vector<memory::Mark>* users, StreamId stream, Seq up_to, const char* promise) {
    std::erase_if(*users, [this](const memory::Mark& mark) { return Done(mark); });
    for (const memory::Mark& mark : *users) Expect(mark.stream == stream && mark.seq <= up_to, promise);
  }
  void CheckDiscard(Page& p, StreamId stream) {
    Expect(!p.live, "live contents are discarded");
    for (auto* const users : {&p.users, &p.left_out_users})
      CheckUsers(users, stream, lanes_[stream].seq, "a chunk is discarded that unfinished work of another stream uses");
  }
  static bool Names(const std::vector<Extent>& runs, Va chunk) {
    return std::any_of(runs.begin(), runs.end(), [chunk](const Extent& run) { return chunk - run.base < run.bytes; });
  }
  // An eviction may not run before a fetch that its queue's stream planned first: the chunk would stay.
  static void CheckNotOvertaken(const Entry& eviction, const Lane& lane, Va chunk) {
    for (const Entry& fetch : lane.in)
      Expect(fetch.number > eviction.number || !Names(fetch.runs, chunk), "an eviction overtakes an earlier fetch");
  }
  // Nor may a transfer run beside a discard.
  void CheckUnmovedNow(Va chunk) {
    for (auto& [id, lane] : lanes_) {
      for (const int which : {1, 2})
        Expect(!lane.IsReady(which) || !Names(lane.Get(which).front().runs, chunk), "a chunk is discarded in transfer");
    }
  }
  // No queue may be evicting a chunk that is discarded, or fetched. Its own stream's evictions come first.
  void CheckUnmoved(Va chunk, StreamId stream, const char* promise) {
    const auto moves = [chunk](const Entry& entry) { return Names(entry.runs, chunk); };
    for (const auto& [id, lane] : lanes_)
      Expect(id == stream || std::none_of(lane.out.begin(), lane.out.end(), moves), promise);
  }
  static void Discard(Page* p) {
    p->discarded = true;
    p->gpu = p->host = 0;
  }
  void Immediate(const Plan& plan) {
    for (const std::vector<Extent>* runs :
         {&plan.discard, &plan.stream_discard, &plan.populate_now, &plan.populate_on_host, &plan.map_remote,
          &plan.unmap_remote, &plan.repopulate})
      CheckRuns(*runs);
    for (const Extent& run : plan.discard) {
      for (Va va = run.base; va < run.end(); va += kChunkBytes) CheckUnmoved(va, 0, kDiscardedInEviction);
      Each(run, [&](Page& p) {
        CheckDiscard(p, 0);
        Discard(&p);
      });
    }
    for (const Extent& run : plan.map_remote) Each(run, [](Page& p) { p.mapped = true; });
    for (const Extent& run : plan.unmap_remote) Each(run, [](Page& p) { p.mapped = false; });
  }
  void Step(const PlanStep& step, StreamId stream, uint64_t behind) {
    Lane& lane = lanes_[stream];
    for (const std::vector<Extent>* runs : {&step.drop, &step.unmap, &step.duplicate}) CheckRuns(*runs);
    for (const Extent& run : step.drop) {
      Each(run, [&](Page& p) {
        Expect(p.duplicate && (!p.on_gpu || p.gpu == p.host), "a chunk is dropped whose host copy is another");
        CheckUsers(&p.users, 0, 0, "a duplicate is dropped that unfinished work uses");
        p.duplicate = p.on_gpu = p.faulted = false;
      });
    }
    for (const Extent& run : step.unmap) Each(run, [](Page& p) { p.mapped = false; });
    for (const Extent& run : step.duplicate) {
      Each(run, [&](Page& p) {
        Expect(!p.on_gpu, "a chunk on the GPU is advised as a duplicate");
        p.duplicate = true;
      });
    }
    // The evictions of all pieces are queued first.
    size_t begin = 0;
    for (const PlanPiece& piece : step.pieces) {
      if (piece.out_op == 0) continue;
      const auto runs = Part(step.evict, &begin, piece.evict_end);
      Expect(piece.out_op == ++lane.out_op, "an eviction has another number");
      Expect(step.out_after <= lane.seq, "an eviction waits for later work");
      for (const Extent& run : runs) {
        Each(run, [&](Page& p) {
          CheckUsers(&p.users, stream, step.out_after,
                     "a victim is used by unfinished work that its eviction does not await");
        });
      }
      lane.out.push_back(
          {.action = Action::kEvict, .runs = runs, .after_work = WorkOf(lane, step.out_after), .number = ++queued_});
    }
    begin = 0;
    for (const PlanPiece& piece : step.pieces) {
      if (piece.in_op == 0) continue;
      const auto runs = Part(step.fetch, &begin, piece.fetch_end);
      Expect(piece.in_op == ++lane.in_op, "a fetch has another number");
      Expect(piece.in_after_out <= lane.out_op, "a fetch waits for an eviction that is not queued");
      for (const Extent& run : runs) {
        for (Va va = run.base; va < run.end(); va += kChunkBytes)
          CheckUnmoved(va, stream, "a chunk is fetched that another stream's queue may be evicting");
      }
      lane.in.push_back({.action = Action::kFetch,
                         .runs = runs,
                         .after_out = piece.in_after_out,
                         .after_work = behind,
                         .number = ++queued_});
    }
    if (!step.pieces.empty()) {
      Expect(step.pieces.back().evict_end == step.evict.size() && step.pieces.back().fetch_end == step.fetch.size(),
             "the pieces are not the whole step");
    }
  }
  // Of a step's runs; `*begin` moves to its end.
  static std::vector<Extent> Part(const std::vector<Extent>& runs, size_t* begin, size_t end) {
    Expect(*begin < end && end <= runs.size(), "a piece with a number is empty");
    const size_t from = std::exchange(*begin, end);
    std::vector<Extent> part(runs.begin() + static_cast<ptrdiff_t>(from), runs.begin() + static_cast<ptrdiff_t>(end));
    CheckRuns(part);
    return part;
  }
  // Entries of the stream up to this position.
  static uint64_t WorkOf(const Lane& lane, Seq seq) {
    if (seq == 0 || seq <= lane.done) return 0;
    uint64_t entries = lane.work_done;
    for (const Entry& entry : lane.work) {
      ++entries;
      if (entry.action == Action::kLaunch && entry.seq == seq) break;
    }
    return entries;
  }
  void CarryOut(const Entry& entry, const Lane& lane) {
    for (const Extent& run : entry.runs) {
      for (Va va = run.base; va < run.end(); va += kChunkBytes) {
        if (entry.action == Action::kDiscard || entry.action == Action::kRepopulate) CheckUnmovedNow(va);
        if (entry.number && entry.action != Action::kFetch) CheckNotOvertaken(entry, lane, va);
      }
    }
    for (const Extent& run : entry.runs) {
      Each(run, [&](Page& p) {
        switch (entry.action) {
          case Action::kDiscard:
            return Discard(&p);
          case Action::kRepopulate:
            Discard(&p);
            p.discarded = false;
            p.on_gpu = true;
            return;
          case Action::kPopulate:
          case Action::kFetch:
            if (!p.on_gpu) p.gpu = p.host;
            p.on_gpu = true;
            p.discarded = p.faulted = false;
            return;
          default:  // a missing page needs no eviction; discarded contents stay undefined
            if (p.on_gpu) p.host = p.gpu;
            p.on_gpu = p.faulted = false;
            if (entry.action == Action::kEvictBehind) --p.evictions;
            if (entry.populates) p.discarded = false;
        }
      });
    }
    if (entry.action == Action::kLaunch) Run(entry.launch);
  }
  void Run(const Launch& launch) {
    ++writes_;
    for (const uint64_t chunk : launch.set) {
      Page& p = page(chunk);
      Expect(!p.discarded, "a launch may write a discarded chunk");
      if (!p.on_gpu && !p.mapped) {  // a fault brings it
        p.on_gpu = p.faulted = true;
        p.gpu = p.host;
        faults_.push_back(kBase + chunk * kChunkBytes);
      }
      uint64_t& contents = p.on_gpu ? p.gpu : p.host;
      Expect(launch.fresh.contains(chunk) || !p.truth || contents == p.truth, "a launch finds lost contents");
      if (!launch.writes) continue;
      Expect(!p.duplicate, "a launch writes a duplicate");
      contents = p.truth = writes_;
    }
  }

  std::vector<Page> pages_;
  std::map<StreamId, Lane> lanes_;
  std::vector<Va> faults_;
  uint64_t writes_ = 0, queued_ = 0;
};

}  // namespace sluice::policy

#endif  // SLUICE_TEST_UNIT_BRUTE_CARD_H_
