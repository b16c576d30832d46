// The inner records of Node, and helpers of its sources; included by these only.
#ifndef SLUICE_AGENT_NODE_PRIVATE_H_
#define SLUICE_AGENT_NODE_PRIVATE_H_

#include <cstring>

#include "agent/node.h"
#include "sluice/names.h"

namespace sluice::agent {

inline constexpr uint64_t kMs = 1'000'000;  // ns
// A returning hook that has not answered PING by then is served as a new one.
inline constexpr uint64_t kReturningNs = 1000 * kMs;
inline constexpr Bytes kMaxContextBytes = 1ull << 30;  // memory beyond a context and its code is the program's own

// Whether an allocation is parked (node_park.cc).
struct Node::Park {
  enum class State : uint8_t { kAwake, kParking, kParked };
  State state = State::kAwake;
  std::string reason, woken_by;
  uint64_t since_ns = 0;  // of the state; 0: never parked
  Bytes resident = 0;     // when it began
  bool delay_reported = false;
  bool refusal_reported = false;  // that park-after has no effect here
  uint64_t parks = 0, wakes = 0;
};

struct Node::Allocation {
  GroupId group = 0;
  AllocationSpec spec;
  std::optional<PodInfo> pod;
  std::string holder_uid, holder_container;  // by kubelet's checkpoint; empty: not known
  settings::Settings live;                   // by `sluice set`: overrides all other settings
  std::map<std::string, std::string> live_text;
  settings::Settings effective;
  std::set<SessionId> sessions;
  std::set<SessionId> observers;  // connections that only look; no part of `sessions`
  std::vector<Leases> leases;     // one a GPU
  size_t waiting = 0;             // its requests for memory that wait for others to return
  std::vector<int64_t> unhooked;
  std::vector<sluice_gpu_counters> ended;
  std::vector<uint64_t> link_users;  // processes that used each GPU's link, as the last plan of the links counted them
  std::vector<DayPeak> peaks;        // of the working set, one a GPU
  std::string held;                  // the reason why its launches wait; empty: they do not
  uint64_t held_ns = 0;              // since when; 0: it does not wait
  bool held_reported = false;
  Park park;
  uint64_t used_ns = 0;  // last time with a process, or when first seen; 0: no tick has seen it yet
  bool removed = false;
  bool ever_attached = false;
  bool refused = false;
  bool stale = false;  // kubelet has taken its devices back, while its folder is still there
};

struct Node::Session {
  enum class Phase { kConnected, kWaiting, kReturning, kServed, kObserving };
  SessionId id = 0;
  Allocation* allocation = nullptr;
  int64_t pid = 0;
  ContainerKey container;
  int32_t own_pid = 0;  // in its own namespace, as it says
  uint8_t minor = 0;    // of its HELLO
  sluice_page* page = nullptr;
  uint64_t opened_ns = 0;
  Phase phase = Phase::kConnected;
  uint64_t seq = 0;
  std::string command, version;
  struct SentGenerations {  // the ledgers' generations that the hook knows, and the wire's generation that carried each
    uint64_t card = 0, card_since = 0, host = 0, host_since = 0;
  };
  // One of each a GPU:
  std::vector<SentGenerations> sent;
  std::vector<uint64_t> kernel_ns;     // as last read
  std::vector<uint64_t> kernel_since;  // when it last changed
  std::vector<uint64_t> launches;      // as last read
  std::vector<Demand> demand;
  std::vector<uint64_t> overdue_since_ns;  // 0: nothing is overdue
  struct LinkUse {                         // of the GPU to the host
    uint64_t beat_ns = 0;                  // the page's heartbeat when it was last counted; 0: not yet
    Bytes moved = 0, per_s = 0, sent_per_s = 0;
  };
  std::vector<LinkUse> link;
  // Of the pages since the process follows the parked budget; less than before is not work.
  struct ParkedPage {
    uint64_t since = 0;  // the wire's generation that said so first; 0: not sent yet
    bool known = false;
    uint64_t launches = 0;
    Bytes allocated = 0;
  };
  std::vector<ParkedPage> parked;
  uint64_t admitted_ns = 0;
  std::vector<Bytes> contexts;   // of it, by NVML
  std::vector<Bytes> uncounted;  // held by NVML beyond a context and beyond the hook's counters
  std::vector<Bytes> deducted;   // of the budget, for these
  struct GpuTime {               // GPU time of the last second
    uint64_t since_ns = 0, spent_ns = 0;
    uint32_t millionths = 0;
  };
  std::vector<GpuTime> use;
  bool reports_use = false;  // its hook counts the bytes that work uses: older ones do not
  bool uses_tokens = false;  // its GPU time is charged by grants
  uint64_t notices = 0, notice_window_ns = 0;
  struct Evidence {
    uint64_t beat = 0, beat_ns = 0;   // the page's heartbeat, and when it last changed
    uint64_t disagrees_since_ns = 0;  // 0: it agrees
    std::string reason;               // of the disagreement
    bool seen = false;                // the driver and the page both showed its use of a GPU
    bool unproven = false;
  } evidence;
};

inline Bytes PercentOf(Bytes capacity, uint32_t percent) {
  return static_cast<Bytes>(static_cast<unsigned __int128>(capacity) * percent / SLUICE_UNITS_PER_GPU);
}

// The units of a GPU that so many bytes are worth.
inline uint32_t UnitsIn(Bytes bytes, Bytes capacity) {
  return capacity == 0 ? 0
                       : static_cast<uint32_t>(static_cast<unsigned __int128>(bytes) * SLUICE_UNITS_PER_GPU / capacity);
}

// Saturating: counters are another process's claim.
inline Bytes Sum(Bytes a, Bytes b) { return a + b < a ? UINT64_MAX : a + b; }

inline void SetText(char* to, size_t size, const std::string& text) {
  std::memset(to, 0, size);
  text.copy(to, size - 1);
}

inline uint64_t Load(const uint64_t& v) { return __atomic_load_n(&v, __ATOMIC_RELAXED); }

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_NODE_PRIVATE_H_
