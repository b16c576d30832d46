// What Prometheus sees, and the HTTP server that shows it with /healthz and /readyz.
#ifndef SLUICE_DEVICEPLUGIN_METRICS_H_
#define SLUICE_DEVICEPLUGIN_METRICS_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "deviceplugin/decide/cards.h"

namespace sluice::deviceplugin {

// Thread-safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  void Registered(bool ok);
  void Call(std::string_view method, bool ok, double seconds);
  void Refused(std::string_view reason);
  void Cards(const Inventory& inventory);
  void Collected(std::string_view kind, int count);  // allocation, library, cdi, failure
  void NvmlLost(int threads);
  void Streams(int open);

  std::string Text() const;  // in Prometheus' text format

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

// "" is well, else why not.
using Probe = std::function<std::string()>;

// Serves /metrics, /healthz and /readyz until it is destroyed.
class HttpServer {
 public:
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, std::shared_ptr<Metrics> metrics,
                                                           Probe healthy, Probe ready);
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_METRICS_H_
