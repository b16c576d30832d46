#include "webhook/certificates/key_pair.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

namespace sluice::webhook {
namespace {

std::chrono::system_clock::time_point ToTime(const ASN1_TIME* time) {
  std::tm tm{};
  if (ASN1_TIME_to_tm(time, &tm) != 1) return {};
  return std::chrono::system_clock::from_time_t(timegm(&tm));
}

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// OpenSSL's queue of errors is per thread; whoever leaves one there spoils the next SSL_get_error.
std::string OpenSslError() {
  char text[160] = "unknown";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

int ServeCertificate(SSL* ssl, void* store) {
  const auto pair = static_cast<const CertificateStore*>(store)->Current();
  return pair != nullptr && pair->Use(ssl) ? 1 : 0;
}

// Without h2 the API server speaks HTTP/1.1 with keep-alive.
int SelectHttp1(SSL*, const unsigned char** out, unsigned char* out_length, const unsigned char* in, unsigned length,
                void*) {
  static constexpr unsigned char kHttp1[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* selected = nullptr;
  if (SSL_select_next_proto(&selected, out_length, kHttp1, sizeof(kHttp1), in, length) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *out = selected;
  return SSL_TLSEXT_ERR_OK;
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
    error = "the certificate is no PEM certificate";
    return nullptr;
  }
  bio = BIO_new_mem_buf(key_pem.data(), static_cast<int>(key_pem.size()));
  pair->key_ = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  if (pair->key_ == nullptr) {
    error = "the key is no PEM private key (" + OpenSslError() + ")";
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

bool KeyPair::Use(SSL* ssl) const {
  bool good = SSL_use_certificate(ssl, leaf_) == 1 && SSL_use_PrivateKey(ssl, key_) == 1;
  for (X509* c : chain_->certificates) good = good && SSL_add1_chain_cert(ssl, c) == 1;
  return good;
}

std::shared_ptr<const KeyPair> CertificateStore::Current() const {
  const std::lock_guard lock(mutex_);
  return pair_;
}

void CertificateStore::Set(std::shared_ptr<const KeyPair> pair) {
  const std::lock_guard lock(mutex_);
  pair_.swap(pair);
}

void FreeContext::operator()(SSL_CTX* context) const { SSL_CTX_free(context); }

TlsContext MakeServerContext(const CertificateStore& store) {
  TlsContext context(SSL_CTX_new(TLS_server_method()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  // One ticket, not two: kubectl-like clients connect often and use none.
  SSL_CTX_set_num_tickets(context.get(), 1);
  SSL_CTX_set_cert_cb(context.get(), ServeCertificate, const_cast<CertificateStore*>(&store));
  SSL_CTX_set_alpn_select_cb(context.get(), SelectHttp1, nullptr);
  return context;
}

FileReloader::FileReloader(std::string certificate, std::string key, CertificateStore& store)
    : certificate_path_(std::move(certificate)), key_path_(std::move(key)), store_(store) {}

FileReloader::Result FileReloader::Poll(std::chrono::system_clock::time_point now, std::string& message) {
  const auto bad = [&](const std::string& text) {
    if (text != complained_) message = text;
    complained_ = text;
    return Result::kBad;
  };
  std::string certificate = ReadAll(certificate_path_);
  std::string key = ReadAll(key_path_);
  if (certificate.empty() || key.empty()) {
    return bad((certificate.empty() ? certificate_path_ : key_path_) + ": cannot be read, or is empty");
  }
  if (certificate == certificate_ && key == key_) {
    complained_.clear();
    return Result::kSame;
  }
  std::string error;
  auto pair = KeyPair::Parse(certificate, key, error);
  if (pair == nullptr) return bad(certificate_path_ + ", " + key_path_ + ": " + error);
  const auto current = store_.Current();
  if (pair->not_after() < now && current != nullptr && current->not_after() >= now) {
    return bad(certificate_path_ + ": expired, while the one in use has not; it is not loaded");
  }
  store_.Set(std::move(pair));
  certificate_ = std::move(certificate);
  key_ = std::move(key);
  complained_.clear();
  message = certificate_path_ + ": loaded";
  return Result::kLoaded;
}

}  // namespace sluice::webhook
