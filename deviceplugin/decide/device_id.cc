#include "deviceplugin/decide/device_id.h"

#include <algorithm>

#include "absl/status/status.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {
namespace {

constexpr std::string_view kSeparator = SLUICE_DEVICE_ID_SEPARATOR;
constexpr size_t kKubeletIdLimit = 63;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Makes text safe for a message: it may have any length and hold any byte.
std::string Printable(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 80)) out += c >= ' ' && c < 0x7f ? c : '?';
  return text.size() > 80 ? out + "..." : out;
}

}  // namespace

bool IsCardUuid(std::string_view uuid) {
  return !uuid.empty() && uuid.size() + kSeparator.size() + 2 <= kKubeletIdLimit &&
         std::all_of(uuid.begin(), uuid.end(),
                     [](char c) { return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-'; });
}

std::string FormatDeviceId(std::string_view uuid, int unit) { return StrCat(uuid, kSeparator, unit); }

absl::StatusOr<DeviceId> ParseDeviceId(std::string_view text) {
  const size_t at = text.rfind(kSeparator);
  if (at != std::string_view::npos && IsCardUuid(text.substr(0, at))) {
    const std::string_view digits = text.substr(at + kSeparator.size());
    const bool canonical = (digits.size() == 1 && IsDigit(digits[0])) ||
                           (digits.size() == 2 && digits[0] >= '1' && digits[0] <= '9' && IsDigit(digits[1]));
    if (canonical) {
      int unit = 0;
      for (char c : digits) unit = unit * 10 + (c - '0');
      return DeviceId{std::string(text.substr(0, at)), unit};
    }
  }
  return absl::InvalidArgumentError(StrCat("'", Printable(text), "' is not a device of ", SLUICE_RESOURCE,
                                           "; accepted: <GPU uuid>::<unit 0..", SLUICE_UNITS_PER_GPU - 1, ">"));
}

}  // namespace sluice::deviceplugin
