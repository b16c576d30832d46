// The periodic work of the process around Service: reloads, certificates, refused pods.
#ifndef SLUICE_WEBHOOK_PROCESS_H_
#define SLUICE_WEBHOOK_PROCESS_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "common/tls/file_reloader.h"
#include "kube/client.h"
#include "webhook/certificates/reconciler.h"
#include "webhook/claim_templates.h"
#include "webhook/decision/config.h"
#include "webhook/node_watch.h"
#include "webhook/refused_pod_remover.h"
#include "webhook/server/service.h"

namespace sluice::webhook {

struct ProcessOptions {
  std::string config_path;  // empty: no configuration file
  std::string certificate_path, key_path;
  std::string kubeconfig_path;  // empty: the pod's own access to the API server
};

// For one thread. `file` and `service` must outlive it.
class Process {
 public:
  Process(ProcessOptions options, const File& file, Service& service);

  // False: the process cannot start, and the log says why.
  bool Start();

  // One round of the periodic work. The caller calls it about once a second.
  void Tick();

 private:
  void Connect();
  void PollRefusedPods();
  void ReconcileCertificate();
  void ReloadCertificate();
  void ReloadConfig();

  const ProcessOptions options_;
  const File& file_;
  Service& service_;
  std::string config_text_;  // as last read
  std::unique_ptr<kube::Client> client_;
  std::unique_ptr<NodeWatch> nodes_;
  std::once_flag claims_once_;
  std::unique_ptr<ClaimTemplates> claims_;
  std::unique_ptr<FileReloader> reloader_;
  std::unique_ptr<CertificateReconciler> reconciler_;
  std::unique_ptr<RefusedPodRemover> remover_;
  std::chrono::steady_clock::time_point next_reconcile_{};
  std::chrono::steady_clock::time_point next_remover_poll_{};
  kube::Backoff reconcile_backoff_, remover_backoff_;
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_PROCESS_H_
