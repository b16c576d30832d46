// CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, as driver 580 reads them (asked on two H100s, value by value).
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <string>

#include "../core/identity.h"
#include "call.h"

namespace simgpu {

namespace {

// A card's number: blanks and a sign may stand before it, anything behind it. -1: no number, or no such card.
int CardByIndex(const char* entry, int gpus) {
  char* end = nullptr;
  const auto index = static_cast<int>(std::strtoll(entry, &end, 10));
  return end != entry && index >= 0 && index < gpus ? index : -1;
}

// "GPU-" or "MIG-" and the first digits of one card's UUID, hyphens anywhere. Anything may stand behind 32 digits. -1:
// no such card, or several.
int CardByUuid(const char* entry, int gpus) {
  if (std::strncmp(entry, "GPU-", 4) != 0 && std::strncmp(entry, "MIG-", 4) != 0) return -1;
  std::string digits;
  for (const char* at = entry + 4; digits.size() < 32 && *at != '\0' && *at != ','; ++at) {
    if (*at == '-') continue;
    if (!std::isxdigit(static_cast<unsigned char>(*at))) return -1;
    digits.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(*at))));
  }
  int found = -1;
  for (int card = 0; card < gpus && !digits.empty(); ++card) {
    std::string own = Uuid(card).substr(4);
    std::erase(own, '-');
    if (own.compare(0, digits.size(), digits) != 0) continue;
    if (found >= 0) return -1;
    found = card;
  }
  return found;
}

}  // namespace

CUresult ReadVisibleCards(std::vector<int>* out) {
  const auto gpus = static_cast<int>(TheProfile().gpus);
  // The simulated cards are equal: both orders are that of their bus numbers.
  const char* const order = std::getenv("CUDA_DEVICE_ORDER");
  NEED(order == nullptr || std::strcmp(order, "FASTEST_FIRST") == 0 || std::strcmp(order, "PCI_BUS_ID") == 0,
       CUDA_ERROR_INVALID_DEVICE);
  out->clear();
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int card = 0; card < gpus; ++card) out->push_back(card);
    return CUDA_SUCCESS;
  }
  // The first entry decides how all are read, and the first wrong one ends the list.
  const bool by_uuid = std::strncmp(text, "GPU-", 4) == 0 || std::strncmp(text, "MIG-", 4) == 0;
  for (const char* entry = text; entry != nullptr;) {
    const int card = by_uuid ? CardByUuid(entry, gpus) : CardByIndex(entry, gpus);
    if (card < 0) break;
    NEED(std::find(out->begin(), out->end(), card) == out->end(), CUDA_ERROR_INVALID_DEVICE);
    out->push_back(card);
    entry = std::strchr(entry, ',');
    if (entry != nullptr) ++entry;
  }
  return out->empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

bool CardOf(CUdevice device, int* card) {
  const auto& visible = TheDriver().visible;
  if (device < 0 || static_cast<size_t>(device) >= visible.size()) return false;
  *card = visible[static_cast<size_t>(device)];
  return true;
}

CUdevice DeviceOf(int card) {
  const auto& visible = TheDriver().visible;
  const auto at = std::find(visible.begin(), visible.end(), card);
  return at == visible.end() ? -1 : static_cast<CUdevice>(at - visible.begin());
}

}  // namespace simgpu
