// The metrics for Prometheus, and the HTTP server that serves them with /healthz and /readyz.
#ifndef SLUICE_DEVICEPLUGIN_METRICS_H_
#define SLUICE_DEVICEPLUGIN_METRICS_H_

#include <cstdint>
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

  void CountRegistration(bool ok);
  void CountCall(std::string_view method, bool ok, double seconds);
  uint64_t calls() const;  // counted so far
  void CountRefusal(std::string_view reason);
  void SetCards(const Inventory& inventory);
  void CountCollected(std::string_view kind, int count);  // kind: allocation, library, failure
  void SetStuckNvmlCalls(int threads);
  void SetStreams(int open);

  std::string Text() const;  // in Prometheus' text format

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

// Empty if all is well, else the reason.
using Probe = std::function<std::string()>;

// Serves /metrics, /healthz and /readyz until it is destroyed. Error: it cannot listen on the address.
class ProbeServer {
 public:
  static absl::StatusOr<std::unique_ptr<ProbeServer>> Start(const std::string& address,
                                                            std::shared_ptr<Metrics> metrics, const Probe& healthy,
                                                            const Probe& ready);
  virtual ~ProbeServer() = default;
  virtual int port() const = 0;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_METRICS_H_
