#include "test/deviceplugin/fake_kubelet.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/escaping.h"
#include "common/unix_channel.h"
#include "deviceplugin/host/files.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {
namespace {

constexpr auto kCall = std::chrono::seconds(40);

struct Holder {
  std::string pod, container;
  std::vector<std::string> ids;
  std::string response;
  bool active = true;
};

}  // namespace

struct FakeKubelet::State : v1beta1::Registration::Service, v1::PodResourcesLister::Service {
  explicit State(std::string path) : root(std::move(path)) {}

  const std::string root;
  mutable std::mutex mutex;
  int registrations = 0;
  size_t list_bytes = 0;
  std::map<std::string, SeenDevice> devices;
  std::vector<Holder> holders;
  std::map<std::string, std::vector<std::string>> offered_by_others;
  std::unique_ptr<grpc::Server> server, pod_resources;
  std::unique_ptr<v1beta1::DevicePlugin::Stub> stub;
  std::shared_ptr<grpc::ClientContext> stream;
  std::vector<std::thread> threads;

  grpc::Status Register(grpc::ServerContext*, const v1beta1::RegisterRequest* request, v1beta1::Empty*) override {
    if (request->version() != "v1beta1" || request->resource_name() != SLUICE_RESOURCE ||
        !request->options().pre_start_required() || !request->options().get_preferred_allocation_available()) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "not as expected: " + request->resource_name()};
    }
    auto channel = UnixChannel(root + "/device-plugins/" + request->endpoint());
    std::lock_guard lock(mutex);
    ++registrations;
    if (stream) stream->TryCancel();
    stub = v1beta1::DevicePlugin::NewStub(channel);
    stream = std::make_shared<grpc::ClientContext>();
    threads.emplace_back([this, channel, context = stream] { Watch(channel, context); });
    return grpc::Status::OK;
  }

  void Watch(std::shared_ptr<grpc::Channel> channel, std::shared_ptr<grpc::ClientContext> context) {
    auto own = v1beta1::DevicePlugin::NewStub(channel);
    auto reader = own->ListAndWatch(context.get(), {});
    v1beta1::ListAndWatchResponse list;
    while (reader->Read(&list)) {
      std::lock_guard lock(mutex);
      if (stream != context) break;
      devices.clear();
      list_bytes = list.ByteSizeLong();
      for (const auto& device : list.devices()) {
        devices[device.id()] = {device.health(), device.topology().nodes_size() > 0
                                                     ? static_cast<int>(device.topology().nodes(0).id())
                                                     : -1};
      }
    }
    (void)reader->Finish();
    std::lock_guard lock(mutex);
    if (stream != context) return;
    for (auto& [id, device] : devices) device.health = "Unhealthy";
  }

  grpc::Status List(grpc::ServerContext*, const v1::ListPodResourcesRequest*,
                    v1::ListPodResourcesResponse* out) override {
    std::lock_guard lock(mutex);
    for (const Holder& holder : holders) {
      if (!holder.active) continue;
      auto* pod = out->add_pod_resources();
      pod->set_name(holder.pod);
      auto* container = pod->add_containers();
      container->set_name(holder.container);
      for (const auto& id : holder.ids) {
        auto* devices = container->add_devices();
        devices->set_resource_name(SLUICE_RESOURCE);
        devices->add_device_ids(id);
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status GetAllocatableResources(grpc::ServerContext*, const v1::AllocatableResourcesRequest*,
                                       v1::AllocatableResourcesResponse* out) override {
    std::lock_guard lock(mutex);
    for (const auto& [resource, ids] : offered_by_others) {
      for (const auto& id : ids) {
        auto* devices = out->add_devices();
        devices->set_resource_name(resource);
        devices->add_device_ids(id);
      }
    }
    return grpc::Status::OK;
  }

  v1beta1::DevicePlugin::Stub* Stub() {
    std::lock_guard lock(mutex);
    return stub.get();
  }

  std::set<std::string> UsedLocked() const {
    std::set<std::string> used;
    for (const Holder& holder : holders) {
      if (holder.active) used.insert(holder.ids.begin(), holder.ids.end());
    }
    return used;
  }

  void WriteCheckpointLocked() {
    nlohmann::json entries = nlohmann::json::array();
    for (const Holder& holder : holders) {
      entries.push_back({{"PodUID", holder.pod},
                         {"ContainerName", holder.container},
                         {"ResourceName", SLUICE_RESOURCE},
                         {"DeviceIDs", {{"-1", holder.ids}}},
                         {"AllocResp", absl::Base64Escape(holder.response)}});
    }
    nlohmann::json registered = nlohmann::json::array();
    for (const auto& [id, device] : devices) registered.push_back(id);
    const nlohmann::json file = {
        {"Data", {{"PodDeviceEntries", entries}, {"RegisteredDevices", {{SLUICE_RESOURCE, registered}}}}},
        {"Checksum", 1}};
    (void)WriteFileAtomically(root + "/device-plugins/kubelet_internal_checkpoint", file.dump(), Durable::kNo);
  }
};

std::string Admitted::RunDir() const {
  for (const auto& mount : response.mounts()) {
    if (mount.container_path() == SLUICE_CONTAINER_RUN_DIR) return mount.host_path();
  }
  return "";
}

FakeKubelet::FakeKubelet(std::string root) : state_(std::make_unique<State>(std::move(root))) {
  for (const char* dir : {"/device-plugins", "/pods", "/pod-resources"})
    std::filesystem::create_directories(state_->root + dir);
}

FakeKubelet::~FakeKubelet() { Stop(); }

std::string FakeKubelet::plugin_dir() const { return state_->root + "/device-plugins"; }
std::string FakeKubelet::checkpoint() const { return plugin_dir() + "/kubelet_internal_checkpoint"; }

void FakeKubelet::Start() {
  const auto names = ListDir(plugin_dir());
  for (const auto& name : *names) {
    std::error_code error;
    if (std::filesystem::is_socket(plugin_dir() + "/" + name, error))
      std::filesystem::remove(plugin_dir() + "/" + name);
  }
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + plugin_dir() + "/kubelet.sock", grpc::InsecureServerCredentials());
  builder.RegisterService(static_cast<v1beta1::Registration::Service*>(state_.get()));
  state_->server = builder.BuildAndStart();
  grpc::ServerBuilder other;
  other.AddListeningPort("unix:" + state_->root + "/pod-resources/kubelet.sock", grpc::InsecureServerCredentials());
  other.RegisterService(static_cast<v1::PodResourcesLister::Service*>(state_.get()));
  state_->pod_resources = other.BuildAndStart();
}

void FakeKubelet::Stop() {
  std::vector<std::thread> threads;
  // The servers first, so that no registration opens a stream that is not ended here.
  for (auto* server : {&state_->server, &state_->pod_resources}) {
    if (*server) (*server)->Shutdown(std::chrono::system_clock::now());
    server->reset();
  }
  {
    std::lock_guard lock(state_->mutex);
    if (state_->stream) state_->stream->TryCancel();
    state_->stream.reset();
    threads.swap(state_->threads);
  }
  for (auto& thread : threads) thread.join();
  std::lock_guard lock(state_->mutex);
  state_->devices.clear();
  state_->stub.reset();
}

void FakeKubelet::Crash() {
  const std::string socket = plugin_dir() + "/kubelet.sock";
  // A server removes its path at its end; a killed process does not.
  std::filesystem::rename(socket, socket + ".kept");
  Stop();
  std::filesystem::rename(socket + ".kept", socket);
}

int FakeKubelet::registrations() const {
  std::lock_guard lock(state_->mutex);
  return state_->registrations;
}

size_t FakeKubelet::list_bytes() const {
  std::lock_guard lock(state_->mutex);
  return state_->list_bytes;
}

std::map<std::string, SeenDevice> FakeKubelet::devices() const {
  std::lock_guard lock(state_->mutex);
  return state_->devices;
}

bool FakeKubelet::Await(const std::function<bool()>& predicate, std::chrono::seconds timeout) const {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!predicate()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

bool FakeKubelet::AwaitDevices(size_t healthy, size_t unhealthy) const {
  return Await([&] {
    size_t good = 0, bad = 0;
    for (const auto& [id, device] : devices()) (device.health == "Healthy" ? good : bad)++;
    return good == healthy && bad == unhealthy;
  });
}

Admitted FakeKubelet::Admit(const std::string& pod, const std::string& container, int units,
                            const std::set<std::string>& reusable) {
  Admitted out;
  std::set<std::string> chosen, available;
  for (const auto& id : reusable) {
    if (static_cast<int>(chosen.size()) < units) chosen.insert(id);
  }
  {
    std::lock_guard lock(state_->mutex);
    // Like kubelet, drops the entries of ended pods only right before an allocation.
    std::erase_if(state_->holders, [](const Holder& holder) { return !holder.active; });
    const auto used = state_->UsedLocked();
    for (const auto& [id, device] : state_->devices) {
      if (device.health == "Healthy" && !used.contains(id)) available.insert(id);
    }
  }
  auto* stub = state_->Stub();
  if (stub == nullptr) {
    out.status = {grpc::StatusCode::UNAVAILABLE, "not registered"};
    return out;
  }
  if (static_cast<int>(available.size() + chosen.size()) < units) {
    out.status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "requested number of devices unavailable"};
    return out;
  }
  if (static_cast<int>(chosen.size()) < units) {
    v1beta1::PreferredAllocationRequest request;
    auto* one = request.add_container_requests();
    for (const auto& id : available) one->add_available_deviceids(id);
    for (const auto& id : chosen) one->add_available_deviceids(id), one->add_must_include_deviceids(id);
    one->set_allocation_size(units);
    v1beta1::PreferredAllocationResponse preferred;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCall);
    out.status = stub->GetPreferredAllocation(&context, request, &preferred);
    if (!out.status.ok()) return out;
    for (const auto& id : preferred.container_responses(0).deviceids()) {
      if (available.contains(id) && static_cast<int>(chosen.size()) < units) chosen.insert(id);
    }
    for (const auto& id : available) {
      if (static_cast<int>(chosen.size()) < units) chosen.insert(id);
    }
  }
  out.ids.assign(chosen.begin(), chosen.end());
  v1beta1::AllocateResponse response;
  out.status = AllocateIds(out.ids, &response);
  if (!out.status.ok()) return out;
  out.response = response.container_responses(0);
  std::filesystem::create_directories(state_->root + "/pods/" + pod);
  std::lock_guard lock(state_->mutex);
  state_->holders.push_back({pod, container, out.ids, out.response.SerializeAsString()});
  state_->WriteCheckpointLocked();
  return out;
}

grpc::Status FakeKubelet::AllocateIds(const std::vector<std::string>& ids, v1beta1::AllocateResponse* response) {
  auto* stub = state_->Stub();
  if (stub == nullptr) return {grpc::StatusCode::UNAVAILABLE, "not registered"};
  v1beta1::AllocateRequest request;
  auto* one = request.add_container_requests();
  for (const auto& id : ids) one->add_devices_ids(id);
  v1beta1::AllocateResponse unused;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCall);
  return stub->Allocate(&context, request, response != nullptr ? response : &unused);
}

grpc::Status FakeKubelet::PreStart(const std::vector<std::string>& ids) {
  v1beta1::PreStartContainerRequest request;
  for (const auto& id : ids) request.add_devices_ids(id);
  v1beta1::PreStartContainerResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCall);
  return state_->Stub()->PreStartContainer(&context, request, &response);
}

grpc::Status FakeKubelet::Options(v1beta1::DevicePluginOptions* options) {
  grpc::ClientContext context;
  return state_->Stub()->GetDevicePluginOptions(&context, {}, options);
}

void FakeKubelet::Delete(const std::string& pod) {
  std::filesystem::remove_all(state_->root + "/pods/" + pod);
  std::lock_guard lock(state_->mutex);
  for (Holder& holder : state_->holders) {
    if (holder.pod == pod) holder.active = false;
  }
}

std::set<std::string> FakeKubelet::InUse() const {
  std::lock_guard lock(state_->mutex);
  return state_->UsedLocked();
}

void FakeKubelet::OfferFromOtherPlugin(const std::string& resource, const std::vector<std::string>& ids) {
  std::lock_guard lock(state_->mutex);
  state_->offered_by_others[resource] = ids;
}

}  // namespace sluice::deviceplugin
