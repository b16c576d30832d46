// A gRPC client's channel to a Unix socket: kubelet's, the agent's. Any thread.
#ifndef SLUICE_COMMON_UNIX_CHANNEL_H_
#define SLUICE_COMMON_UNIX_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace sluice {

inline std::shared_ptr<grpc::Channel> UnixChannel(const std::string& socket) {
  grpc::ChannelArguments arguments;
  // By default gRPC sends the path as authority, which Go's server refuses.
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  // The global pool would reuse a connection, or its back-off, from before the server's restart.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace sluice

#endif  // SLUICE_COMMON_UNIX_CHANNEL_H_
