// Concatenates text. Debian's abseil is built for C++14 and has a string_view of its own, to which std::string_view
// does not convert. So absl::StrCat and its kin cannot take the standard's.
#ifndef SLUICE_DEVICEPLUGIN_TEXT_H_
#define SLUICE_DEVICEPLUGIN_TEXT_H_

#include <concepts>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"

namespace sluice::deviceplugin {

inline void AppendTo(std::string* out, std::string_view part) { out->append(part); }
inline void AppendTo(std::string* out, absl::string_view part) { out->append(part.data(), part.size()); }
inline void AppendTo(std::string* out, const std::string& part) { out->append(part); }
inline void AppendTo(std::string* out, const char* part) { out->append(part); }
template <std::integral T>
void AppendTo(std::string* out, T part) {
  out->append(std::to_string(part));
}

template <class... Parts>
std::string StrCat(const Parts&... parts) {
  std::string out;
  (AppendTo(&out, parts), ...);
  return out;
}

template <class Range>
std::string StrJoin(const Range& parts, std::string_view separator) {
  std::string out;
  bool first = true;
  for (const auto& part : parts) {
    if (!first) out.append(separator);
    first = false;
    AppendTo(&out, part);
  }
  return out;
}

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_TEXT_H_
