// Finds where one HTTP/1.1 request ends, without looking at what it says. Internal to webhook/.
#ifndef SLUICE_WEBHOOK_SERVER_HTTP_FRAME_H_
#define SLUICE_WEBHOOK_SERVER_HTTP_FRAME_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::webhook {

struct Frame {
  enum class State { kIncomplete, kComplete, kRefused } state = State::kIncomplete;
  size_t total = 0;             // bytes of the whole request, once the header is there
  size_t header = 0;            // bytes of the header with its empty line; 0: not there yet
  bool wants_continue = false;  // Expect: 100-continue
  bool close = false;           // the client asks for no further request
  int status = 0;               // kRefused
  const char* reason = "";
};

struct FrameLimits {
  size_t header_bytes;
  size_t body_bytes;
};

Frame ReadFrame(std::string_view bytes, const FrameLimits& limits);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_SERVER_HTTP_FRAME_H_
