// The listening socket. Internal to webhook/server.
#ifndef SLUICE_WEBHOOK_SERVER_LISTENER_H_
#define SLUICE_WEBHOOK_SERVER_LISTENER_H_

#include <cstdint>
#include <string>

namespace sluice::webhook {

// Listens on a numeric address with a non-blocking socket. `port` 0 becomes the port in use. Returns an empty string,
// or the error.
std::string Listen(const std::string& address, uint16_t& port, int& fd);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_SERVER_LISTENER_H_
