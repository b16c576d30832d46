// The webhook's metrics, as Prometheus text. Thread-safe.
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
  void CountReview(Path path, const Answer& answer, std::chrono::nanoseconds duration);
  void CountRefusal(const char* reason);
  void SetConnections(size_t count);
  // `not_after`: the end of the certificate in use; unused if `is_valid` is false.
  void CountCertificateReload(bool is_valid, std::chrono::system_clock::time_point not_after);
  void CountConfigReload(bool is_valid);
  void SetNodes(size_t known, bool is_synced);
  void CountRemovedPod();
  void SetLeader(bool is_leader);
  std::string Text() const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_SERVER_METRICS_H_
