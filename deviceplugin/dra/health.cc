#include "deviceplugin/dra/health.h"

#include <utility>

#include "deviceplugin/dra/claim.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin::dra {
namespace {

constexpr size_t kMaxMessage = 1024;

// UTF-8 may not be cut within a character: protobuf would refuse the message.
std::string Cut(std::string text) {
  if (text.size() <= kMaxMessage) return text;
  size_t end = kMaxMessage;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace

std::vector<DeviceHealth> HealthOf(const Inventory& inventory) {
  std::vector<DeviceHealth> out;
  for (const Card& card : inventory.cards) {
    std::string name = DeviceName(card.uuid);
    if (name.empty()) continue;
    DeviceHealth health{std::move(name), DeviceHealth::State::kHealthy, ""};
    if (card.state != CardState::kHealthy) {
      health.state =
          card.state == CardState::kUnhealthy ? DeviceHealth::State::kUnhealthy : DeviceHealth::State::kUnknown;
      health.message = Cut(StrCat(card.reason, ": ", card.detail));
    }
    out.push_back(std::move(health));
  }
  return out;
}

}  // namespace sluice::deviceplugin::dra
