// Node: whether a process's page and the GPU driver tell the same story.
#include "agent/node_private.h"
#include "common/settings/settings.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kSilentNs = 2500 * kMs;     // a running hook writes its heartbeat at least every second
constexpr uint64_t kDisagreesNs = 2900 * kMs;  // a process between two samples may be ahead of either account
constexpr uint64_t kStillSilentNs = 900 * kMs;
constexpr uint64_t kNeverWroteNs = 10000 * kMs;
constexpr int kBusyPercent = 5;
// NVML must show that much unmanaged memory of a process. Below it, a context that ends may explain the difference.
constexpr Bytes kSurelyShown = 256ull << 20;

std::string Seconds(uint64_t ns) { return std::to_string(ns / (1000 * kMs)) + " s"; }

}  // namespace

// Empty: nothing disagrees. An idle process agrees: it shows nothing in either account. So does one whose kernel runs
// for long: only a process that never counted a launch is asked for one.
std::string Node::Disagreement(const Session& s, const GpuUses& uses, uint64_t now_ns) const {
  const uint64_t silent = now_ns - s.evidence.beat_ns;
  bool listed = false;
  for (const auto& [gpu, processes] : uses) listed |= processes.contains(s.pid);
  if (silent > kSilentNs && s.evidence.beat == 0) {
    return "its hook has written nothing since it connected, " + Seconds(silent) + " ago";
  }
  if (silent > kSilentNs && listed) {
    return "its hook has written nothing for " + Seconds(silent) + ": the process is stopped, or runs without it";
  }
  for (size_t i = 0; i < s.allocation->spec.gpus.size(); ++i) {
    const std::string& gpu = s.allocation->spec.gpus[i].uuid;
    const auto card = uses.find(gpu);
    if (card == uses.end()) continue;
    const sluice_gpu_counters c = Read(s, i);
    const auto use = card->second.find(s.pid);
    if (use == card->second.end()) {
      if (listed || c.unmanaged_bytes < kSurelyShown || s.pid == 0) continue;
      return "its hook counts " + settings::HumanBytes(c.unmanaged_bytes) + " of unmanaged memory on GPU " + gpu +
             ", where the driver shows no such process";
    }
    // The hook does not count a context, its code and the memory that libraries reserve.
    if (use->second.bytes > Sum(Sum(c.unmanaged_bytes, c.unmanaged_bytes / 8), kMaxContextBytes)) {
      return "the driver shows " + settings::HumanBytes(use->second.bytes) + " on GPU " + gpu + ", its hook counts " +
             settings::HumanBytes(c.unmanaged_bytes);
    }
    if (use->second.busy_percent >= kBusyPercent && c.launches == 0) {
      return "the driver shows it busy on GPU " + gpu + " for " + std::to_string(use->second.busy_percent) +
             " % of the time, and its hook counts no launch";
    }
  }
  return {};
}

std::map<std::string, std::vector<int64_t>> Node::CheckEvidence(const GpuUses& uses, uint64_t now_ns) {
  now_ns_ = now_ns;
  std::map<std::string, std::vector<int64_t>> never_wrote;
  for (auto& [session, owned] : sessions_) {
    Session& s = *owned;
    if (s.phase != Session::Phase::kServed || s.page == nullptr) continue;
    Session::Evidence& e = s.evidence;
    if (const uint64_t beat = Load(s.page->heartbeat_ns); beat != e.beat) {
      e.beat = beat;
      e.beat_ns = now_ns;
    }
    e.reason = Disagreement(s, uses, now_ns);
    const std::string& id = s.allocation->spec.id;
    if (e.reason.empty()) {
      e.disagrees_since_ns = 0;
      e.unproven = false;
    } else if (e.disagrees_since_ns == 0) {
      e.disagrees_since_ns = now_ns;
    } else if (!e.unproven && now_ns - e.disagrees_since_ns >= (e.beat == 0 ? kStillSilentNs : kDisagreesNs)) {
      e.unproven = true;
      AddFinding(id, "unproven", "pid " + std::to_string(s.pid) + ": " + e.reason);
    }
    bool listed = false;
    for (size_t i = 0; i < s.allocation->spec.gpus.size(); ++i) {
      const auto card = uses.find(s.allocation->spec.gpus[i].uuid);
      const bool here = card != uses.end() && card->second.contains(s.pid);
      listed |= here;
      const sluice_gpu_counters c = Read(s, i);
      const bool counted = c.launches > 0 || c.live_bytes > 0 || c.unmanaged_bytes > 0;
      e.seen = e.reason.empty() && (e.seen || (counted && (here || card == uses.end())));
    }
    if (listed && e.beat == 0 && now_ns - e.beat_ns > kNeverWroteNs) never_wrote[id].push_back(s.pid);
  }
  return never_wrote;
}

}  // namespace sluice::agent
