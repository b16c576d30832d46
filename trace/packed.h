// The zstd form of a trace.
#ifndef SLUICE_TRACE_PACKED_H_
#define SLUICE_TRACE_PACKED_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::trace {

// A trace is tens of MiB; a larger file is refused.
inline constexpr size_t kMaxUnpackedBytes = size_t{4} << 30;

// Whether `bytes` begin as a zstd stream does.
bool IsPacked(std::string_view bytes);

// The unpacked bytes of a zstd stream; a stream that ends early gives the bytes before its end. InvalidArgument, with
// `name` and the byte, where the stream is damaged or unpacks to more than kMaxUnpackedBytes.
absl::StatusOr<std::string> Unpack(std::string_view packed, const std::string& name);

// `bytes` as one zstd frame; level 1..19.
absl::StatusOr<std::string> Pack(std::string_view bytes, const std::string& name, int level);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_PACKED_H_
