// The server's certificate: loaded, checked as a pair, swapped without a restart. The certificate belongs to the
// handshake (SSL_CTX certificate callback), so a swap touches no connection that is open.
#ifndef SLUICE_WEBHOOK_CERTIFICATES_KEY_PAIR_H_
#define SLUICE_WEBHOOK_CERTIFICATES_KEY_PAIR_H_

#include <openssl/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace sluice::webhook {

// A certificate chain and its key. Immutable.
class KeyPair {
 public:
  // nullptr: `error` says what is wrong (no certificate, half a file, a key of another certificate).
  static std::shared_ptr<const KeyPair> Parse(std::string_view certificate_pem, std::string_view key_pem,
                                              std::string& error);
  ~KeyPair();
  KeyPair(const KeyPair&) = delete;
  KeyPair& operator=(const KeyPair&) = delete;

  bool Use(SSL* ssl) const;
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

// The pair in use. Thread-safe.
class CertificateStore {
 public:
  std::shared_ptr<const KeyPair> Current() const;
  void Set(std::shared_ptr<const KeyPair> pair);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const KeyPair> pair_;
};

// A server context (TLS 1.2 and up, HTTP/1.1) that asks `store` at each handshake. The store must outlive it.
struct FreeContext {
  void operator()(SSL_CTX* context) const;
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeContext>;
TlsContext MakeServerContext(const CertificateStore& store);

// Follows a certificate's and a key's file. Content is compared, so that a projected volume's symlink swap, a rename
// and a rewrite in place are all seen.
class FileReloader {
 public:
  FileReloader(std::string certificate, std::string key, CertificateStore& store);
  enum class Result { kSame, kLoaded, kBad };
  // A pair that is broken, or expired while the one in use is not, is left alone and tried again at the next call.
  Result Poll(std::chrono::system_clock::time_point now, std::string& message);

 private:
  const std::string certificate_path_, key_path_;
  CertificateStore& store_;
  std::string certificate_, key_;  // as loaded
  std::string complained_;         // each message is given once
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_CERTIFICATES_KEY_PAIR_H_
