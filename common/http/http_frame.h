// Finds the end of one HTTP/1.1 request without parsing its contents. Internal to common/http.
#ifndef SLUICE_COMMON_HTTP_HTTP_FRAME_H_
#define SLUICE_COMMON_HTTP_HTTP_FRAME_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::http {

struct Frame {
  enum class State { kIncomplete, kComplete, kRefused } state = State::kIncomplete;
  size_t total = 0;             // bytes of the whole request; 0: the header is incomplete
  size_t header = 0;            // bytes of the header with its empty line; 0: the header is incomplete
  std::string_view target;      // of the request line, into the bytes; set in kComplete
  bool wants_continue = false;  // Expect: 100-continue
  bool close = false;           // the client's last request
  size_t cut_bytes = 0;         // of the body's end, which is not kept; `total` is without them
  std::string_view length;      // the value of Content-Length, into the bytes
  int status = 0;               // kRefused
  const char* reason = "";
};

struct FrameLimits {
  size_t max_header_bytes;
  size_t max_body_bytes;
  size_t max_cut_body_bytes;  // of a longer body the first kCutBodyBytes are kept; 0: it is refused
};

inline constexpr size_t kCutBodyBytes = 64 << 10;

// Refuses requests that two parsers could read differently: a chunked body, a repeated Content-Length, a folded header.
Frame ReadFrame(std::string_view bytes, const FrameLimits& limits);

// Says in the header that the body's kept part is the whole body. `frame` was read from `bytes`.
void CutBody(std::string& bytes, const Frame& frame);

}  // namespace sluice::http

#endif  // SLUICE_COMMON_HTTP_HTTP_FRAME_H_
