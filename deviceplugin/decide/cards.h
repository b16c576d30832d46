// The node's cards at one moment. Plain values that CardInventory makes and everything else reads.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_CARDS_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_CARDS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/placement/node_model.h"

namespace sluice::deviceplugin {

enum class CardState {
  kHealthy,
  kUnhealthy,   // listed to kubelet as unhealthy; may recover
  kNotOffered,  // not listed to kubelet: MIG, vGPU, exclusive mode, excluded, offered by another plugin
};

constexpr std::string_view ToString(CardState state) {
  switch (state) {
    case CardState::kHealthy:
      return "healthy";
    case CardState::kUnhealthy:
      return "unhealthy";
    case CardState::kNotOffered:
      return "not-offered";
  }
  return "?";
}

struct Card {
  std::string uuid;
  std::string model;
  uint64_t memory_bytes = 0;
  int minor = -1;  // N of /dev/nvidiaN
  int numa = -1;   // NUMA node, -1: unknown
  bool ecc = false;
  CardState state = CardState::kHealthy;
  std::string reason;           // one word for metrics, empty if healthy: "xid", "mig", "exclusive", ...
  std::string detail;           // for messages: the problem and its fix
  uint64_t reserved_bytes = 0;  // kept by the driver
  // For DRA's attributes; empty: not known.
  std::string architecture, pcie_root, nvlink_clique;
  int nvlink = -1;  // cards of one number reach each other by NVLink; -1: it has no such neighbour on this node
  bool operator==(const Card&) const = default;
};

struct Inventory {
  std::vector<Card> cards;     // ordered by uuid
  std::string driver_version;  // empty: no driver found
  std::string problem;         // why there are no cards, or why they could not be read; empty: none
  bool operator==(const Inventory&) const = default;

  scheduler::CardPlaces Places() const {
    scheduler::CardPlaces out;
    for (const Card& card : cards) out[card.uuid] = {card.numa, card.nvlink};
    return out;
  }
  const Card* Find(std::string_view uuid) const {
    for (const Card& card : cards) {
      if (card.uuid == uuid) return &card;
    }
    return nullptr;
  }
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_CARDS_H_
