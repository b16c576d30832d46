#include "common/http/http_frame.h"

#include <algorithm>
#include <charconv>

namespace sluice::http {
namespace {

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](unsigned char x, unsigned char y) {
           return (x >= 'A' && x <= 'Z' ? x + 32 : x) == (y >= 'A' && y <= 'Z' ? y + 32 : y);
         });
}

std::string_view Trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

Frame Refuse(int status, const char* reason) {
  Frame f;
  f.state = Frame::State::kRefused;
  f.status = status;
  f.reason = reason;
  return f;
}

}  // namespace

Frame ReadFrame(std::string_view bytes, const FrameLimits& limits) {
  Frame f;
  const size_t end = bytes.substr(0, limits.max_header_bytes).find("\r\n\r\n");
  if (end == std::string_view::npos) {
    return bytes.size() >= limits.max_header_bytes ? Refuse(431, "the header is too long") : f;
  }
  f.header = end + 4;
  bool has_length = false;
  size_t length = 0;
  std::string_view lines = bytes.substr(0, end + 2);
  const size_t first = lines.find("\r\n");
  constexpr std::string_view kVersion = " HTTP/1.1", kOldVersion = " HTTP/1.0";
  std::string_view request = lines.substr(0, first);
  if (!request.ends_with(kVersion)) {
    if (!request.ends_with(kOldVersion)) return Refuse(400, "the request is not HTTP/1.1");
    f.close = true;
  }
  request.remove_suffix(kVersion.size());
  f.target = request.substr(request.find(' ') + 1);
  for (lines.remove_prefix(first + 2); !lines.empty();) {
    const size_t line_end = lines.find("\r\n");
    const std::string_view line = lines.substr(0, line_end);
    lines.remove_prefix(line_end + 2);
    const size_t colon = line.find(':');
    // Parsers differ about a folded line and about a name with blanks.
    if (colon == std::string_view::npos || colon == 0 ||
        line.substr(0, colon).find_first_of(" \t\n\r") != std::string_view::npos ||
        line.find('\n') != std::string_view::npos) {
      return Refuse(400, "a header line is malformed");
    }
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = Trim(line.substr(colon + 1));
    if (EqualsIgnoringCase(name, "content-length")) {
      const auto [p, e] = std::from_chars(value.data(), value.data() + value.size(), length);
      if (has_length || e != std::errc{} || p != value.data() + value.size())
        return Refuse(400, "Content-Length is malformed");
      has_length = true;
      f.length = value;
    } else if (EqualsIgnoringCase(name, "transfer-encoding")) {
      return Refuse(411, "a chunked body is not accepted; accepted: a body with Content-Length");
    } else if (EqualsIgnoringCase(name, "content-encoding") && !EqualsIgnoringCase(value, "identity")) {
      return Refuse(415, "a compressed body is not accepted");
    } else if (EqualsIgnoringCase(name, "range")) {
      // The library would make a copy of the reply for each of thousands of ranges.
      return Refuse(416, "ranges are not accepted");
    } else if (EqualsIgnoringCase(name, "expect")) {
      if (!EqualsIgnoringCase(value, "100-continue")) return Refuse(417, "this expectation is not met");
      f.wants_continue = true;
    } else if (EqualsIgnoringCase(name, "connection") && EqualsIgnoringCase(value, "close")) {
      f.close = true;
    }
  }
  if (length > limits.max_body_bytes) {
    if (length > limits.max_cut_body_bytes) return Refuse(413, "the body is too large");
    f.cut_bytes = length - kCutBodyBytes;
  }
  f.total = f.header + length - f.cut_bytes;
  if (bytes.size() >= f.total) f.state = Frame::State::kComplete;
  return f;
}

void CutBody(std::string& bytes, const Frame& frame) {
  const std::string kept = std::to_string(kCutBodyBytes);
  const size_t at = static_cast<size_t>(frame.length.data() - bytes.data());
  bytes.replace(at, frame.length.size(), std::string(frame.length.size() - kept.size(), '0') + kept);
}

}  // namespace sluice::http
