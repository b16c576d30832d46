// The TLS settings of the HTTPS server.
#ifndef SLUICE_COMMON_TLS_TLS_CONTEXT_H_
#define SLUICE_COMMON_TLS_TLS_CONTEXT_H_

#include <openssl/types.h>

#include <memory>

#include "common/tls/key_pair.h"

namespace sluice {

struct FreeContext {
  void operator()(SSL_CTX* context) const;
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeContext>;

// A server context (TLS 1.2 and later, HTTP/1.1) that reads the pair from `store` at each handshake. The store must
// outlive it.
TlsContext MakeServerContext(const CertificateStore& store);

}  // namespace sluice

#endif  // SLUICE_COMMON_TLS_TLS_CONTEXT_H_
