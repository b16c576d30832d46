// The inner records of Node; included by its own sources only.
#ifndef SLUICE_AGENT_NODE_PRIVATE_H_
#define SLUICE_AGENT_NODE_PRIVATE_H_

#include "agent/node.h"

namespace sluice::agent {

struct Node::Allocation {
  GroupId group = 0;
  AllocationSpec spec;
  std::optional<PodOf> pod;
  settings::Settings live;  // by `sluice set`, over everything else
  std::map<std::string, std::string> live_text;
  settings::Settings effective;
  std::set<SessionId> sessions;
  std::vector<int64_t> unhooked;
  std::vector<sluice_gpu_counters> ended;
  uint64_t used_ns = 0;  // a process was attached then, or it was first seen; 0: not seen by a tick yet
  bool removed = false;
  bool ever_attached = false;
  bool refused = false;
  bool stale = false;  // kubelet has taken its devices back; its folder is still there
};

struct Node::Session {
  enum class Phase { kConnected, kWaiting, kReturning, kServed };
  SessionId id = 0;
  Allocation* allocation = nullptr;
  int64_t pid = 0;
  const sluice_page* page = nullptr;
  uint64_t opened_ns = 0;
  Phase phase = Phase::kConnected;
  uint64_t seq = 0;
  std::string command, version;
  struct Sent {  // which ledger generations the hook was told, and with which generation of the wire
    uint64_t card = 0, card_since = 0, host = 0, host_since = 0;
  };
  std::vector<Sent> sent;               // one a GPU
  std::vector<uint64_t> kernel_ns;      // one a GPU: as last seen,
  std::vector<uint64_t> kernel_since;   // and when it had last changed
  bool asks = false;                    // for tokens: its time is charged by grants
  std::vector<Demand> demand;           // one a GPU
  std::vector<uint64_t> debt_since_ns;  // one a GPU; 0: none
  std::vector<Bytes> beyond;            // one a GPU: held by NVML's word beyond what the hook tells
  uint64_t notices = 0, notice_window_ns = 0;
  bool closing = false;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_NODE_PRIVATE_H_
