// Kubelet's side of the device plugin protocol, in this process: registration server, device manager (with kubelet's
// choices in kubelet's order), checkpoint file, pod-resources server, pod folders.
#ifndef SLUICE_TEST_DEVICEPLUGIN_FAKE_KUBELET_H_
#define SLUICE_TEST_DEVICEPLUGIN_FAKE_KUBELET_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "deviceplugin.grpc.pb.h"
#include "podresources.grpc.pb.h"

namespace sluice::deviceplugin {

struct SeenDevice {
  std::string health;
  int numa = -1;
};

struct Admitted {
  grpc::Status status;
  std::vector<std::string> ids;
  v1beta1::ContainerAllocateResponse response;
  std::string RunDir() const;
};

class FakeKubelet {
 public:
  // `root` is kubelet's folder, with root/device-plugins, root/pods, root/pod-resources.
  explicit FakeKubelet(std::string root);
  ~FakeKubelet();

  std::string plugin_dir() const;
  std::string checkpoint() const;

  // Like kubelet's start: removes the sockets in the folder, reads its checkpoint, serves.
  void Start();
  void Stop();   // its socket is removed
  void Crash();  // its socket stays

  int registrations() const;
  std::map<std::string, SeenDevice> devices() const;
  size_t list_bytes() const;  // of the last list that the plugin sent
  // Waits until the predicate holds; the bound is generous, so that no test depends on time.
  bool Await(const std::function<bool()>& predicate, std::chrono::seconds timeout = std::chrono::seconds(30)) const;
  bool AwaitDevices(size_t healthy, size_t unhealthy = 0) const;

  // Admission of one container: GetPreferredAllocation, Allocate, checkpoint. `reusable`: units of the pod's init
  // containers.
  Admitted Admit(const std::string& pod, const std::string& container, int units,
                 const std::set<std::string>& reusable = {});
  grpc::Status AllocateIds(const std::vector<std::string>& ids, v1beta1::AllocateResponse* response = nullptr);
  grpc::Status PreStart(const std::vector<std::string>& ids);
  grpc::Status Options(v1beta1::DevicePluginOptions* options);
  // The pod ends: its folder and pod-resources entry are removed at once, its checkpoint entry at the next admission,
  // as in kubelet.
  void Delete(const std::string& pod);
  std::set<std::string> InUse() const;

  // pod-resources also lists these device ids, by resource, as allocatable.
  void OfferFromOtherPlugin(const std::string& resource, const std::vector<std::string>& ids);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_TEST_DEVICEPLUGIN_FAKE_KUBELET_H_
