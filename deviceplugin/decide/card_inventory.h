// Merges NVML's readings and events, the cards that other plugins offer, and the configuration into one list of cards.
// No I/O and no clock of its own; not thread-safe.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_CARD_INVENTORY_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_CARD_INVENTORY_H_

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deviceplugin/decide/cards.h"
#include "deviceplugin/nvml/nvml_api.h"

namespace sluice::deviceplugin {

struct CardRules {
  std::set<std::string> exclude;  // uuids
  bool allow_coexist = false;     // also offer cards that another plugin offers
  // XIDs that report an application's own fault, or are informational. Every other XID makes the card unhealthy.
  std::set<uint64_t> ignored_xids;
  std::chrono::seconds quiet{30};  // after a fatal event, a card is offered again once it has answered for this long
};

// By NVIDIA's XID catalogue: 13, 31, 43, 45, 68, 109 come from the program that ran; 63, 64 and 94 are contained; 92 is
// a rate of corrected errors. 137 and codes like 140 for NVLink and ECC stay fatal.
std::set<uint64_t> DefaultIgnoredXids();

class CardInventory {
 public:
  using Clock = std::chrono::steady_clock;

  explicit CardInventory(CardRules rules) : rules_(std::move(rules)) {}

  void SetRules(CardRules rules) { rules_ = std::move(rules); }

  struct Readings {
    std::string driver_version;
    std::vector<CardReading> cards;   // cards that answered
    std::vector<std::string> errors;  // one per card that did not answer
  };
  void ApplyReadings(const Readings& readings, Clock::time_point now);
  // No reading was possible: no driver, or NVML fails or hangs. All known cards become unhealthy.
  void ApplyReadFailure(const absl::Status& why, Clock::time_point now);
  void ApplyEvent(const NvmlEvent& event, Clock::time_point now);
  // Cards that pod-resources lists under another vendor's resource, with that resource's name.
  void SetOfferedByOthers(std::map<std::string, std::string> offered);

  Inventory Current() const;

 private:
  struct Entry {
    CardReading last;
    bool answers = false;
    std::string silent_reason;  // why the card does not answer
    std::string fault;          // detail of the last fatal event; empty: none
    std::string fault_reason;
    Clock::time_point quiet_since{};
  };
  Card Classify(const Entry& entry) const;
  void NumberNvlinkGroups(std::vector<Card>* cards) const;

  CardRules rules_;
  std::map<std::string, Entry> entries_;  // by uuid; a card that was seen once stays
  std::map<std::string, std::string> offered_by_others_;
  std::string driver_version_;
  std::string problem_ = "the driver has not been read yet";
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_CARD_INVENTORY_H_
