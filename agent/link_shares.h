// Shares out one GPU's link to the host, in bytes a second. Pure: time is an argument. Not thread-safe.
//
// The link serves transfers in the order of their arrival, so a container that always transfers makes each transfer of
// the others wait. Shares follow the use of the last seconds:
// - An opportunistic container gets a part e / (u + e) of the link, where u is the part that the others use, and e is
//   4 %. A neighbour that waits for the link during u of its time is then slowed by about e at most, whatever u is.
// - Others are metered only while they use the link up together: each gets its weight's part, and more where another
//   needs less.
#ifndef SLUICE_AGENT_LINK_SHARES_H_
#define SLUICE_AGENT_LINK_SHARES_H_

#include <cstdint>
#include <map>
#include <vector>

#include "agent/ledger.h"

namespace sluice::agent {

class LinkShares {
 public:
  struct Member {
    GroupId group = 0;
    uint64_t weight = 1;
    bool opportunistic = false;
  };

  // Bytes a second of managed memory, both directions together. `exact`: the operator's word. Otherwise a larger sum
  // that was seen replaces it, up to four times.
  void SetCapacity(Bytes per_s, bool exact);
  // The group's processes moved bytes at this rate when they were last read.
  void Use(GroupId group, Bytes per_s) { seen_[group] = per_s; }
  void Remove(GroupId group);
  // Plans all shares, at most twice a second. True: one of them changed by an eighth or more.
  bool Plan(const std::vector<Member>& members, uint64_t now_ns);
  Bytes Rate(GroupId group) const;  // 0: not metered
  Bytes capacity() const { return capacity_; }

 private:
  void ShareAmong(const std::vector<Member>& members, double used);
  void ShareOpportunistic(const std::vector<Member>& members, double used);

  Bytes nominal_ = 0, capacity_ = 0;
  bool exact_ = false;
  uint64_t planned_ns_ = 0;
  std::map<GroupId, Bytes> seen_;   // since the last plan
  std::map<GroupId, double> used_;  // bytes a second; falls slowly
  std::map<GroupId, Bytes> rates_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_LINK_SHARES_H_
