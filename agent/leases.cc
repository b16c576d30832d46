#include "agent/leases.h"

#include <algorithm>

namespace sluice::agent {
namespace {

// The words are another process's claims: sums saturate.
Bytes Sum(Bytes a, Bytes b) { return a + b < a ? UINT64_MAX : a + b; }
Bytes Minus(Bytes a, Bytes b) { return a > b ? a - b : 0; }

template <typename T>
T Load(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

}  // namespace

void Leases::SetLimit(Bytes limit) {
  const bool fell = limit < limit_;
  limit_ = limit;
  if (!fell) return;
  for (auto& [id, m] : members_) Account(m);
  for (auto& [id, m] : members_) {
    if (held_ <= limit_) return;
    TakeBack(m, held_ - limit_);
  }
}

void Leases::AddUnleased(MemberId member) { members_.try_emplace(member); }

void Leases::Add(MemberId member, sluice_lease* words, bool returning) {
  Member& m = members_[member];
  m.words = words;
  if (returning) {
    // Claims of the process. One that lies gets no more than the limit, which is its own container's.
    m.total = Load(words->granted_bytes);
    m.granted = std::min(Minus(m.total, Load(words->taken_bytes)), limit_);
  }
  Account(m);
}

void Leases::Remove(MemberId member) {
  const auto it = members_.find(member);
  if (it == members_.end()) return;
  held_ -= it->second.held;
  members_.erase(it);
}

void Leases::Observe(MemberId member, Bytes held) {
  const auto it = members_.find(member);
  if (it == members_.end()) return;
  it->second.observed = held;
  Account(it->second);
}

bool Leases::Grant(MemberId member, Bytes missing) {
  const auto it = members_.find(member);
  if (it == members_.end() || it->second.words == nullptr || missing > limit_) return false;
  Member& own = it->second;
  if (missing > 0) {
    for (auto& [id, m] : members_) Account(m);
  }
  // Its charges beyond its lease are part of the bytes that it lacks.
  const auto free = [&] { return Minus(limit_, Sum(held_ - own.held, own.granted)); };
  if (free() < missing) {
    Bytes unused = 0;
    for (const auto& [id, m] : members_) {
      if (id != member) unused = Sum(unused, Unused(m));
    }
    if (Sum(free(), unused) < missing) return false;
    // First a half of the unused bytes of each, so that its next allocation need not ask.
    for (const bool all : {false, true}) {
      for (auto& [id, m] : members_) {
        if (free() >= missing) break;
        if (id != member) TakeBack(m, all ? missing - free() : Unused(m) / 2);
      }
    }
    if (free() < missing) return false;  // holders have used them meanwhile; the bytes taken stay free
  }
  const Bytes given = missing + (free() - missing) / members_.size();
  own.granted += given;
  own.total += given;
  Account(own);
  return true;
}

bool Leases::IsLeased(MemberId member) const {
  const auto it = members_.find(member);
  return it != members_.end() && it->second.words != nullptr;
}

Bytes Leases::Granted(MemberId member) const {
  const auto it = members_.find(member);
  return it == members_.end() ? 0 : it->second.total;
}

Bytes Leases::Charged(MemberId member) const {
  const auto it = members_.find(member);
  return it == members_.end() ? 0 : Charged(it->second);
}

Bytes Leases::charged() const {
  Bytes sum = 0;
  for (const auto& [id, m] : members_) sum = Sum(sum, Charged(m));
  return sum;
}

Bytes Leases::Charged(const Member& m) { return m.words == nullptr ? m.observed : Load(m.words->charged_bytes); }

void Leases::Account(Member& m) {
  // Bounded, so that a lying page makes no sum wrap.
  const Bytes held = std::min(m.words == nullptr ? m.observed : std::max(m.granted, Charged(m)), Bytes{1} << 50);
  held_ = held_ - m.held + held;
  m.held = held;
}

Bytes Leases::Unused(const Member& m) {
  if (m.words == nullptr) return 0;
  const int64_t headroom = Load(m.words->headroom_bytes);
  return headroom > 0 ? std::min(static_cast<Bytes>(headroom), m.granted) : 0;
}

Bytes Leases::TakeBack(Member& m, Bytes bytes) {
  constexpr int kAttempts = 100;  // a process that changes the word all the time keeps its bytes
  for (int i = 0; i < kAttempts; ++i) {
    if (m.words == nullptr) return 0;
    int64_t headroom = Load(m.words->headroom_bytes);
    const Bytes take = std::min(bytes, headroom > 0 ? std::min(static_cast<Bytes>(headroom), m.granted) : 0);
    if (take == 0) return 0;
    if (!__atomic_compare_exchange_n(&m.words->headroom_bytes, &headroom, headroom - static_cast<int64_t>(take), false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
      continue;
    __atomic_store_n(&m.words->taken_bytes, Load(m.words->taken_bytes) + take, __ATOMIC_RELAXED);
    m.granted -= take;
    Account(m);
    return take;
  }
  return 0;
}

}  // namespace sluice::agent
