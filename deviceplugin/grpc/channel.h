// A client's channel to one of kubelet's Unix sockets.
#ifndef SLUICE_DEVICEPLUGIN_GRPC_CHANNEL_H_
#define SLUICE_DEVICEPLUGIN_GRPC_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace sluice::deviceplugin {

inline std::shared_ptr<grpc::Channel> UnixChannel(const std::string& socket) {
  grpc::ChannelArguments arguments;
  // Go's server refuses a path as authority.
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  // The global pool would reuse a connection, or its back-off, from before kubelet's restart.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_GRPC_CHANNEL_H_
