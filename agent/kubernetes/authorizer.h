// Asks the API server for the bearer of a token (TokenReview) and for the bearer's right to read a path of this agent
// (SubjectAccessReview of a non-resource URL). Remembers answers for a short time. Thread-safe.
#ifndef SLUICE_AGENT_KUBERNETES_AUTHORIZER_H_
#define SLUICE_AGENT_KUBERNETES_AUTHORIZER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "agent/metrics_server.h"
#include "agent/token_bucket.h"
#include "common/mutex.h"
#include "kube/client.h"

namespace sluice::agent {

class Authorizer {
 public:
  struct Options {
    std::chrono::seconds allowed_for{60}, refused_for{10};
    size_t max_answers = 256;
  };
  // `now_ns` is monotonic; for tests.
  explicit Authorizer(const kube::ClientConfig& api, std::function<uint64_t()> now_ns)
      : Authorizer(api, std::move(now_ns), Options()) {}
  Authorizer(const kube::ClientConfig& api, std::function<uint64_t()> now_ns, Options options);

  // Waits for the API server unless the answer is known. A flood of unknown tokens is answered kBusy, and does not
  // reach the API server.
  Access Check(std::string_view token, const std::string& path) SLUICE_EXCLUDES(mutex_);

 private:
  struct Answer {
    Access access;
    uint64_t until_ns = 0;
  };
  Access Ask(std::string_view token, const std::string& path);

  const std::function<uint64_t()> now_ns_;
  const Options options_;
  kube::Client client_;
  Mutex mutex_;
  std::map<std::string, Answer> answers_ SLUICE_GUARDED_BY(mutex_);  // by the hash of token and path
  int asking_ SLUICE_GUARDED_BY(mutex_) = 0;
  TokenBucket reviews_ SLUICE_GUARDED_BY(mutex_){100'000'000, 20};
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_KUBERNETES_AUTHORIZER_H_
