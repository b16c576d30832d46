#include "hooklib/libraries/extents/tensor.h"

#include <algorithm>

namespace sluice::libraries {

namespace {

// Elements smaller than a byte: only a dimension of stride 1 packs them, and the other dimensions step whole bytes. Any
// other layout counts as one piece from the first to the last bit.
bool AddPacked(uint64_t address, const Tensor& tensor, uint64_t bits, Use use, AccessSet* set) {
  __int128 last = 0;
  int inner = -1;
  bool aligned = true;
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.strides[d] < 0) return set->MarkUnknown(UnknownReason::kUnsupported), false;
    const __int128 steps = static_cast<__int128>(tensor.dims[d] - 1) * tensor.strides[d];
    if (steps > __int128{1} << 62) return set->MarkUnknown(UnknownReason::kUnsupported), false;
    last += steps * bits;
    if (tensor.strides[d] == 1 && tensor.dims[d] > 1 && inner < 0) {
      inner = d;
    } else if (tensor.dims[d] > 1 && tensor.strides[d] * static_cast<__int128>(bits) % 8) {
      aligned = false;
    }
  }
  if (last > __int128{1} << 62) return set->MarkUnknown(UnknownReason::kUnsupported), false;
  const uint64_t row = inner < 0 ? bits : static_cast<uint64_t>(tensor.dims[inner]) * bits;
  if (use == Use::kOverwrite && (row % 8 || !aligned)) use = Use::kWrite;
  if (!aligned) {
    set->Add(Region::Bytes(address, static_cast<uint64_t>((last + bits + 7) / 8)), use);
    return true;
  }
  Region region = Region::Bytes(address, (row + 7) / 8);
  for (int d = 0; d < tensor.rank; ++d) {
    if (d == inner) continue;
    region.AddDimension(static_cast<uint64_t>(tensor.dims[d]),
                        static_cast<int64_t>(static_cast<__int128>(tensor.strides[d]) * bits / 8));
  }
  set->Add(region, use);
  return true;
}

}  // namespace

bool AddTensor(uint64_t address, const Tensor& tensor, Use use, AccessSet* set) {
  if (tensor.bits == 0 || tensor.rank < 0 || tensor.rank > Tensor::kMaxRank || tensor.vector < 1 ||
      tensor.vector > 1 << 20) {
    return set->MarkUnknown(UnknownReason::kUnsupported), false;
  }
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.dims[d] < 0) return set->MarkUnknown(UnknownReason::kUnsupported), false;
  }
  if (std::any_of(tensor.dims.begin(), tensor.dims.begin() + tensor.rank, [](int64_t n) { return n == 0; }))
    return true;
  if (address == 0) return set->MarkUnknown(UnknownReason::kNullOperand), false;
  if (!tensor.exact && use == Use::kOverwrite) use = Use::kWrite;
  const uint64_t bits = static_cast<uint64_t>(tensor.bits) * static_cast<uint64_t>(tensor.vector);
  if (bits % 8) return AddPacked(address, tensor, bits, use, set);
  Region region = Region::Bytes(address, bits / 8);
  for (int d = 0; d < tensor.rank; ++d) {
    int64_t step;
    if (__builtin_mul_overflow(tensor.strides[d], static_cast<int64_t>(bits / 8), &step))
      return set->MarkUnknown(UnknownReason::kUnsupported), false;
    region.AddDimension(static_cast<uint64_t>(tensor.dims[d]), step);
  }
  set->Add(region, use);
  return true;
}

uint32_t TensorBits(int type) {
  switch (type) {
#define SLUICE_CUDNN_DATA_TYPE(name, number, bits) \
  case number: /* CUDNN_DATA_##name */             \
    return bits;
#include "hooklib/libraries/cudnn_attributes.def"
    default:
      return 0;
  }
}

}  // namespace sluice::libraries
