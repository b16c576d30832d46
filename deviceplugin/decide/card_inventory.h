// Keeps the inventory: merges what NVML says, its events, what other plugins offer and the configuration into one list
// of cards. Pure but for the clock that it is given; not thread-safe.
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
  bool allow_coexist = false;     // offer what another plugin offers too
  // XIDs that are an application's own fault, or news only. Every other XID makes the card unhealthy.
  std::set<uint64_t> ignored_xids;
  std::chrono::seconds quiet{30};  // a card with a fatal event is offered again after answering for this long
};

// Application errors by NVIDIA's XID catalogue: 13, 31, 43, 45, 68, 109 come from the program that ran; 63, 64 and 94
// are contained, 92 is a rate of corrected errors, 137 and 140-like NVLink/ECC news have codes of their own and stay
// fatal.
std::set<uint64_t> DefaultIgnoredXids();

class CardBook {
 public:
  using Clock = std::chrono::steady_clock;

  explicit CardBook(CardRules rules) : rules_(std::move(rules)) {}

  void SetRules(CardRules rules) { rules_ = std::move(rules); }

  struct Readings {
    std::string driver_version;
    std::vector<CardReading> cards;   // those that answered
    std::vector<std::string> errors;  // of those that did not
  };
  void Read(const Readings& readings, Clock::time_point now);
  // No reading at all: no driver, or NVML fails or hangs. Cards that were seen turn unhealthy.
  void ReadFailed(const absl::Status& why, Clock::time_point now);
  void Event(const NvmlEvent& event, Clock::time_point now);
  // Cards that pod-resources lists under another vendor's resource, with that resource's name.
  void Foreign(std::map<std::string, std::string> offered);

  Inventory View() const;

 private:
  struct Entry {
    CardReading last;
    bool answers = false;
    std::string silence;  // why it does not answer
    std::string fault;    // detail of the last fatal event; empty: none
    std::string fault_reason;
    Clock::time_point quiet_since{};
  };
  Card Judge(const Entry& entry) const;

  CardRules rules_;
  std::map<std::string, Entry> entries_;  // by uuid; a card that was seen stays
  std::map<std::string, std::string> foreign_;
  std::string driver_version_;
  std::string problem_ = "the driver has not been asked yet";
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_CARD_INVENTORY_H_
