// A second device plugin on the node, such as NVIDIA's: registers with kubelet and offers its own devices.
#ifndef SLUICE_TEST_DEVICEPLUGIN_FOREIGN_PLUGIN_H_
#define SLUICE_TEST_DEVICEPLUGIN_FOREIGN_PLUGIN_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/unix_channel.h"
#include "deviceplugin.grpc.pb.h"

namespace sluice::deviceplugin {

class OtherPlugin final : v1beta1::DevicePlugin::Service {
 public:
  OtherPlugin(const std::string& kubelet_dir, const std::string& resource, std::vector<std::string> ids)
      : ids_(std::move(ids)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + kubelet_dir + "/other.sock", grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    auto kubelet = v1beta1::Registration::NewStub(UnixChannel(kubelet_dir + "/kubelet.sock"));
    v1beta1::RegisterRequest request;
    request.set_version("v1beta1");
    request.set_endpoint("other.sock");
    request.set_resource_name(resource);
    grpc::ClientContext context;
    v1beta1::Empty answer;
    if (!server_ || !kubelet->Register(&context, request, &answer).ok())
      throw std::runtime_error("the second plugin cannot register");
  }

  ~OtherPlugin() override {
    ending_ = true;
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  }

 private:
  grpc::Status GetDevicePluginOptions(grpc::ServerContext*, const v1beta1::Empty*,
                                      v1beta1::DevicePluginOptions*) override {
    return grpc::Status::OK;
  }

  grpc::Status ListAndWatch(grpc::ServerContext* context, const v1beta1::Empty*,
                            grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) override {
    v1beta1::ListAndWatchResponse list;
    for (const std::string& id : ids_) {
      auto* device = list.add_devices();
      device->set_id(id);
      device->set_health("Healthy");
    }
    writer->Write(list);
    while (!ending_ && !context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return grpc::Status::OK;
  }

  const std::vector<std::string> ids_;
  std::atomic<bool> ending_ = false;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_TEST_DEVICEPLUGIN_FOREIGN_PLUGIN_H_
