#include "deviceplugin/dra/service.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "common/log/log.h"
#include "deviceplugin/dra/health_service.h"
#include "deviceplugin/grpc/unix_server.h"
#include "deviceplugin/text.h"
#include "dra_v1.grpc.pb.h"
#include "dra_v1beta1.grpc.pb.h"
#include "pluginregistration.grpc.pb.h"
#include "sluice/names.h"

namespace sluice::deviceplugin::dra {
namespace {

namespace v1 = k8s::io::kubelet::pkg::apis::dra::v1;
namespace v1beta1 = k8s::io::kubelet::pkg::apis::dra::v1beta1;
using Clock = std::chrono::steady_clock;

// Counts a call, as refused unless `ok` is set.
struct Timer {
  Timer(Metrics* metrics, const char* method) : metrics(metrics), method(method) {}
  ~Timer() { metrics->CountCall(method, ok, std::chrono::duration<double>(Clock::now() - began).count()); }
  Metrics* metrics;
  const char* method;
  bool ok = false;
  Clock::time_point began = Clock::now();
};

// Both versions' calls.
class Calls {
 public:
  explicit Calls(const ServiceOptions& options) : options_(options) {}

  template <class Request, class Response>
  void Prepare(const Request& request, Response* out) const {
    constexpr char kMethod[] = "NodePrepareResources";
    Timer timer(options_.metrics.get(), kMethod);
    timer.ok = true;
    const auto until = Clock::now() + options_.snapshots->Latest()->config.pre_start_wait;
    for (const auto& asked : request.claims()) {
      auto& answer = (*out->mutable_claims())[asked.uid()];
      const auto claim = options_.preparer->Prepare({asked.namespace_(), asked.name(), asked.uid()}, until);
      if (!claim.ok()) {
        timer.ok = false;
        answer.set_error(Refused(kMethod, claim.status()));
        continue;
      }
      for (const ClaimDevice& device : claim->share.devices) {
        auto* entry = answer.add_devices();
        entry->add_request_names(device.request);
        entry->set_pool_name(device.pool);
        entry->set_device_name(device.device);
        if (!device.share_id.empty()) entry->set_share_id(device.share_id);
        for (const std::string& name : CdiNames(*claim, device)) entry->add_cdi_device_ids(name);
      }
    }
  }

  template <class Request, class Response>
  void Unprepare(const Request& request, Response* out) const {
    constexpr char kMethod[] = "NodeUnprepareResources";
    Timer timer(options_.metrics.get(), kMethod);
    timer.ok = true;
    for (const auto& asked : request.claims()) {
      auto& answer = (*out->mutable_claims())[asked.uid()];
      const absl::Status status = options_.preparer->Unprepare({asked.namespace_(), asked.name(), asked.uid()});
      if (status.ok()) continue;
      timer.ok = false;
      answer.set_error(Refused(kMethod, status));
    }
  }

 private:
  std::string Refused(const char* method, const absl::Status& status) const {
    const std::string reason = RefusalReason(status), why(status.message());
    options_.metrics->CountRefusal(reason);
    Log(LogLevel::kWarn, "refused", {{"method", method}, {"reason", reason}, {"why", why}});
    return why;
  }

  const ServiceOptions& options_;
};

template <class Base, class PrepareRequest, class PrepareResponse, class UnprepareRequest, class UnprepareResponse>
class Plugin final : public Base {
 public:
  explicit Plugin(const Calls* calls) : calls_(calls) {}

  grpc::Status NodePrepareResources(grpc::ServerContext*, const PrepareRequest* request,
                                    PrepareResponse* out) override {
    calls_->Prepare(*request, out);
    return grpc::Status::OK;
  }
  grpc::Status NodeUnprepareResources(grpc::ServerContext*, const UnprepareRequest* request,
                                      UnprepareResponse* out) override {
    calls_->Unprepare(*request, out);
    return grpc::Status::OK;
  }

 private:
  const Calls* const calls_;
};

using PluginV1 = Plugin<v1::DRAPlugin::Service, v1::NodePrepareResourcesRequest, v1::NodePrepareResourcesResponse,
                        v1::NodeUnprepareResourcesRequest, v1::NodeUnprepareResourcesResponse>;
using PluginV1beta1 =
    Plugin<v1beta1::DRAPlugin::Service, v1beta1::NodePrepareResourcesRequest, v1beta1::NodePrepareResourcesResponse,
           v1beta1::NodeUnprepareResourcesRequest, v1beta1::NodeUnprepareResourcesResponse>;

class RegistrationService final : public pluginregistration::Registration::Service {
 public:
  RegistrationService(std::string endpoint, std::shared_ptr<Metrics> metrics)
      : endpoint_(std::move(endpoint)), metrics_(std::move(metrics)) {}

  grpc::Status GetInfo(grpc::ServerContext*, const pluginregistration::InfoRequest*,
                       pluginregistration::PluginInfo* out) override {
    out->set_type("DRAPlugin");
    out->set_name(SLUICE_DOMAIN);
    out->set_endpoint(endpoint_);
    for (const char* version :
         {"v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"})
      out->add_supported_versions(version);
    return grpc::Status::OK;
  }

  grpc::Status NotifyRegistrationStatus(grpc::ServerContext*, const pluginregistration::RegistrationStatus* status,
                                        pluginregistration::RegistrationStatusResponse*) override {
    registered_ = status->plugin_registered();
    metrics_->CountRegistration(registered_);
    Log(registered_ ? LogLevel::kInfo : LogLevel::kWarn, "registration",
        {{"result", registered_ ? "ok" : status->error()}});
    return grpc::Status::OK;
  }

  bool registered() const { return registered_; }

 private:
  const std::string endpoint_;
  const std::shared_ptr<Metrics> metrics_;
  std::atomic<bool> registered_ = false;
};

class GrpcDriverServer final : public DriverServer {
 public:
  explicit GrpcDriverServer(ServiceOptions options)
      : options_(std::move(options)), registration_(options_.plugin_socket, options_.metrics) {}

  ~GrpcDriverServer() override {
    health_->Stop();
    StopServer(registrar_.get());
    StopServer(server_.get());
    unlink(options_.registration_socket.c_str());
    unlink(options_.plugin_socket.c_str());
  }

  bool Start() {
    // The service first: kubelet connects to it as soon as it has found the other socket.
    for (const std::string& socket : {options_.plugin_socket, options_.registration_socket}) unlink(socket.c_str());
    server_ = ServeUnix(options_.plugin_socket, {&v1_, &v1beta1_, health_->v1(), health_->v1alpha1()});
    if (server_) registrar_ = ServeUnix(options_.registration_socket, {&registration_});
    return registrar_ != nullptr;
  }

  bool registered() const override { return registration_.registered(); }

 private:
  const ServiceOptions options_;
  const Calls calls_{options_};
  PluginV1 v1_{&calls_};
  PluginV1beta1 v1beta1_{&calls_};
  const std::unique_ptr<HealthService> health_ = HealthService::Make(options_.snapshots, options_.pool);
  RegistrationService registration_;
  std::unique_ptr<grpc::Server> server_, registrar_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DriverServer>> DriverServer::Start(ServiceOptions options) {
  const std::string sockets = StrCat(options.plugin_socket, " and ", options.registration_socket);
  auto server = std::make_unique<GrpcDriverServer>(std::move(options));
  if (!server->Start()) return absl::UnavailableError(StrCat("cannot serve on ", sockets));
  return std::unique_ptr<DriverServer>(std::move(server));
}

}  // namespace sluice::deviceplugin::dra
