#include "hooklib/engine/device/array_bytes.h"

#include <algorithm>

namespace sluice {

namespace {

bool IsBlockCompressed(CUarray_format format) {
  return format >= CU_AD_FORMAT_BC1_UNORM && format <= CU_AD_FORMAT_BC7_UNORM_SRGB;
}

// Of all channels. A format that this engine does not know counts as four bytes a channel.
uint64_t BitsPerTexel(CUarray_format format, unsigned channels) {
  const uint64_t each = channels ? channels : 1;
  switch (static_cast<int>(format)) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 8 * each;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 16 * each;
    // Blocks of 4 x 4 texels have 8 or 16 bytes.
    case CU_AD_FORMAT_BC1_UNORM:
    case CU_AD_FORMAT_BC1_UNORM_SRGB:
    case CU_AD_FORMAT_BC4_UNORM:
    case CU_AD_FORMAT_BC4_SNORM:
      return 4;
    // These formats name their channels.
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1:
      return 8;
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1:
      return 16;
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X4:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_UNORM_INT_101010_2:
      return 32;
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4:
      return 64;
    // Video: a luma sample a texel, and chroma for 4, 2 or 1 of them.
    case CU_AD_FORMAT_NV12:
      return 12;
    case CU_AD_FORMAT_NV16:
    case CU_AD_FORMAT_YUY2:
      return 16;
    case CU_AD_FORMAT_P010:
    case CU_AD_FORMAT_P016:
      return 24;
    case CU_AD_FORMAT_P210:
    case CU_AD_FORMAT_P216:
    case CU_AD_FORMAT_Y210:
    case CU_AD_FORMAT_Y216:
    case CU_AD_FORMAT_AYUV:
    case CU_AD_FORMAT_Y410:
      return 32;
    case CU_AD_FORMAT_Y416:
      return 64;
    default:
      return IsBlockCompressed(format) ? 8 : 32 * each;
  }
}

// One level of so many texels; 0: more than an address can name.
uint64_t LevelBytes(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned level) {
  const uint64_t unit = IsBlockCompressed(shape.Format) ? 4 : 1;
  // Layers and the faces of a cube map do not shrink with the levels.
  const bool is_layered = shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  const auto texels = [&](uint64_t side, uint64_t round) {
    const uint64_t shrunk = std::max<uint64_t>(side >> std::min(level, 63U), 1);
    return shrunk > UINT64_MAX - round ? UINT64_MAX : (shrunk + round - 1) / round * round;
  };
  const uint64_t width = texels(shape.Width, unit), height = texels(shape.Height, shape.Height ? unit : 1);
  const uint64_t depth = is_layered ? std::max<uint64_t>(shape.Depth, 1) : texels(shape.Depth, 1);
  uint64_t bits = BitsPerTexel(shape.Format, shape.NumChannels);
  for (const uint64_t side : {width, height, depth}) {
    if (__builtin_mul_overflow(bits, side, &bits)) return 0;
  }
  return bits / 8;
}

}  // namespace

uint64_t ArrayBytes(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels) {
  if (shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 0;
  constexpr unsigned kMaxLevels = 64;
  uint64_t bytes = 0;
  for (unsigned level = 0; level < std::clamp(levels, 1U, kMaxLevels); ++level) {
    const uint64_t more = LevelBytes(shape, level);
    if (!more || __builtin_add_overflow(bytes, more, &bytes)) return 0;
    if ((std::max({shape.Width, shape.Height, shape.Depth}) >> level) <= 1) break;  // the driver makes no more
  }
  return bytes;
}

uint64_t ElementBytes(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  switch (shape.Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return BitsPerTexel(shape.Format, shape.NumChannels) / 8;
    default:
      return 0;
  }
}

}  // namespace sluice
