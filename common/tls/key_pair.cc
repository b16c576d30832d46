#include "common/tls/key_pair.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <vector>

namespace sluice {
namespace {

std::chrono::system_clock::time_point ToTime(const ASN1_TIME* time) {
  std::tm tm{};
  if (ASN1_TIME_to_tm(time, &tm) != 1) return {};
  return std::chrono::system_clock::from_time_t(timegm(&tm));
}

// OpenSSL's error queue is per thread, and an error left there would spoil the next SSL_get_error.
std::string OpenSslError() {
  char text[160] = "unknown";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

}  // namespace

struct KeyPair::Chain {
  std::vector<X509*> certificates;
  ~Chain() {
    for (X509* c : certificates) X509_free(c);
  }
};

KeyPair::~KeyPair() {
  X509_free(leaf_);
  EVP_PKEY_free(key_);
}

std::shared_ptr<const KeyPair> KeyPair::Parse(std::string_view certificate_pem, std::string_view key_pem,
                                              std::string& error) {
  std::shared_ptr<KeyPair> pair(new KeyPair());
  pair->chain_ = std::make_unique<Chain>();
  BIO* bio = BIO_new_mem_buf(certificate_pem.data(), static_cast<int>(certificate_pem.size()));
  pair->leaf_ = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  while (pair->leaf_ != nullptr) {
    X509* next = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
    if (next == nullptr) break;
    pair->chain_->certificates.push_back(next);
  }
  BIO_free(bio);
  ERR_clear_error();
  if (pair->leaf_ == nullptr) {
    error = "the certificate is not a PEM certificate";
    return nullptr;
  }
  bio = BIO_new_mem_buf(key_pem.data(), static_cast<int>(key_pem.size()));
  pair->key_ = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  if (pair->key_ == nullptr) {
    error = "the key is not a PEM private key (" + OpenSslError() + ")";
    return nullptr;
  }
  if (X509_check_private_key(pair->leaf_, pair->key_) != 1) {
    ERR_clear_error();
    error = "the key does not belong to the certificate";
    return nullptr;
  }
  pair->not_before_ = ToTime(X509_get0_notBefore(pair->leaf_));
  pair->not_after_ = ToTime(X509_get0_notAfter(pair->leaf_));
  return pair;
}

bool KeyPair::ApplyTo(SSL* ssl) const {
  bool is_set = SSL_use_certificate(ssl, leaf_) == 1 && SSL_use_PrivateKey(ssl, key_) == 1;
  for (X509* c : chain_->certificates) is_set = is_set && SSL_add1_chain_cert(ssl, c) == 1;
  return is_set;
}

std::shared_ptr<const KeyPair> CertificateStore::Current() const {
  const MutexLock lock(mutex_);
  return pair_;
}

void CertificateStore::Set(std::shared_ptr<const KeyPair> pair) {
  const MutexLock lock(mutex_);
  pair_.swap(pair);
}

}  // namespace sluice
