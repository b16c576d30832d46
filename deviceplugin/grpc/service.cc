#include "deviceplugin/grpc/service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "common/log/log.h"
#include "common/unix_channel.h"
#include "deviceplugin.grpc.pb.h"
#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/decide/response.h"
#include "deviceplugin/decide/unit_choice.h"
#include "deviceplugin/grpc/unix_server.h"
#include "deviceplugin/host/hook_library.h"
#include "deviceplugin/host/pre_start.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {
namespace {

using grpc::ServerContext;
using SteadyClock = std::chrono::steady_clock;

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

template <class Repeated>
std::vector<std::string> ToVector(const Repeated& ids) {
  return {ids.begin(), ids.end()};
}

// Withheld devices are unhealthy ones: kubelet gives them to no pod, and the scheduler counts without them.
void FillDevices(const Inventory& inventory, const std::set<std::string>& withheld,
                 v1beta1::ListAndWatchResponse* out) {
  for (const Card& card : inventory.cards) {
    if (card.state == CardState::kNotOffered) continue;
    for (int unit = 0; unit < SLUICE_UNITS_PER_GPU; ++unit) {
      auto* device = out->add_devices();
      device->set_id(FormatDeviceId(card.uuid, unit));
      const bool given = card.state == CardState::kHealthy && !withheld.contains(device->id());
      device->set_health(given ? "Healthy" : "Unhealthy");
      if (card.numa >= 0) device->mutable_topology()->add_nodes()->set_id(card.numa);
    }
  }
}

class Service final : public v1beta1::DevicePlugin::Service {
 public:
  explicit Service(ServiceOptions options) : options_(std::move(options)) {}

  void Stop() {
    stopping_ = true;
    options_.snapshots->Wake();
  }
  int watchers() const { return watchers_; }

  grpc::Status GetDevicePluginOptions(ServerContext*, const v1beta1::Empty*,
                                      v1beta1::DevicePluginOptions* out) override {
    out->set_pre_start_required(true);
    out->set_get_preferred_allocation_available(true);
    return grpc::Status::OK;
  }

  grpc::Status ListAndWatch(ServerContext* context, const v1beta1::Empty*,
                            grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) override {
    options_.metrics->SetStreams(++watchers_);
    std::string last;
    bool first = true;
    uint64_t generation = 0;
    while (!stopping_ && !context->IsCancelled()) {
      const bool newer = options_.snapshots->WaitForNewer(&generation, std::chrono::milliseconds(500), stopping_);
      if (!newer) continue;
      v1beta1::ListAndWatchResponse response;
      FillDevices(options_.snapshots->Latest()->inventory, options_.grown->Withheld(), &response);
      std::string bytes = response.SerializeAsString();
      if (!first && bytes == last) continue;
      if (!writer->Write(response)) break;
      Log(LogLevel::kInfo, "devices sent to kubelet", {{"devices", StrCat(response.devices_size())}});
      first = false;
      last = std::move(bytes);
    }
    options_.metrics->SetStreams(--watchers_);
    return grpc::Status::OK;
  }

  grpc::Status GetPreferredAllocation(ServerContext*, const v1beta1::PreferredAllocationRequest* request,
                                      v1beta1::PreferredAllocationResponse* out) override {
    Timer timer(this, "GetPreferredAllocation");
    const auto snapshot = options_.snapshots->Latest();
    const scheduler::CardPlaces places = snapshot->inventory.Places();
    for (const auto& container : request->container_requests()) {
      const auto available = ToVector(container.available_deviceids());
      const auto must = ToVector(container.must_include_deviceids());
      const int cards = options_.waiting->CardsFor(container.allocation_size(), static_cast<int>(places.size()),
                                                   [this] { return ReadCheckpoint(options_.kubelet_dir); });
      const UnitRequest wanted{available, must, container.allocation_size(), cards};
      const auto withheld = [this] { return options_.grown->Withheld(); };
      const UnitChoice choice = options_.reservations
                                    ? options_.reservations->Prefer(wanted, places, withheld)
                                    : ChooseUnits({Without(available, withheld()), must, wanted.size, cards}, places);
      options_.waiting->SetAnswer(choice.ids, cards);
      auto* answer = out->add_container_responses();
      for (const std::string& id : choice.ids) answer->add_deviceids(id);
    }
    timer.ok = true;
    return grpc::Status::OK;
  }

  grpc::Status Allocate(ServerContext*, const v1beta1::AllocateRequest* request,
                        v1beta1::AllocateResponse* out) override {
    Timer timer(this, "Allocate");
    std::vector<std::string> made;
    for (const auto& container : request->container_requests()) {
      absl::Status status = AllocateOne(ToVector(container.devices_ids()), out->add_container_responses(), &made);
      if (status.ok()) continue;
      // All containers or none.
      for (const std::string& id : made) (void)options_.store.Remove(id);
      out->clear_container_responses();
      return Refuse("Allocate", status);
    }
    timer.ok = true;
    return grpc::Status::OK;
  }

  grpc::Status PreStartContainer(ServerContext* context, const v1beta1::PreStartContainerRequest* request,
                                 v1beta1::PreStartContainerResponse*) override {
    Timer timer(this, "PreStartContainer");
    const auto ids = ToVector(request->devices_ids());
    const auto until = SteadyClock::now() + options_.snapshots->Latest()->config.pre_start_wait;
    auto pause = std::chrono::milliseconds(5);
    while (true) {
      const absl::Status status = CheckStart(ids);
      if (status.ok()) {
        timer.ok = true;
        return grpc::Status::OK;
      }
      const bool worth_waiting = absl::IsUnavailable(status) && SteadyClock::now() < until;
      if (!worth_waiting || stopping_ || context->IsCancelled()) {
        return Refuse("PreStartContainer",
                      absl::IsUnavailable(status) ? Refusal("agent", std::string(status.message())) : status);
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::milliseconds(100));
    }
  }

 private:
  struct Timer {
    Timer(Service* service, const char* method) : service(service), method(method) {}
    ~Timer() {
      service->options_.metrics->CountCall(method, ok,
                                           std::chrono::duration<double>(SteadyClock::now() - began).count());
    }
    Service* service;
    const char* method;
    bool ok = false;
    SteadyClock::time_point began = SteadyClock::now();
  };

  grpc::Status Refuse(const char* method, const absl::Status& status) {
    const std::string reason = RefusalReason(status);
    options_.metrics->CountRefusal(reason);
    Log(LogLevel::kWarn, "refused", {{"method", method}, {"reason", reason}, {"why", std::string(status.message())}});
    return ToGrpc(status);
  }

  absl::Status AllocateOne(const std::vector<std::string>& ids, v1beta1::ContainerAllocateResponse* out,
                           std::vector<std::string>* made) {
    const auto snapshot = options_.snapshots->Latest();
    const auto read = [this] { return ReadCheckpoint(options_.kubelet_dir); };
    const int cards = options_.waiting->CardsOf(ids, read);
    auto grant = DecideGrant(ids, snapshot->inventory, cards);
    if (!grant.ok()) return grant.status();
    if (absl::Status s = options_.grown->CheckAllocation(grant->ids); !s.ok()) return s;
    if (options_.reservations) {
      if (auto s = options_.reservations->CheckAllocation(grant->ids, read, cards); !s.ok()) return s;
    }
    if (!snapshot->lib_problem.empty()) return Refusal("library", snapshot->lib_problem);
    ResponseInput input{&*grant, snapshot->access, snapshot->lib_dir, ""};
    for (const std::string& name : MakeResponse(input).cdi_names) {
      if (!snapshot->cdi_names.contains(name)) {
        return Refusal("cdi",
                       StrCat("no CDI spec on this node names ", name, " (driver access ", ToString(snapshot->access),
                              "; fix: nvidia-ctk cdi generate, or set driverAccess)"));
      }
    }
    auto allocation = options_.store.Create(*grant);
    if (!allocation.ok()) {
      return Refusal("storage",
                     StrCat("the allocation's directory could not be made: ", allocation.status().message()));
    }
    made->push_back(allocation->id);
    input.run_dir = allocation->directory;
    const ContainerResponse response = MakeResponse(input);
    for (const auto& [key, value] : response.envs) (*out->mutable_envs())[key] = value;
    for (const Mount& mount : response.mounts) {
      auto* entry = out->add_mounts();
      entry->set_container_path(mount.container_path);
      entry->set_host_path(mount.host_path);
      entry->set_read_only(true);
    }
    for (const std::string& name : response.cdi_names) out->add_cdi_devices()->set_name(name);
    Log(LogLevel::kInfo, "allocated",
        {{"allocation", allocation->id},
         {"fraction", grant->Fraction()},
         {"gpu", grant->cards.front().uuid},
         {"gpus", StrCat(grant->cards.size())}});
    return absl::OkStatus();
  }

  absl::Status CheckStart(const std::vector<std::string>& ids) {
    const auto snapshot = options_.snapshots->Latest();
    const auto checkpoint = ReadCheckpoint(options_.kubelet_dir);
    if (absl::Status s = options_.waiting->CheckStart(ids, checkpoint); !s.ok()) return s;
    auto requirements = FindStartRequirements(ids, checkpoint, options_.store, snapshot->lib_dir);
    if (!requirements.ok()) return requirements.status();
    for (const StartRequirements& need : *requirements) {
      if (absl::Status s = CheckStartRequirements(need); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  ServiceOptions options_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> watchers_ = 0;
};

class GrpcPluginServer final : public PluginServer {
 public:
  explicit GrpcPluginServer(ServiceOptions options) : service_(std::move(options)) {}

  ~GrpcPluginServer() override {
    service_.Stop();  // streams end by themselves
    StopServer(server_.get());
  }

  bool Start(const std::string& socket) {
    server_ = ServeUnix(socket, {&service_});
    return server_ != nullptr;
  }

  int watchers() const override { return service_.watchers(); }

 private:
  Service service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PluginServer>> PluginServer::Start(const std::string& socket, ServiceOptions options) {
  auto server = std::make_unique<GrpcPluginServer>(std::move(options));
  if (!server->Start(socket)) return absl::UnavailableError(StrCat("cannot serve on ", socket));
  return std::unique_ptr<PluginServer>(std::move(server));
}

absl::Status RegisterWithKubelet(const std::string& kubelet_socket, const std::string& endpoint) {
  auto stub = v1beta1::Registration::NewStub(UnixChannel(kubelet_socket));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  v1beta1::RegisterRequest request;
  request.set_version("v1beta1");
  request.set_endpoint(endpoint);
  request.set_resource_name(SLUICE_RESOURCE);
  request.mutable_options()->set_pre_start_required(true);
  request.mutable_options()->set_get_preferred_allocation_available(true);
  v1beta1::Empty answer;
  const grpc::Status status = stub->Register(&context, request, &answer);
  if (status.ok()) return absl::OkStatus();
  return absl::UnavailableError(
      StrCat("kubelet did not accept the registration on ", kubelet_socket, ": ", status.error_message()));
}

}  // namespace sluice::deviceplugin
