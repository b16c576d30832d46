// The agent's core: what is allocated, who is attached, what everyone may have. Frames, times and pages come in, frames
// go out through a port; no socket, file, clock or thread of its own, so that tests drive it by hand. One thread only.
#ifndef SLUICE_AGENT_NODE_H_
#define SLUICE_AGENT_NODE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/allocation_file.h"
#include "agent/config.h"
#include "agent/demand.h"
#include "agent/ledger.h"
#include "agent/status.h"
#include "agent/tokens.h"
#include "sluice/wire.h"

namespace sluice::agent {

using SessionId = uint64_t;

// Where frames go. A session that was closed by Close() gets no Closed() call back.
class Port {
 public:
  virtual ~Port() = default;
  virtual void Send(SessionId session, const sluice_frame& frame) = 0;  // WELCOME: with the session's page
  virtual void Close(SessionId session) = 0;
};

struct Card {
  std::string uuid, model;
  Bytes memory = 0;
  Bytes driver_reserved = 0;
  int numa = -1;
};

// Whose an allocation is, by the API server, and what the pod's annotations say of the container.
struct PodOf {
  std::string ns, pod, container;
  settings::Settings settings;
  bool operator==(const PodOf&) const = default;
};

// Kubelet's word on its devices: who has which.
struct DeviceOwner {
  std::string ns, pod, container;
};
using DevicesInUse = std::map<std::string, DeviceOwner>;

class Node {
 public:
  // `first_generation` must exceed every generation that an earlier agent of this node gave out.
  Node(Port* port, const Config& config, uint64_t first_generation);
  ~Node();

  void SetCards(const std::vector<Card>& cards);
  void SetConfig(const Config& config);
  void SetConfigError(const std::string& error) { config_error_ = error; }
  void SetHostLimit(Bytes bytes);
  // Used bytes of a card by NVML.
  void SetUsed(const std::string& uuid, Bytes bytes);
  // What each process holds of a card by NVML, managed memory apart. Contexts and code, and what others hold, are not
  // given to containers; what a process holds beyond that and beyond what its hook knows of counts as its container's.
  void SetProcesses(const std::string& uuid, const std::map<int64_t, Bytes>& used);
  // Which allocations still stand: one whose devices kubelet has given to nobody is promised nothing. Names are taken
  // where the allocation has none.
  void SetDevicesInUse(const DevicesInUse& in_use);
  // After a restart: until then only returning processes are served, so that nothing is handed out that one of them
  // still holds. Allocations known by now are older than the agent: those to which no process returns are vacant.
  void RecoverUntil(uint64_t now_ns);

  // False with a sentence: not served.
  bool AddAllocation(const AllocationSpec& spec, const std::map<std::string, std::string>& live, std::string* error);
  // Not served any more; what is attached stays until it ends.
  void RemoveAllocation(const std::string& id);
  bool HasAllocation(const std::string& id) const { return by_id_.contains(id); }
  // Its settings stand between those of allocation.json and the clients' rules. They raise no one's guarantee: the
  // units are what the scheduler gave, and gpu-memory is held to what they are worth.
  void SetPod(const std::string& id, const PodOf& pod);
  // The id itself, or the one id that begins so. Otherwise false with a sentence.
  bool ResolveId(const std::string& prefix, std::string* id, std::string* error) const;
  // Checks a live change (an empty value takes away what was set) and returns all live settings of the allocation after
  // it; ApplyLive puts them in force.
  bool CheckSet(const std::string& id, const std::map<std::string, std::string>& change,
                std::map<std::string, std::string>* live, std::string* error) const;
  void ApplyLive(const std::string& id, const std::map<std::string, std::string>& live);
  // The card with the most free units that has `units`; empty: none.
  std::string ChooseCard(uint32_t units, const std::vector<std::string>& taken) const;
  // A sentence where live settings guarantee more than the units that the scheduler gave; else empty.
  std::string Beyond(const std::string& id) const;
  // Units (hundredths) of a card not given to allocations, nor promised to them since (`sluice set`).
  uint32_t FreeUnits(const std::string& uuid) const;

  // A process connected to the socket of allocation `id`. `page` lives until Closed() or Port::Close().
  void Opened(SessionId session, const std::string& id, int64_t pid, const sluice_page* page, uint64_t now_ns);
  void Received(SessionId session, const void* data, size_t bytes, uint64_t now_ns);
  void Closed(SessionId session, uint64_t now_ns);

  // Sends the budgets that arrivals, departures and settings have changed since. Call it after each batch of events.
  void Settle();
  // Reads the pages, moves budgets. Returns the milliseconds after which it wants to be called again.
  int Tick(uint64_t now_ns);

  NodeStatus Status() const;
  std::vector<Event> EventsAfter(uint64_t number) const;
  void AddEvent(const std::string& allocation, const std::string& kind, const std::string& text);
  void OnEvent(std::function<void(Event&)> listener) { listener_ = std::move(listener); }
  // Attestation: a GPU process without a hook was seen, or not, in the allocation's cgroup.
  void SetUnhooked(const std::string& id, const std::vector<int64_t>& pids);
  std::vector<std::pair<std::string, std::set<int64_t>>> AttachedPids() const;
  size_t sessions() const { return sessions_.size(); }
  size_t Processes(const std::string& id) const;  // connected to this allocation
  const Ledger* LedgerOf(const std::string& uuid) const;

 private:
  struct Allocation;
  struct Session;
  struct CardState {
    Card card;
    Ledger ledger;
    Bytes used = 0;
    Arbiter arbiter;
    Bytes contexts = 0;   // of processes, as measured: not for containers' memory
    bool tokens = false;  // demanded, and everyone was told
    // Memory follows the token while working sets exceed the card.
    GroupId turn = 0;  // whose working set the card is for; 0: nobody's
    // Whose working sets lie there together, in the order of their last turns.
    std::vector<GroupId> seated;
    uint64_t seated_ns = 0;          // the last one took its seat
    std::map<GroupId, Bytes> holds;  // live bytes of those who work, when the pages were last read
    uint64_t turn_ns = 0;            // memory began to change hands then, and is not settled yet; 0: settled
    uint64_t switch_ns = 0;          // what a change costs, as measured; 0: not yet
  };

  Bytes Capacity(const Card& card, Bytes contexts) const;
  Bytes Guaranteed(const Allocation& a, size_t gpu) const;
  uint32_t Percent(const Allocation& a, size_t gpu) const;  // of the card, of its time too unless a request is said
  settings::Settings Effective(const Allocation& a, const settings::Settings& live) const;
  void Forget(const Allocation& a);
  void Vacate(uint64_t now_ns);  // tells the ledgers which allocations nobody uses
  void Refresh(Allocation& a);   // settings changed: groups, and a BUDGET to everyone
  void Hello(Session& s, const sluice_hello& hello, uint64_t now_ns);
  void Welcome(Session& s, uint64_t now_ns);
  void Admit(Session& s, uint64_t now_ns);  // into the ledgers; the first budgets go out
  void Refuse(Session& s, const std::string& reason);
  void Notice(Session& s, const sluice_notice& notice, uint64_t now_ns);
  void Drop(Session& s);
  void Token(Session& s, const sluice_frame& frame, uint64_t now_ns);
  void Pump(CardState& card, uint64_t now_ns);  // grants and revocations that are due
  // Do the working sets of containers together exceed the card?
  void Weigh(const std::map<CardState*, std::map<GroupId, Bytes>>& working);
  void FollowTurn(CardState& card, uint64_t now_ns);  // memory goes to whom the token went
  void Seat(CardState& card);                         // whose working sets may stay
  void WatchHolders(uint64_t now_ns);                 // who is stopped with a token loses it
  Bytes Wants(const CardState& card, const Session& s, size_t gpu, uint64_t now_ns) const;
  void WatchTokens(uint64_t now_ns);  // are tokens demanded, and does everyone know?
  std::pair<uint32_t, uint32_t> Compute(const Allocation& a, size_t gpu) const;  // request and limit, millionths
  Arbiter::Policy TokenPolicy() const;
  void SendBudget(Session& s, size_t gpu);
  void ReadPages(uint64_t now_ns);
  sluice_gpu_counters Read(const Session& s, size_t gpu) const;
  AllocationStatus StatusOf(const Allocation& a) const;
  static MemberId Member(SessionId session, size_t gpu) { return session * SLUICE_MAX_GPUS + gpu; }
  static sluice_frame Frame(Session& s, uint16_t type);

  Port* const port_;
  Config config_;
  std::string config_error_;
  std::map<std::string, std::unique_ptr<CardState>> cards_;
  std::map<GroupId, std::unique_ptr<Allocation>> allocations_;
  std::map<std::string, Allocation*> by_id_;
  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  Ledger host_;
  std::deque<Event> events_;
  std::function<void(Event&)> listener_;
  uint64_t next_group_ = 1, next_event_ = 1;
  uint64_t recover_until_ns_ = 0;
  uint64_t malformed_ = 0, late_ = 0;
  uint64_t unsettled_ns_ = 0;  // since when a ledger waits for somebody; 0: none does
  uint64_t read_ns_ = 0;       // the pages were read then
  uint64_t now_ns_ = 0;        // of the call that is being served
  uint64_t next_generation_;   // on the wire
  bool dirty_ = false;         // budgets may have to move
  bool launching_ = false;     // someone launched since the last tick
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_NODE_H_
