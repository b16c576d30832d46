#include "packed.h"

#include <absl/strings/str_cat.h>
#include <zstd.h>

#include <memory>
#include <vector>

namespace sluice::trace {

bool IsPacked(std::string_view bytes) { return bytes.starts_with("\x28\xb5\x2f\xfd"); }

absl::StatusOr<std::string> Unpack(std::string_view packed, const std::string& name) {
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  std::string out;
  std::vector<char> piece(ZSTD_DStreamOutSize());
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  while (true) {
    ZSTD_outBuffer to{piece.data(), piece.size(), 0};
    const size_t before = in.pos;
    const size_t rc = ZSTD_decompressStream(context.get(), &to, &in);
    if (ZSTD_isError(rc)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": byte ", in.pos, ": zstd: ", ZSTD_getErrorName(rc)));
    }
    out.append(piece.data(), to.pos);
    if (out.size() > kMaxUnpackedBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": unpacks to more than ", kMaxUnpackedBytes >> 30, " GiB: not a trace"));
    }
    if (to.pos == 0 && (in.pos == packed.size() || in.pos == before)) return out;
  }
}

absl::StatusOr<std::string> Pack(std::string_view bytes, const std::string& name, int level) {
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  const size_t n = ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), level);
  if (ZSTD_isError(n)) return absl::InternalError(absl::StrCat(name, ": zstd: ", ZSTD_getErrorName(n)));
  packed.resize(n);
  return packed;
}

}  // namespace sluice::trace
