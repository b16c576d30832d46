// A small gRPC server on one of this program's Unix sockets, as device plugin and DRA driver serve kubelet.
#ifndef SLUICE_DEVICEPLUGIN_GRPC_UNIX_SERVER_H_
#define SLUICE_DEVICEPLUGIN_GRPC_UNIX_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <initializer_list>
#include <memory>
#include <string>

namespace sluice::deviceplugin {

// Serves on the socket, whose file must not exist. nullptr: it cannot. Each stream, and each call that waits for the
// agent, holds a thread; calls beyond 80 of them are refused.
std::unique_ptr<grpc::Server> ServeUnix(const std::string& socket, std::initializer_list<grpc::Service*> services);

// Ends a server: calls in flight get a second.
void StopServer(grpc::Server* server);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_GRPC_UNIX_SERVER_H_
