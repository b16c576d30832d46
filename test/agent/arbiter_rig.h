// A GPU in virtual time, whose tenants run kernels of a given length while they hold the token.
#ifndef SLUICE_TEST_AGENT_ARBITER_RIG_H_
#define SLUICE_TEST_AGENT_ARBITER_RIG_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "agent/arbiter.h"

namespace sluice::agent {

inline constexpr Nanos kUs = 1000, kMs = 1000 * kUs, kSec = 1000 * kMs;

// Nothing preempts its kernels.
struct Tenant {
  uint32_t request, limit;
  Nanos kernel;                       // duration of each
  Nanos burst = 20 * kMs;             // work that it queues at once
  Nanos begin = 0, end = UINT64_MAX;  // has work between these
  enum class Fault { kNone, kEnds, kHangs } fault = Fault::kNone;
  Nanos fault_at = UINT64_MAX;
  Nanos used = 0;
  bool requested = false;
};

struct Span {
  int tenant;
  Nanos begin, end;
};

class VirtualGpu {
 public:
  VirtualGpu(Arbiter::Policy policy, std::vector<Tenant> tenants) : arbiter(policy), tenants(std::move(tenants)) {
    for (size_t i = 0; i < this->tenants.size(); ++i)
      arbiter.SetClient(i + 1, this->tenants[i].request, this->tenants[i].limit);
  }

  void Run(Nanos until) {
    while (now < until) {
      for (size_t i = 0; i < tenants.size(); ++i) {
        Tenant& t = tenants[i];
        const bool alive = t.fault != Tenant::Fault::kEnds || now < t.fault_at;
        if (alive && !t.requested && now >= t.begin && now < t.end) {
          t.requested = true;
          arbiter.Request(i + 1, i + 1, t.burst, now);
        }
      }
      bool granted = false;
      for (const Arbiter::Action& a : arbiter.Advance(now)) {
        if (a.kind == Arbiter::Action::Kind::kRevoke) continue;
        granted = true;
        Hold(a);
      }
      if (!granted) now = std::min(until, std::max(now + kMs, arbiter.NextWake(now).value_or(now + kMs)));
    }
  }

  void Hold(const Arbiter::Action& a) {
    Tenant& t = tenants[a.holder - 1];
    t.requested = false;
    if (t.fault != Tenant::Fault::kNone && now >= t.fault_at) {
      if (t.fault == Tenant::Fault::kEnds) arbiter.RemoveHolder(a.holder, now);
      if (t.fault == Tenant::Fault::kHangs) t.requested = true;  // it never calls again
      now += kMs;
      return;
    }
    const Nanos start = now;
    Nanos used = 0;
    while (used < std::min(a.quantum, t.burst)) used += t.kernel;
    now += used;
    t.used += used;
    spans.push_back({static_cast<int>(a.holder - 1), start, now});
    arbiter.Release(a.holder, a.id, used, t.burst, now);
  }

  // Smallest and largest share of each tenant over the windows that begin at multiples of 100 ms.
  std::vector<std::pair<double, double>> Extremes(Nanos from, Nanos to, Nanos window) const {
    std::vector<std::pair<double, double>> out(tenants.size(), {1, 0});
    for (Nanos begin = from; begin + window <= to; begin += 100 * kMs) {
      std::vector<Nanos> sum(tenants.size());
      for (const Span& s : spans) {
        const Nanos b = std::max(s.begin, begin), e = std::min(s.end, begin + window);
        if (b < e) sum[static_cast<size_t>(s.tenant)] += e - b;
      }
      for (size_t i = 0; i < tenants.size(); ++i) {
        const double share = static_cast<double>(sum[i]) / static_cast<double>(window);
        out[i] = {std::min(out[i].first, share), std::max(out[i].second, share)};
      }
    }
    return out;
  }

  Arbiter arbiter;
  std::vector<Tenant> tenants;
  std::vector<Span> spans;
  Nanos now = kSec;
};

}  // namespace sluice::agent

#endif  // SLUICE_TEST_AGENT_ARBITER_RIG_H_
