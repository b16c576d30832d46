// The TLS settings of the HTTPS server.
#ifndef SLUICE_WEBHOOK_SERVER_TLS_CONTEXT_H_
#define SLUICE_WEBHOOK_SERVER_TLS_CONTEXT_H_

#include <openssl/types.h>

#include <memory>

#include "webhook/certificates/key_pair.h"

namespace sluice::webhook {

struct FreeContext {
  void operator()(SSL_CTX* context) const;
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeContext>;

// A server context (TLS 1.2 and later, HTTP/1.1) that reads the pair from `store` at each handshake. The store must
// outlive it.
TlsContext MakeServerContext(const CertificateStore& store);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_SERVER_TLS_CONTEXT_H_
