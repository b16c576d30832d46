#include "deviceplugin/grpc/unix_server.h"

#include <chrono>

#include "common/log/grpc_log.h"

namespace sluice::deviceplugin {
namespace {

constexpr int kMaxThreads = 80;

}  // namespace

std::unique_ptr<grpc::Server> ServeUnix(const std::string& socket, std::initializer_list<grpc::Service*> services) {
  LogGrpcMessages();
  grpc::ResourceQuota quota("kubelet");
  quota.SetMaxThreads(kMaxThreads);
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
  for (grpc::Service* service : services) builder.RegisterService(service);
  return builder.BuildAndStart();
}

void StopServer(grpc::Server* server) {
  if (server == nullptr) return;
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  server->Wait();
}

}  // namespace sluice::deviceplugin
