// Builders of cards and ids for tests.
#ifndef SLUICE_TEST_DEVICEPLUGIN_CARDS_FOR_TESTS_H_
#define SLUICE_TEST_DEVICEPLUGIN_CARDS_FOR_TESTS_H_

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "deviceplugin/decide/cards.h"
#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/nvml/nvml_api.h"

namespace sluice::deviceplugin {

inline std::vector<std::string> Ids(const std::string& uuid, int from, int to) {
  std::vector<std::string> out;
  for (int unit = from; unit < to; ++unit) out.push_back(FormatDeviceId(uuid, unit));
  return out;
}

inline std::vector<std::string> Join(const std::vector<std::vector<std::string>>& lists) {
  std::vector<std::string> out;
  for (const auto& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

inline Card HealthyCard(const std::string& uuid, int minor = 0) {
  Card card;
  card.uuid = uuid;
  card.model = "NVIDIA Test";
  card.memory_bytes = uint64_t{80} << 30;
  card.minor = minor;
  return card;
}

inline CardReading Reading(const std::string& uuid, int minor = 0) {
  CardReading reading;
  reading.uuid = uuid;
  reading.model = "NVIDIA Test";
  reading.memory_bytes = uint64_t{80} << 30;
  reading.minor = minor;
  return reading;
}

// A temporary folder, removed with the object.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-dp-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_TEST_DEVICEPLUGIN_CARDS_FOR_TESTS_H_
