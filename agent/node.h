// The agent's core: allocations, attached processes, and the budgets and tokens that they get. Frames, times and pages
// come in, frames go out through a port. It has no socket, file, clock or thread of its own, so tests drive it by hand.
// Used by one thread only.
#ifndef SLUICE_AGENT_NODE_H_
#define SLUICE_AGENT_NODE_H_

#include <concepts>
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
#include "agent/arbiter.h"
#include "agent/config.h"
#include "agent/demand.h"
#include "agent/identity.h"
#include "agent/leases.h"
#include "agent/ledger.h"
#include "agent/link_shares.h"
#include "agent/right_size.h"
#include "agent/status.h"
#include "agent/token_bucket.h"
#include "sluice/wire.h"

namespace sluice::agent {

using SessionId = uint64_t;

// Where frames go. After Close() the node gets no Closed() for that session.
class Port {
 public:
  virtual ~Port() = default;
  virtual void Send(SessionId session, const sluice_frame& frame) = 0;  // WELCOME: with the session's page
  virtual void Close(SessionId session) = 0;
  // Budgets are left to be sent: Node::SendDue() is to be called soon, and other work may come before.
  virtual void SendSoon() {}
};

struct Card {
  std::string uuid, model;
  Bytes memory = 0;
  Bytes driver_reserved = 0;
  int numa = -1;
  Bytes link_bytes_per_s = 0;  // of the link to the host, one way, by its generation and width; 0: not known
  Bytes cgroup_memory = 0;     // the smaller size that NVML gives this process; 0: none
};

// The pod of an allocation by the API server, and the settings of its annotations for the container.
struct PodInfo {
  std::string ns, pod, container;
  settings::Settings settings;
  std::optional<uint32_t> percent = {};  // of each GPU, granted instead of the units
  bool operator==(const PodInfo&) const = default;
};

// One process on one GPU, by the GPU's driver.
struct GpuUse {
  Bytes bytes = 0;        // without managed memory
  int busy_percent = -1;  // of the GPU's time, lately; -1: the driver does not say
};
using GpuUses =
    std::map<std::string, std::map<int64_t, GpuUse>>;  // by GPU, of those whose driver lists processes; by pid

// Kubelet's devices in use: the container that each is assigned to.
struct DeviceOwner {
  std::string ns, pod, container;
};
using DevicesInUse = std::map<std::string, DeviceOwner>;
// Pods ("namespace/pod") that other device plugins or DRA gave GPUs to: by the GPU's uuid, or "" where it cannot be
// told.
using OtherOwners = std::map<std::string, std::set<std::string>>;

class Node {
 public:
  // `first_generation` must exceed all generations that an earlier agent of this node sent.
  Node(Port* port, const Config& config, uint64_t first_generation);
  ~Node();

  void SetCards(const std::vector<Card>& cards);
  void SetConfig(const Config& config);
  void SetConfigError(const std::string& error) { config_error_ = error; }
  // Why the device plugin offers fewer GPUs than the node has, for the status. Empty: it offers all.
  void SetOfferProblem(const std::string& problem) { offer_problem_ = problem; }
  void SetHostLimit(Bytes bytes);
  // Used bytes of a GPU by NVML.
  void SetUsed(const std::string& uuid, Bytes bytes);
  // Bytes of a GPU that each process uses by NVML, without managed memory. Contexts, code and other processes reduce
  // the capacity for containers. Bytes of a hooked process beyond a context's and beyond its counters are charged to
  // its container.
  void SetProcesses(const std::string& uuid, const std::map<int64_t, Bytes>& used);
  // An allocation without a device in use is guaranteed nothing. Pod names are taken where the allocation has none.
  void SetDevicesInUse(const DevicesInUse& in_use);
  // After a restart: until then only returning processes are served, so that no bytes are given out that one of them
  // still holds. The allocations known by now are older than this agent: those without a returning process are vacant.
  void RecoverUntil(uint64_t now_ns);

  // False with a sentence: not served.
  bool AddAllocation(const AllocationSpec& spec, const std::map<std::string, std::string>& live, std::string* error);
  // Serves no new process; attached ones stay until they end.
  void RemoveAllocation(const std::string& id);
  // Of all allocations together, as the configuration says.
  size_t max_connections() const { return config_.max_connections; }
  bool in_kubernetes() const { return config_.kubernetes.enabled; }
  bool HasAllocation(const std::string& id) const { return by_id_.contains(id); }
  // The pod's settings rank between those of allocation.json and the rules of `clients`. Its sizes raise no guarantee
  // by themselves: the scheduler gave the units, and gpu-memory is capped at the worth of these, or of the granted
  // percent.
  void SetPod(const std::string& id, const PodInfo& pod);
  // The id itself, the one id that begins with it, "namespace/pod" or "namespace/pod/container" where one allocation
  // has that name, or the number of an attached process. Otherwise false with a sentence.
  bool ResolveId(const std::string& prefix, std::string* id, std::string* error) const;
  // Checks a live change, and returns all live settings of the allocation after it. An empty value removes a setting.
  // ApplyLive puts them in force.
  bool CheckSet(const std::string& id, const std::map<std::string, std::string>& change,
                std::map<std::string, std::string>* live, std::string* error) const;
  void ApplyLive(const std::string& id, const std::map<std::string, std::string>& live);
  // The GPU with the most free units, at least `units`; empty: none.
  std::string ChooseCard(uint32_t units, const std::vector<std::string>& taken) const;
  // Has the container leave the GPU until its next launch, an allocation, or Wake. Settle() sends it. False with a
  // sentence: it is parked already, has no attached process, or a hook that is too old.
  bool ParkNow(const std::string& id, const std::string& reason, uint64_t now_ns, std::string* error);
  bool Wake(const std::string& id, uint64_t now_ns, std::string* error);  // false with a sentence: it is not parked
  // A sentence where live settings guarantee more than the scheduler's units; else empty.
  std::string ExcessNote(const std::string& id) const;
  // Units (hundredths) of a GPU that are neither allocated nor guaranteed by `sluice set`.
  uint32_t FreeUnits(const std::string& uuid) const;

  // A process connected to the socket of allocation `id`. `page`, null until SetPage() before its HELLO, stays valid
  // until Closed() or Port::Close(). The node writes only to its leases. `pid` is the kernel's; 0: the process is in a
  // pid namespace that this agent does not see. A process of another pod than the allocation's is refused, which
  // changes nothing of the allocation.
  void Opened(SessionId session, const std::string& id, int64_t pid, sluice_page* page, uint64_t now_ns,
              const ContainerKey& container = {});
  void SetPage(SessionId session, sluice_page* page);
  void Received(SessionId session, const void* data, size_t bytes, uint64_t now_ns);
  void Closed(SessionId session, uint64_t now_ns);

  // Sends the budgets that changed with processes and settings. Call it after each batch of events.
  void Settle();
  // Sends some of the budgets that are due.
  void SendDue();
  // Reads the pages and moves budgets. Returns the milliseconds until the next call. 0: pages are left to read, and
  // budgets move once all have been read.
  int Tick(uint64_t now_ns);

  NodeStatus Status() const;  // reads the pages of all processes
  std::vector<CardStatus> Cards() const;
  std::vector<Event> EventsAfter(uint64_t number) const;
  // An event of the agent itself. The callers bound how often.
  void AddEvent(const std::string& allocation, const std::string& kind, const std::string& text,
                const std::string& pod_uid = "");
  // A process that belongs to no allocation uses a GPU.
  void AddExternal(const std::string& text) { AddFinding("", "external process", text); }
  // The allocation had a connection that the server did not serve.
  void Rejected(const std::string& id, const std::string& reason);
  void OnEvent(std::function<void(Event&)> listener) { listener_ = std::move(listener); }
  // Attestation: the GPU processes without a hook in the allocation's container.
  void SetUnhooked(const std::string& id, const std::vector<int64_t>& pids);
  std::vector<std::pair<std::string, std::set<int64_t>>> AttachedPids() const;
  // Compares each process's page with the driver's account. A process whose page disagrees, or stays unwritten, for
  // some seconds is "unproven". Returns the processes, by allocation, that use a GPU and whose hook never wrote: they
  // only said HELLO. Call it about once a second.
  std::map<std::string, std::vector<int64_t>> CheckEvidence(const GpuUses& uses, uint64_t now_ns);
  // The container that kubelet gave the allocation to. Processes of other pods that are attached are refused.
  void SetHolder(const std::string& id, const std::string& pod_uid, const std::string& container);
  std::map<std::string, AllocationIdentity> KnownIdentities() const;
  // By GPU: the unmanaged memory that the allocation's processes may hold, with the hook or without. It is the ledger's
  // exposure, at least the guarantee, and a context for each attached process and one more.
  std::map<std::string, Bytes> UnmanagedLimits(const std::string& id) const;
  // All processes on GPUs that their containers were not given. Each new one is recorded.
  void SetForeign(std::vector<ForeignProcess> foreign);
  // A process presents another's identity. `allocation` is its own, where that is known. Counted and recorded.
  void Forged(const std::string& allocation, const std::string& text);
  size_t sessions() const { return sessions_.size(); }
  size_t Processes(const std::string& id) const;  // connected to this allocation
  const Ledger* LedgerOf(const std::string& uuid) const;

 private:
  struct Park;
  struct Allocation;
  struct Session;
  struct CardState {
    Card card;
    Ledger ledger;
    Bytes used = 0;
    Arbiter arbiter;
    Bytes contexts = 0;                           // of processes, as measured: not available to containers
    bool tokens = false;                          // launches need tokens, and all processes know
    uint64_t tokens_since_ns = 0, tokens_ns = 0;  // the last time that they began; the time of all earlier ones
    // While working sets exceed the GPU's memory, memory follows the token.
    GroupId favored = 0;  // the group that gets its whole working set; 0: none
    // The groups whose working sets are resident together, ordered by their last time slices.
    std::vector<GroupId> resident;
    uint64_t resident_ns = 0;       // since when the last of them is
    std::map<GroupId, Bytes> held;  // live bytes of the working groups, when the pages were last read
    uint64_t switch_began_ns = 0;   // the switch in progress began then; 0: none
    uint64_t switch_ns = 0;         // duration of a switch, as measured; 0: not yet
    LinkShares link;
  };

  // node_events.cc
  // Events that processes of the allocation cause: a bucket each. Further ones are counted, and the next one tells it.
  void AddTenantEvent(const std::string& allocation, const std::string& kind, const std::string& text);
  // `text` is called if the event is kept: a thousand attaches at once make no text that is left out.
  template <std::invocable Text>
  void AddTenantEvent(const std::string& allocation, const std::string& kind, Text text) {
    if (TakeEvent(&EventSource::caused, allocation)) AddEvent(allocation, kind, text());
  }
  // A check's finding about them. Its bucket is not the processes' own, since they must not be able to empty it.
  void AddFinding(const std::string& allocation, const std::string& kind, const std::string& text,
                  const std::string& pod_uid = "");
  struct EventSource;
  // False: the bucket is empty, and the event is counted.
  bool TakeEvent(TokenBucket EventSource::* bucket, const std::string& allocation);
  struct EventSource {
    TokenBucket caused{2'000'000'000, 100}, found{10'000'000'000, 50};
    size_t kept = 0;  // in events_
    uint64_t left_out = 0, left_out_reported = 0;
  };
  // node.cc
  Bytes Capacity(const Card& card, Bytes contexts) const;
  Bytes ContextAllotment(const Allocation& a, size_t gpu) const;  // of a container's contexts that all pay for
  void Forget(const Allocation& a);
  bool IsNamed(const Allocation& a, const std::string& name) const;
  void Vacate(uint64_t now_ns);  // marks allocations without a process in the ledgers
  void Refresh(Allocation& a);   // settings changed: groups, and a BUDGET to each process
  // node_settings.cc
  Bytes Size(const Allocation& a, size_t gpu) const;        // by units or gpu-memory
  Bytes Guaranteed(const Allocation& a, size_t gpu) const;  // the size, or 0 of an opportunistic allocation
  uint32_t Percent(const Allocation& a, size_t gpu) const;  // of the GPU; of its time too without compute-request
  settings::Settings Effective(const Allocation& a, const settings::Settings& live) const;
  std::pair<uint32_t, uint32_t> Compute(const Allocation& a, size_t gpu) const;  // request and limit, millionths
  Arbiter::Policy TokenPolicy() const;
  // node_session.cc
  void Hello(Session& s, const sluice_hello& hello, uint64_t now_ns);
  void Welcome(Session& s);
  void Admit(Session& s, uint64_t now_ns);                                // into the ledgers; the first budgets go out
  void Refuse(Session& s, const std::string& reason, bool blame = true);  // blame: it shows in the allocation's state
  void RefuseForeign(Session& s);                                         // a process of another pod
  void Notice(Session& s, const sluice_notice& notice, uint64_t now_ns);
  void Drop(Session& s);
  // node_memory.cc
  void Observe(Session& s);  // its HELLO says that it only looks
  void AddLeases(Session& s, bool returning, uint64_t now_ns);
  void RemoveLeases(Session& s);
  void SetLimits(Allocation& a);
  void MemoryRequest(Session& s, const sluice_memory& request, uint64_t now_ns);
  void ProcessesRequest(Session& s, const sluice_processes& request);
  void AnswerWaiting(uint64_t now_ns);  // requests that came while others' leases were not known
  void SendMemory(Session& s, size_t gpu, uint64_t id);
  void FillLease(const Session& s, size_t gpu, sluice_budget* budget);
  void NoteUse(Session& s, size_t gpu, const sluice_gpu_counters& counters, uint64_t now_ns);
  Bytes Visible(const Allocation& a, size_t gpu) const;  // total of memory queries
  // node_budgets.cc
  void SendBudget(Session& s, size_t gpu);
  void MarkDue(SessionId session, size_t gpu);
  void SendIfDue(Session& s, size_t gpu);  // before a frame that must not come before it
  // The pages of all sessions are read in slices, so that a frame waits for a slice at most.
  struct Reading {
    bool active = false;
    SessionId next = 0, last = 0;  // sessions that are left to read
    bool launching = false;
    std::map<CardState*, std::map<GroupId, Bytes>> working, held;
    std::map<std::pair<GroupId, size_t>, DayPeak::Sample> samples;  // by group and its GPU
  };
  void BeginReading(Reading& reading) const;
  bool ReadSlice(Reading& reading, int pages, uint64_t now_ns);  // true: all pages have been read
  void ReadPage(Session& s, Reading& reading, uint64_t now_ns);
  void EndReading(Reading& reading);
  void ReadPages(uint64_t now_ns);  // all at once
  void AdmitWaiting(uint64_t now_ns);
  void CheckOverdue(Session& s, size_t gpu, Bytes overdue, uint64_t now_ns);
  Bytes Wanted(const CardState& card, const Session& s, size_t gpu, uint64_t now_ns) const;
  sluice_gpu_counters Read(const Session& s, size_t gpu) const;
  // node_compute.cc
  void Token(Session& s, const sluice_frame& frame, uint64_t now_ns);
  void Pump(CardState& card, uint64_t now_ns);  // grants and revocations that are due
  // Decides for each GPU whether the working sets of its containers exceed the memory.
  void SetPressure(const std::map<CardState*, std::map<GroupId, Bytes>>& working);
  void FollowToken(CardState& card, uint64_t now_ns);  // memory goes to the group that got the token
  void ChooseResident(CardState& card);
  void ExpireSilentHolders(uint64_t now_ns);  // a stopped process loses its token
  void UpdateDemand(uint64_t now_ns);         // tells all processes whether launches need tokens
  // node_priority.cc
  static bool IsOpportunistic(const Allocation& a);
  bool NeedsTokens(const Allocation& a, const CardState& card) const;
  void HoldOpportunistic(uint64_t now_ns);  // those without memory to work in
  std::string HeldBy(const Allocation& a, uint64_t now_ns) const;
  void CountLink(Session& s, size_t gpu, const sluice_gpu_counters& counters);
  void ShareLinks(uint64_t now_ns);
  uint64_t LinkRate(const Session& s, size_t gpu) const;  // bytes a second; 0: not metered
  // node_park.cc
  static bool IsParked(const Allocation& a);
  static bool IsParkedByPage(const Session& s);  // by the process's own word
  std::vector<Session*> Served(const Allocation& a) const;
  void BeginPark(Allocation& a, const std::string& reason, uint64_t now_ns);
  void EndPark(Allocation& a, const std::string& woken_by, uint64_t now_ns);
  void SetParked(Allocation& a, bool parked);    // tells ledgers and processes
  void ResumePark(Session& s, uint64_t now_ns);  // a process returns after the agent's restart
  void ForgetPark(Allocation& a);                // its last process has ended
  void UpdateParks(uint64_t now_ns);             // after the pages were read
  void UpdatePark(Allocation& a, uint64_t now_ns);
  void ParkIdle(Allocation& a, uint64_t now_ns);  // by park-after
  bool Worked(Session& s, size_t gpu);            // since it follows the parked budget
  ParkStatus StatusOfPark(const Allocation& a) const;
  // node_evidence.cc
  std::string Disagreement(const Session& s, const GpuUses& uses, uint64_t now_ns) const;
  // node_status.cc
  void ObserveWorkingSets(const Reading& reading, uint64_t now_ns);
  AllocationStatus StatusOf(const Allocation& a) const;
  static MemberId Member(SessionId session, size_t gpu) { return session * SLUICE_MAX_GPUS + gpu; }
  static sluice_frame Frame(Session& s, uint16_t type);

  Port* const port_;
  Config config_;
  std::string config_error_, offer_problem_;
  std::map<std::string, std::unique_ptr<CardState>> cards_;
  std::map<GroupId, std::unique_ptr<Allocation>> allocations_;
  std::map<std::string, Allocation*> by_id_;
  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  Ledger host_;
  std::vector<ForeignProcess> foreign_;
  std::deque<Event> events_;
  std::map<std::string, EventSource> sources_;  // by allocation; "": the node
  std::function<void(Event&)> listener_;
  uint64_t next_group_ = 1, next_event_ = 1;
  uint64_t recover_until_ns_ = 0;
  uint64_t malformed_ = 0, late_ = 0, forged_ = 0;
  uint64_t unsettled_ns_ = 0;  // since when a ledger waits for a holder; 0: none does
  uint64_t now_ns_ = 0;        // of the current call
  uint64_t next_generation_;   // on the wire
  bool dirty_ = false;         // budgets may have to change
  // BUDGETs that are due, by group: the groups are served in turn.
  std::map<GroupId, std::set<std::pair<SessionId, size_t>>> due_;
  GroupId last_served_ = 0;
  Reading reading_;                                           // of Tick
  bool launching_ = false;                                    // a process launched since the last tick
  std::vector<std::pair<SessionId, sluice_memory>> waiting_;  // for the others to return
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_NODE_H_
