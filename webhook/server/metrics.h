// What the webhook counts, as Prometheus text. Thread-safe.
#ifndef SLUICE_WEBHOOK_SERVER_METRICS_H_
#define SLUICE_WEBHOOK_SERVER_METRICS_H_

#include <chrono>
#include <memory>
#include <string>

#include "webhook/decision/review.h"

namespace sluice::webhook {

class Metrics {
 public:
  Metrics();
  ~Metrics();
  void Count(Path path, const Answer& answer, std::chrono::nanoseconds took);
  void Refused(const char* reason);
  void Connections(size_t count);
  void CertificateLoaded(bool good, std::chrono::system_clock::time_point not_after);
  void ConfigLoaded(bool good);
  void Nodes(size_t known, bool synced);
  void RefusedPodRemoved();
  void Leads(bool leads);
  std::string Text() const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_SERVER_METRICS_H_
