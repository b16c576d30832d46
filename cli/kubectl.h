// Runs kubectl, which reads kubeconfigs, contexts and login plugins: this program needs no code for them.
#ifndef SLUICE_CLI_KUBECTL_H_
#define SLUICE_CLI_KUBECTL_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice::cli {

class Kubectl {
 public:
  // Arguments of every call: --context, --kubeconfig.
  std::vector<std::string>* global() { return &global_; }
  const std::vector<std::string>& global() const { return global_; }

  struct Answer {
    int status = 0;  // exit status; 127: no kubectl
    std::string out, error;
    bool ok() const { return status == 0; }
    std::string Reason() const;  // one line: kubectl's error without its log lines
  };
  Answer Run(std::vector<std::string> arguments) const;
  // `get ... -o json`. Fail()s with kubectl's error.
  nlohmann::json Get(std::vector<std::string> arguments) const;

 private:
  std::vector<std::string> global_;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_KUBECTL_H_
