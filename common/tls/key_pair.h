// The server's certificate with its key, and the store that hands the current pair to each TLS handshake.
#ifndef SLUICE_COMMON_TLS_KEY_PAIR_H_
#define SLUICE_COMMON_TLS_KEY_PAIR_H_

#include <openssl/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "common/mutex.h"

namespace sluice {

// A certificate chain and its key. Immutable, so thread-safe.
class KeyPair {
 public:
  // nullptr: `error` names the fault (no certificate, a truncated file, a key of another certificate).
  static std::shared_ptr<const KeyPair> Parse(std::string_view certificate_pem, std::string_view key_pem,
                                              std::string& error);
  ~KeyPair();
  KeyPair(const KeyPair&) = delete;
  KeyPair& operator=(const KeyPair&) = delete;

  // Sets the chain and the key for one connection. False: OpenSSL refused.
  bool ApplyTo(SSL* ssl) const;
  std::chrono::system_clock::time_point not_before() const { return not_before_; }
  std::chrono::system_clock::time_point not_after() const { return not_after_; }

 private:
  KeyPair() = default;
  X509* leaf_ = nullptr;
  EVP_PKEY* key_ = nullptr;
  struct Chain;
  std::unique_ptr<Chain> chain_;
  std::chrono::system_clock::time_point not_before_, not_after_;
};

// The pair in use. A new pair changes no open connection. Thread-safe.
class CertificateStore {
 public:
  std::shared_ptr<const KeyPair> Current() const;  // nullptr: none yet
  void Set(std::shared_ptr<const KeyPair> pair);

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const KeyPair> pair_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice

#endif  // SLUICE_COMMON_TLS_KEY_PAIR_H_
