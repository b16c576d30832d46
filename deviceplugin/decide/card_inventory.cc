#include "deviceplugin/decide/card_inventory.h"

#include <algorithm>

#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {

std::set<uint64_t> DefaultIgnoredXids() { return {13, 31, 43, 45, 63, 64, 68, 92, 94, 109}; }

void CardInventory::ApplyReadings(const Readings& readings, Clock::time_point now) {
  driver_version_ = readings.driver_version;
  const std::string silent_reason = readings.errors.empty()
                                        ? "the driver no longer lists the card (fallen off the bus, or unbound)"
                                        : StrJoin(readings.errors, "; ");
  for (auto& [uuid, entry] : entries_) {
    entry.answers = false;
    entry.silent_reason = silent_reason;
  }
  for (const CardReading& reading : readings.cards) {
    if (!IsCardUuid(reading.uuid)) continue;
    Entry& entry = entries_[reading.uuid];
    entry.last = reading;
    entry.answers = true;
    if (!entry.fault.empty() && !reading.recovery_needed && now - entry.quiet_since >= rules_.quiet) {
      entry.fault.clear();
      entry.fault_reason.clear();
    }
  }
  // Quiet time counts only while the card answers.
  for (auto& [uuid, entry] : entries_) {
    if (!entry.answers || entry.last.recovery_needed) entry.quiet_since = now;
  }
  problem_.clear();
  if (entries_.empty()) {
    problem_ = readings.errors.empty() ? "the driver lists no GPU" : StrJoin(readings.errors, "; ");
  }
}

void CardInventory::ApplyReadFailure(const absl::Status& why, Clock::time_point now) {
  problem_ = std::string(why.message());
  for (auto& [uuid, entry] : entries_) {
    entry.answers = false;
    entry.silent_reason = problem_;
    entry.quiet_since = now;
  }
}

void CardInventory::ApplyEvent(const NvmlEvent& event, Clock::time_point now) {
  const bool xid = event.type == NvmlEvent::Type::kXid;
  if (xid && rules_.ignored_xids.contains(event.xid)) return;
  for (auto& [uuid, entry] : entries_) {
    // An event that names no card may concern any.
    if (!event.uuid.empty() && event.uuid != uuid) continue;
    entry.fault = xid ? StrCat("XID ", event.xid, " reported by the driver") : "uncorrectable (double-bit) ECC error";
    entry.fault_reason = xid ? "xid" : "ecc";
    entry.quiet_since = now;
  }
}

void CardInventory::SetOfferedByOthers(std::map<std::string, std::string> offered) {
  offered_by_others_ = std::move(offered);
}

Card CardInventory::Classify(const Entry& entry) const {
  const CardReading& r = entry.last;
  Card card{r.uuid, r.model, r.memory_bytes,   r.minor,        r.numa,      r.ecc,           CardState::kHealthy,
            "",     "",      r.reserved_bytes, r.architecture, r.pcie_root, r.nvlink_clique, -1};
  auto mark = [&card](CardState state, std::string reason, std::string detail) {
    card.state = state;
    card.reason = std::move(reason);
    card.detail = std::move(detail);
  };
  const auto other = offered_by_others_.find(r.uuid);
  if (rules_.exclude.contains(r.uuid)) {
    mark(CardState::kNotOffered, "excluded", "excluded by the setting 'exclude'");
  } else if (r.mig) {
    mark(CardState::kNotOffered, "mig",
         "MIG is on, and MIG slices are not shared further; fix: nvidia-smi -i " + r.uuid + " -mig 0");
  } else if (r.vgpu) {
    mark(CardState::kNotOffered, "vgpu", "a vGPU, or a card that is split into vGPUs, is not shared further");
  } else if (r.exclusive) {
    mark(CardState::kNotOffered, "exclusive",
         StrCat("compute mode ", r.compute_mode, " lets one process use the card; fix: nvidia-smi -i ", r.uuid,
                " -c DEFAULT"));
  } else if (r.memory_bytes == 0) {
    mark(CardState::kNotOffered, "no-memory-size",
         StrCat(
             "the driver tells no memory size of this card (", r.model,
             "), as of GPUs that use the host's memory (GB10, Jetson), so that a share of it cannot be reckoned; such "
             "GPUs are not shared"));
  } else if (!rules_.allow_coexist && other != offered_by_others_.end()) {
    mark(CardState::kNotOffered, "coexist",
         StrCat("another device plugin offers this card as ", other->second,
                "; fix: remove the card from that plugin, or set 'coexist: allow'"));
  } else if (!entry.answers) {
    mark(CardState::kUnhealthy, "silent", entry.silent_reason);
  } else if (!entry.fault.empty()) {
    mark(CardState::kUnhealthy, entry.fault_reason,
         StrCat(entry.fault, r.recovery_needed ? "; the driver asks for a reset of the card"
                                               : "; waiting for the card to stay quiet"));
  } else if (r.recovery_needed) {
    mark(CardState::kUnhealthy, "recovery",
         "the driver asks for a reset of the card, or of the node (nvidia-smi -q shows which)");
  }
  return card;
}

// Each group holds cards of which every two are neighbours. On a hybrid mesh, where that is not so for all, the groups
// are the first ones found in the order of uuids.
void CardInventory::NumberNvlinkGroups(std::vector<Card>* cards) const {
  const auto linked = [this](const Card& a, const Card& b) {
    return entries_.at(a.uuid).last.nvlink_peers.contains(b.uuid) &&
           entries_.at(b.uuid).last.nvlink_peers.contains(a.uuid);
  };
  int groups = 0;
  for (size_t i = 0; i < cards->size(); ++i) {
    if ((*cards)[i].nvlink >= 0) continue;
    std::vector<Card*> group{&(*cards)[i]};
    for (size_t j = i + 1; j < cards->size(); ++j) {
      Card& next = (*cards)[j];
      const bool joins = next.nvlink < 0 && std::ranges::all_of(group, [&](Card* c) { return linked(*c, next); });
      if (joins) group.push_back(&next);
    }
    if (group.size() == 1) continue;
    for (Card* card : group) card->nvlink = groups;
    ++groups;
  }
}

Inventory CardInventory::Current() const {
  Inventory out;
  out.driver_version = driver_version_;
  out.problem = problem_;
  for (const auto& [uuid, entry] : entries_) out.cards.push_back(Classify(entry));
  NumberNvlinkGroups(&out.cards);
  return out;
}

}  // namespace sluice::deviceplugin
