#include "common/http/http_server.h"

namespace sluice {

HttpOptions HttpOptions::ForMetrics() {
  HttpOptions o;
  o.requests_per_s = 50;
  o.probe_paths = {"/healthz", "/readyz"};
  o.max_connections = 64;
  o.max_connections_per_client = 32;
  o.max_work_per_client = 8;
  o.max_header_bytes = 8 << 10;
  o.max_body_bytes = 1 << 10;
  o.max_buffered_bytes = 1 << 20;
  o.max_unread_bytes = 16 << 20;
  return o;
}

}  // namespace sluice
