// Leases of one container's memory-limit on one GPU: the bytes that each of its processes may allocate without asking.
// Pure: no clock, no input or output. Not thread-safe.
//
// The sum of all leases never exceeds the limit, except for bytes that exist already: memory that could not be refused,
// and leases that were given before the limit fell. A process changes the headroom in its page at the same time. Bytes
// that it does not use are taken back from there whenever another process needs them, without its help.
#ifndef SLUICE_AGENT_LEASES_H_
#define SLUICE_AGENT_LEASES_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "agent/ledger.h"
#include "sluice/wire.h"

namespace sluice::agent {

class Leases {
 public:
  // Bytes that may be charged by all processes together. Takes unused bytes back where it falls.
  void SetLimit(Bytes limit);
  // A process without a lease: a hook older than leases, which reports its bytes (Observe).
  void AddUnleased(MemberId member);
  // `words` are the process's, in its page: they stay valid until Remove(). `returning`: the process had a lease, by
  // this agent or an earlier one, and goes on with it.
  void Add(MemberId member, sluice_lease* words, bool returning);
  // The process ended: its bytes are free at once.
  void Remove(MemberId member);
  // Reads the member's charges from its page; a member without a lease holds `held`. To be called from time to time.
  void Observe(MemberId member, Bytes held);

  // Gives the member `missing` bytes, and a part of the free bytes beside them. Takes unused bytes of others back where
  // free ones do not suffice. False: the limit has no room for them, and nothing changes. `missing` 0: no bytes are
  // taken from others, and no other page is read.
  bool Grant(MemberId member, Bytes missing);

  bool IsLeased(MemberId member) const;
  Bytes Granted(MemberId member) const;  // cumulative, for the frames
  Bytes Charged(MemberId member) const;
  Bytes charged() const;  // by all members
  Bytes limit() const { return limit_; }
  size_t size() const { return members_.size(); }

 private:
  struct Member {
    sluice_lease* words = nullptr;  // null: no lease
    Bytes granted = 0;              // in force: given and not taken back
    Bytes total = 0;                // cumulative
    Bytes observed = 0;
    Bytes held = 0;  // as it is part of held_
  };
  static Bytes Charged(const Member& m);
  static Bytes Unused(const Member& m);
  void Account(Member& m);                 // counts its lease, or its charges if these are more
  Bytes TakeBack(Member& m, Bytes bytes);  // at most so many; those that it got

  Bytes limit_ = 0;
  Bytes held_ = 0;  // the most that all may have charged, together
  std::map<MemberId, Member> members_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_LEASES_H_
