#include "common/tls/tls_context.h"

#include <openssl/ssl.h>

namespace sluice {
namespace {

int ServeCertificate(SSL* ssl, void* store) {
  const auto pair = static_cast<const CertificateStore*>(store)->Current();
  return pair != nullptr && pair->ApplyTo(ssl) ? 1 : 0;
}

// Without h2, the API server uses HTTP/1.1 with keep-alive.
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

void FreeContext::operator()(SSL_CTX* context) const { SSL_CTX_free(context); }

TlsContext MakeServerContext(const CertificateStore& store) {
  TlsContext context(SSL_CTX_new(TLS_server_method()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  // One ticket instead of two: clients like kubectl connect often and use none.
  SSL_CTX_set_num_tickets(context.get(), 1);
  SSL_CTX_set_cert_cb(context.get(), ServeCertificate, const_cast<CertificateStore*>(&store));
  SSL_CTX_set_alpn_select_cb(context.get(), SelectHttp1, nullptr);
  return context;
}

}  // namespace sluice
