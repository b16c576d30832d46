#include "hooklib/libraries/extents/lt.h"

#include <limits>

namespace sluice::libraries::lt {

namespace {

constexpr uint64_t kMaxElements = uint64_t{1} << 40;  // no dimension of a matrix in memory is larger
// A step to the next matrix of a batch, whose size in bytes does not overflow.
bool IsStride(int64_t elements) {
  constexpr int64_t kMaxStride = static_cast<int64_t>(kMaxElements) * 64;
  return elements <= kMaxStride && elements >= -kMaxStride;
}

uint64_t RoundUp(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
uint64_t Blocks(uint64_t n, uint64_t of) { return (n + of - 1) / of; }
// Whole bytes that hold so many bits.
int64_t Bytes(int64_t elements, uint64_t bits) {
  const auto wide = static_cast<__int128>(elements) * bits;
  return static_cast<int64_t>(wide >= 0 ? (wide + 7) / 8 : -((-wide + 7) / 8));
}

// Tiles of 32 columns. A tile's rows follow each other, in groups of `rows_per_tile` whose elements are shuffled.
void AddTiled(const Matrix& at, uint64_t bits, uint64_t rows_per_tile, Use use, AccessSet* set) {
  const Layout& l = at.layout;
  const uint64_t full = l.columns / 32, rest = l.columns % 32, rows = RoundUp(l.rows, rows_per_tile);
  const int64_t tile = Bytes(l.ld, bits), batch = Bytes(l.stride, bits);
  // The holes of a shuffled tile that is not full are not computed.
  if (use == Use::kOverwrite && (rows != l.rows || (rest && rows_per_tile > 1))) use = Use::kWrite;
  Region tiles = Region::Bytes(at.address, static_cast<uint64_t>(Bytes(static_cast<int64_t>(rows * 32), bits)));
  if (rest && rows_per_tile > 1) {
    tiles.AddDimension(full + 1, tile);
  } else {
    tiles.AddDimension(full, tile);
  }
  set->Add(tiles.AddDimension(static_cast<uint64_t>(l.batch), batch), use);
  if (!rest || rows_per_tile > 1) return;
  Region last = Region::Bytes(at.address + full * static_cast<uint64_t>(tile),
                              static_cast<uint64_t>(Bytes(static_cast<int64_t>(rest), bits)));
  last.AddDimension(rows, Bytes(32, bits)).AddDimension(static_cast<uint64_t>(l.batch), batch);
  set->Add(last, use);
}

void AddMatrix(const Matrix& at, Use use, AccessSet* set) {
  const Layout& l = at.layout;
  uint64_t bits = blas::BitsOf(l.type);
  if (l.batch_mode == kPointerArray) {
    set->Add(Region::Bytes(at.address, static_cast<uint64_t>(l.batch > 0 ? l.batch : 0) * 8), Use::kRead);
    return set->MarkUnknown(UnknownReason::kPointerArray);
  }
  if (l.rows == 0 || l.columns == 0 || l.batch == 0) return;
  if (at.address == 0) return set->MarkUnknown(UnknownReason::kNullOperand);
  if (bits == 0 || l.batch < 0 || l.batch_mode != kStrided || l.rows > kMaxElements || l.columns > kMaxElements ||
      l.ld < 0 || l.ld > static_cast<int64_t>(kMaxElements) || !IsStride(l.stride)) {
    return set->MarkUnknown(UnknownReason::kUnsupported);
  }
  if (l.order == kCol32) return AddTiled(at, bits, 1, use, set);
  if (l.order == kCol4_4R2_8C) return AddTiled(at, bits, 8, use, set);
  if (l.order == kCol32_2R_4R4) return AddTiled(at, bits, 32, use, set);
  if (l.order != kCol && l.order != kRow) return set->MarkUnknown(UnknownReason::kUnsupported);
  const uint64_t inner = l.order == kCol ? l.rows : l.columns, outer = l.order == kCol ? l.columns : l.rows;
  if (static_cast<uint64_t>(l.ld) < inner && outer > 1) return set->MarkUnknown(UnknownReason::kUnsupported);
  if (bits % 8 && use == Use::kOverwrite && (inner * bits % 8 || l.ld * static_cast<int64_t>(bits) % 8))
    use = Use::kWrite;
  if (l.plane) bits /= 2;
  for (const int64_t plane : {int64_t{0}, l.plane}) {
    Region region = Region::Bytes(at.address + static_cast<uint64_t>(plane),
                                  static_cast<uint64_t>(Bytes(static_cast<int64_t>(inner), bits)));
    region.AddDimension(outer, Bytes(l.ld, bits)).AddDimension(static_cast<uint64_t>(l.batch), Bytes(l.stride, bits));
    set->Add(region, use);
    if (!l.plane) break;
  }
}

// A vector of `length` elements for each of a batch.
void AddVector(uint64_t address, uint64_t length, uint64_t bits, int batch, int64_t stride, Use use, AccessSet* set) {
  if (!address || length > kMaxElements || batch <= 0) return;
  if (!IsStride(stride)) return set->MarkUnknown(UnknownReason::kUnsupported);
  Region region = Region::Bytes(address, static_cast<uint64_t>(Bytes(static_cast<int64_t>(length), bits)));
  set->Add(region.AddDimension(static_cast<uint64_t>(batch), Bytes(stride, bits)), use);
}

// Scale factors of a matrix: `inner` along the dimension that blocks divide. Block scales are padded to 128 x 4.
void AddScale(const Scale& scale, uint64_t outer, uint64_t inner, Use use, AccessSet* set) {
  if (!scale.address) return;
  if (outer > kMaxElements || inner > kMaxElements) return set->MarkUnknown(UnknownReason::kUnsupported);
  uint64_t bytes = 0;
  switch (scale.mode) {
    case kScalar32F:
      bytes = 4;
      break;
    case kVec16:
      bytes = RoundUp(outer, 128) * RoundUp(Blocks(inner, 16), 4);
      break;
    case kVec32:
      bytes = RoundUp(outer, 128) * RoundUp(Blocks(inner, 32), 4);
      break;
    case kOuterVec:
      bytes = outer * 4;
      break;
    case kVec128:
      bytes = outer * Blocks(inner, 128) * 4;
      break;
    case kBlock128:
      bytes = Blocks(outer, 128) * RoundUp(Blocks(inner, 128), 4) * 4;
      break;
    default:
      return set->MarkUnknown(UnknownReason::kUnsupported);
  }
  set->Add(Region::Bytes(scale.address, bytes), use);
}

void AddEpilogue(const Matmul& call, AccessSet* set) {
  const Layout& d = call.d.layout;
  const uint64_t d_bits = blas::BitsOf(d.type);
  const uint32_t e = call.epilogue;
  if (e & (kBias | kBiasGradient | kBgradA | kBgradB)) {
    // 8-bit results take a bias of their own type (16-bit float, or the scale type of integers).
    uint64_t bits = call.bias_type >= 0                       ? blas::BitsOf(call.bias_type)
                    : d.type == blas::CudaDataType::CUDA_R_8I ? 32
                    : d_bits < 16                             ? 16
                                                              : d_bits;
    AddVector(call.bias, e & kBgradB ? d.columns : d.rows, bits, d.batch, call.bias_stride,
              e & kBias ? Use::kRead : Use::kWrite, set);
  }
  if (!(e & kAux) || !call.aux) return;
  const Use use = e & (kDrelu | kDgelu) ? Use::kRead : Use::kWrite;
  Matrix aux{call.aux, d};
  aux.layout.order = kCol;
  aux.layout.plane = 0;
  aux.layout.ld = call.aux_ld;
  aux.layout.stride = call.aux_stride;
  if (e & (kRelu | kDrelu)) {  // a bit for each element; ld and stride count bits
    if (call.aux_ld < 0 || d.rows > kMaxElements || d.columns > kMaxElements || d.batch < 0)
      return set->MarkUnknown(UnknownReason::kUnsupported);
    Region bits = Region::Bytes(call.aux, (d.rows + 7) / 8);
    set->Add(
        bits.AddDimension(d.columns, call.aux_ld / 8).AddDimension(static_cast<uint64_t>(d.batch), call.aux_stride / 8),
        use);
  } else {
    if (call.aux_type >= 0) aux.layout.type = call.aux_type;
    AddMatrix(aux, use, set);
  }
}

// Each matrix of a batch has its own vector of alpha, `stride` elements behind the one before, unless the mode gives
// one factor to all.
void AddScalars(int mode, uint64_t alpha, uint64_t beta, uint64_t bytes, uint64_t rows, int batch, int64_t stride,
                AccessSet* set) {
  const uint64_t vector = mode == kDevice ? 1 : rows;
  const bool one = mode == kDevice || mode == kAlphaVectorBetaZero || stride == 0;
  if (mode != kHost) AddVector(alpha, vector, bytes * 8, one ? 1 : batch, one ? 0 : stride, Use::kRead, set);
  if ((mode == kDevice || mode == kDeviceVector) && beta) set->Add(Region::Bytes(beta, bytes * vector), Use::kRead);
}

}  // namespace

void Describe(const Matmul& call, AccessSet* set) {
  const Layout& d = call.d.layout;
  if (d.rows > kMaxElements || d.columns > kMaxElements || call.pointer_mode < kHost ||
      call.pointer_mode > kAlphaVectorBetaHost || call.epilogue & ~kKnownEpilogues) {
    return set->MarkUnknown(UnknownReason::kUnsupported);
  }
  AddScalars(call.pointer_mode, call.alpha, call.beta, call.scalar_bytes, d.rows, d.batch, call.alpha_stride, set);
  AddMatrix(call.a, Use::kRead, set);
  AddMatrix(call.b, Use::kRead, set);
  const bool beta_zero = call.beta_zero || call.pointer_mode == kAlphaVectorBetaZero;
  if (!beta_zero) AddMatrix(call.c, Use::kRead, set);
  const Layout& a = call.a.layout;
  const uint64_t k = call.transa == blas::kN ? a.columns : a.rows;
  AddMatrix(call.d, k ? Use::kOverwrite : Use::kWrite, set);
  AddEpilogue(call, set);
  AddScale(call.scale_a, d.rows, k, Use::kRead, set);
  AddScale(call.scale_b, d.columns, k, Use::kRead, set);
  AddScale(call.scale_c, d.columns, d.rows, Use::kRead, set);
  AddScale(call.scale_d, d.columns, d.rows, Use::kRead, set);
  AddScale(call.scale_out, d.columns, d.rows, Use::kWrite, set);
  AddScale(call.scale_aux, d.columns, d.rows, Use::kRead, set);
  set->AddOptional(Region::Bytes(call.amax, 4), Use::kWrite);
  set->AddOptional(Region::Bytes(call.aux_amax, 4), Use::kWrite);
  set->AddOptional(Region::Bytes(call.workspace, call.workspace_bytes), Use::kScratch);
}

void Describe(const Transform& call, AccessSet* set) {
  set->MarkStreaming();
  if (call.pointer_mode != kHost && call.pointer_mode != kDevice) return set->MarkUnknown(UnknownReason::kUnsupported);
  AddScalars(call.pointer_mode, call.alpha, call.beta, call.scalar_bytes, 1, 1, 0, set);
  if (call.a.address) AddMatrix(call.a, Use::kRead, set);
  if (call.b.address && !call.beta_zero) AddMatrix(call.b, Use::kRead, set);
  AddMatrix(call.c, Use::kOverwrite, set);
}

}  // namespace sluice::libraries::lt
