// Who may hold how many bytes of one pool (a card's memory, or a node's host memory), and who still holds more than
// that. Pure: no clock, no input or output. Not thread-safe.
//
// The one invariant: the sum of what everyone *may still hold* (exposure: the budget in force, or the larger one that
// was called back and not yet given up) never exceeds the capacity. A budget falls at once; what it frees is handed on
// only when its holder has said that it followed, and what it still holds. A silent holder's surplus stays in the
// ledger as debt, and the others go on with less.
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
  kOff,   // everyone has exactly what is guaranteed
  kIdle,  // what containers are guaranteed and do not use is lent
  kAll,   // so is what nobody is guaranteed
  kEven   // no guarantees: all of it by weight, whatever is wanted (host memory, which cannot be called back once used)
};

class Ledger {
 public:
  struct Policy {
    Lending lending = Lending::kIdle;
    uint32_t floor_percent = 10;  // of a guarantee: never lent, so that a container that wakes has something at once
    Bytes step = 64ull << 20;     // a smaller rise is not worth a frame, unless it reaches the target
  };
  struct Report {
    uint64_t generation = 0;  // of the budget that the holder follows
    Bytes held = 0;           // resident and plain bytes
    Bytes wanted = 0;         // what it could use
  };
  struct Change {
    MemberId member;
    Bytes budget;
    uint64_t generation;
  };
  struct MemberView {
    GroupId group = 0;
    Bytes budget = 0;    // in force, or called back to
    Bytes exposure = 0;  // may still be held; at least the budget
    Bytes held = 0;
    Bytes wanted = 0;
    uint64_t generation = 0;
    bool followed = true;  // the holder has said that it follows this generation
    Bytes debt() const { return exposure - budget; }
  };

  Ledger(Bytes capacity, Policy policy) : capacity_(capacity), policy_(policy) {}
  Ledger(Ledger&&) = default;
  Ledger& operator=(Ledger&&) = default;

  void SetPolicy(Policy policy) { policy_ = policy; }
  void SetCapacity(Bytes capacity) { capacity_ = capacity; }
  // `weight`: the share in what is lent. Again for a known group: new values.
  void SetGroup(GroupId group, Bytes guaranteed, uint64_t weight);
  void RemoveGroup(GroupId group);  // its members go with it
  // Nobody has been in this group for a while. While more is promised than there is, it counts as promised nothing,
  // until a member comes. Nothing is done to a group with members.
  void Vacate(GroupId group);
  void AddMember(MemberId member, GroupId group);
  void RemoveMember(MemberId member);
  // A process that attached before holds what it holds: `held` (its last budget) is entered as exposure before anything
  // is handed out.
  void Restore(MemberId member, Bytes held);
  void Tell(MemberId member, const Report& report);

  // Works out what everyone should have, and returns the budgets to send now. Call again after reports: what could not
  // be given yet follows.
  std::vector<Change> Plan();

  const MemberView* Find(MemberId member) const;
  Bytes capacity() const { return capacity_; }
  Bytes guaranteed() const;  // sum over groups
  Bytes budgets() const;     // sum over members
  Bytes exposure() const;    // sum over members
  Bytes held() const;        // sum over members
  Bytes debt() const { return exposure() - budgets(); }
  Bytes lent() const;                        // sum of what groups have above their guarantee
  bool settled() const { return settled_; }  // the last plan had nothing left to give or to wait for

 private:
  struct Member : MemberView {
    MemberId id = 0;
    Bytes target = 0, before = 0;  // of the plan that is being made
  };
  struct Group {
    Bytes guaranteed = 0;
    uint64_t weight = 1;
    bool vacant = false;  // has no members, and had none for a while
    Bytes target = 0;     // of the plan that is being made
    std::vector<Member*> members;
  };
  void SetGroupTargets();
  void SetMemberTargets(const Group& group) const;

  Bytes capacity_;
  Policy policy_;
  uint64_t next_generation_ = 1;
  bool settled_ = true;
  std::map<GroupId, Group> groups_;
  // Groups point into it. A plan walks over groups and never looks a member up: it is made anew at every arrival, and a
  // thousand processes may arrive at once.
  std::unordered_map<MemberId, Member> members_;
};

// Shares `total` in proportion to weights, nobody getting more than its cap; what a capped one leaves goes to the
// others. Sums to at most `total`. Exposed for tests.
struct Claim {
  Bytes cap;
  uint64_t weight;
};
std::vector<Bytes> ShareOut(Bytes total, const std::vector<Claim>& claims);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_LEDGER_H_
