// Budgets of one pool of bytes (a GPU's memory, or a node's host memory), and the bytes held beyond them. Pure: no
// clock, no input or output. Not thread-safe.
//
// One invariant: the sum of all exposures never exceeds the capacity. A member's exposure is the most that it may still
// hold: the budget in force, or the larger one that was reclaimed and not yet given up. A budget falls at once, but its
// bytes are handed on only when the holder reports that it follows, less those that it still holds. The surplus of a
// holder that does not answer stays in the ledger as overdue, and the others go on with less.
#ifndef SLUICE_AGENT_LEDGER_H_
#define SLUICE_AGENT_LEDGER_H_

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace sluice::agent {

using Bytes = uint64_t;
using MemberId = uint64_t;  // one process on this pool
using GroupId = uint64_t;   // one allocation (container) on this pool

enum class Lending {
  kOff,   // each group has exactly its guarantee
  kIdle,  // guarantees that are not used are lent
  kAll,   // also memory outside all guarantees
  kEven   // no guarantees: all of the pool by weight, whatever is wanted (host memory, which cannot be reclaimed)
};

class Ledger {
 public:
  struct Policy {
    Lending lending = Lending::kIdle;
    uint32_t floor_percent = 10;  // of a guarantee: never lent, so that a container that wakes has memory at once
    Bytes step = 64ull << 20;     // a smaller rise is not worth a frame, unless it reaches the target
    // An opportunistic group gets at least so much, or nothing: with less it would only move memory.
    Bytes opportunistic_min = 512ull << 20;
  };
  struct Report {
    uint64_t generation = 0;  // of the budget that the holder follows
    Bytes held = 0;           // resident and unmanaged bytes
    Bytes wanted = 0;         // bytes that it could use
  };
  struct Change {
    MemberId member;
    Bytes budget;
    uint64_t generation;
  };
  struct MemberView {
    GroupId group = 0;
    Bytes budget = 0;    // in force, or reclaimed down to
    Bytes exposure = 0;  // may still be held; at least the budget
    Bytes held = 0;
    Bytes wanted = 0;
    uint64_t generation = 0;
    bool followed = true;  // the holder reported that it follows this generation
    Bytes overdue() const { return exposure - budget; }
  };

  Ledger(Bytes capacity, Policy policy) : capacity_(capacity), policy_(policy) {}
  Ledger(Ledger&&) = default;
  Ledger& operator=(Ledger&&) = default;

  void SetPolicy(Policy policy) { policy_ = policy; }
  void SetCapacity(Bytes capacity) { capacity_ = capacity; }
  // `weight`: the share in lent memory. For a known group: new values.
  void SetGroup(GroupId group, Bytes guaranteed, uint64_t weight);
  // An opportunistic group has no guarantee. It gets memory that neither the others' guarantees nor their borrowing
  // need, outside all guarantees too, whatever the mode of lending; with kOff only memory outside all guarantees.
  void SetOpportunistic(GroupId group, uint64_t weight);
  void RemoveGroup(GroupId group);  // with its members
  // A parked group has the budget that its members want, without a floor, and lends all else. With kOff the rest of its
  // guarantee stays unused.
  void SetParked(GroupId group, bool parked);
  // The group has had no member for a while. While guarantees exceed the capacity, a vacant group counts as guaranteed
  // nothing, until a member joins. A group with members stays as it is.
  void Vacate(GroupId group);
  void AddMember(MemberId member, GroupId group);
  void RemoveMember(MemberId member);
  // A process that attached before holds up to its last budget, `held`: that is entered as exposure before any budget
  // is planned. A larger claim than its group's guarantee gives way to claims within the others'.
  void Restore(MemberId member, Bytes held);
  void Update(MemberId member, const Report& report);

  // Plans all budgets, and returns the changed ones. Call it again after reports: budgets that had to wait follow.
  std::vector<Change> Plan();

  const MemberView* Find(MemberId member) const;
  Bytes capacity() const { return capacity_; }
  Bytes guaranteed() const;  // sum over groups
  Bytes budgets() const;     // sum over members
  Bytes exposure() const;    // sum over members
  Bytes held() const;        // sum over members
  Bytes overdue() const { return exposure() - budgets(); }
  Bytes lent() const;                 // sum over groups of budgets above the guarantee
  Bytes budget(GroupId group) const;  // sum over its members
  // The least that an opportunistic group gets: the policy's, or an eighth of a small pool.
  Bytes opportunistic_min() const {
    return policy_.opportunistic_min < capacity_ / 8 ? policy_.opportunistic_min : capacity_ / 8;
  }
  bool settled() const { return settled_; }  // the last plan left nothing to give or to wait for

 private:
  struct Member : MemberView {
    MemberId id = 0;
    Bytes target = 0, before = 0;  // of the plan in the making
  };
  struct Group {
    Bytes guaranteed = 0;
    uint64_t weight = 1;
    bool vacant = false;
    bool opportunistic = false, parked = false;
    Bytes target = 0;  // of the plan in the making
    std::vector<Member*> members;
  };
  void SetGroupTargets();
  void SetOpportunisticTargets(Bytes left);
  void SetMemberTargets(const Group& group) const;
  // Takes exposure from groups that have more than their guarantee.
  void TakeBorrowed(Bytes bytes, const Group& except);

  Bytes capacity_;
  Policy policy_;
  uint64_t next_generation_ = 1;
  bool settled_ = true;
  std::map<GroupId, Group> groups_;
  // Groups point into it. A plan walks over groups and looks no member up: it is made at every arrival, and a thousand
  // processes may arrive at once.
  std::unordered_map<MemberId, Member> members_;
};

// Shares `total` in proportion to weights. No claim gets more than its cap; the rest of a capped one goes to the
// others. Sums to at most `total`. Exposed for tests.
struct Claim {
  Bytes cap;
  uint64_t weight;
};
std::vector<Bytes> ShareOut(Bytes total, const std::vector<Claim>& claims);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_LEDGER_H_
