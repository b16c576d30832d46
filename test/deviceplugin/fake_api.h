// An API server for the DRA driver's tests, in this process: ResourceSlices with list, watch and writes, ResourceClaims
// and a node. Thread-safe.
#ifndef SLUICE_TEST_DEVICEPLUGIN_FAKE_API_H_
#define SLUICE_TEST_DEVICEPLUGIN_FAKE_API_H_

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace sluice::deviceplugin {

// A claim that the scheduler allocated: `share` of each device, as consumed capacity. An empty memory: none is booked.
struct ClaimOrder {
  std::string name, uid;
  std::vector<std::string> devices;
  std::string memory, compute;
  nlohmann::json config = nlohmann::json::array();  // of status.allocation.devices
};
nlohmann::json MakeClaim(const ClaimOrder& order);

class FakeApi {
 public:
  FakeApi();
  ~FakeApi();
  FakeApi(const FakeApi&) = delete;
  FakeApi& operator=(const FakeApi&) = delete;

  std::string url() const;
  void WriteKubeconfig(const std::string& path) const;

  void PutClaim(const nlohmann::json& claim);
  void DeleteClaim(const std::string& name);
  // Requests fail with 503.
  void SetDown(bool down);
  // The feature gate DRAConsumableCapacity is off: the server drops its fields.
  void SetDropsSharing(bool drops);
  // The feature gate DRADeviceTaints is off.
  void SetDropsTaints(bool drops);

  std::vector<nlohmann::json> Slices() const;
  void PutSlice(const nlohmann::json& slice);
  void DeleteSlice(const std::string& name);
  int writes() const;  // of slices, by clients

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_TEST_DEVICEPLUGIN_FAKE_API_H_
