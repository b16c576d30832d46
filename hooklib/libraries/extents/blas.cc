#include "hooklib/libraries/extents/blas.h"

#include <algorithm>
#include <limits>

namespace sluice::libraries::blas {

namespace {

bool Negative(std::initializer_list<int64_t> sizes) {
  return std::any_of(sizes.begin(), sizes.end(), [](int64_t n) { return n < 0; });
}

// Elements to bytes; false on overflow, which no memory can back.
bool Times(int64_t count, uint64_t bytes, int64_t* out) {
  return !__builtin_mul_overflow(count, static_cast<int64_t>(bytes), out);
}

// A matrix of rows x columns, once for each of a batch. cuBLAS refuses a leading dimension smaller than the rows.
void AddMatrix(const Operand& at, int64_t rows, int64_t columns, int64_t batch, Use use, AccessSet* set) {
  if (rows == 0 || columns == 0 || batch == 0) return;
  int64_t run, column, stride;
  if (at.bytes == 0 || at.ld < rows || !Times(rows, at.bytes, &run) || !Times(at.ld, at.bytes, &column) ||
      !Times(at.stride, at.bytes, &stride)) {
    return set->MarkUnknown(UnknownReason::kUnsupported);
  }
  Region region = Region::Bytes(at.address, static_cast<uint64_t>(run));
  region.AddDimension(static_cast<uint64_t>(columns), column).AddDimension(static_cast<uint64_t>(batch), stride);
  set->Add(region, use);
}

// BLAS walks a vector with a negative increment from its far end: the same bytes.
void AddVector(const Operand& at, int64_t length, int64_t batch, Use use, AccessSet* set) {
  if (length == 0 || batch == 0) return;
  int64_t step, stride;
  if (at.bytes == 0 || at.ld == 0 || at.ld == std::numeric_limits<int64_t>::min() ||
      !Times(at.ld < 0 ? -at.ld : at.ld, at.bytes, &step) || !Times(at.stride, at.bytes, &stride)) {
    return set->MarkUnknown(UnknownReason::kUnsupported);
  }
  Region region = Region::Bytes(at.address, at.bytes);
  region.AddDimension(static_cast<uint64_t>(length), step).AddDimension(static_cast<uint64_t>(batch), stride);
  set->Add(region, use);
}

// The triangle of an n x n matrix; without its diagonal where the call assumes ones there.
void AddTriangle(const Operand& at, int uplo, bool diagonal, int64_t n, Use use, AccessSet* set) {
  if (n == 0) return;
  if (uplo != kLower && uplo != kUpper) return set->MarkUnknown(UnknownReason::kUnsupported);
  int64_t size, column;
  if (at.bytes == 0 || at.ld < n || !Times(n, at.bytes, &size) || !Times(at.ld, at.bytes, &column) ||
      column > std::numeric_limits<int64_t>::max() - static_cast<int64_t>(at.bytes)) {
    return set->MarkUnknown(UnknownReason::kUnsupported);
  }
  const auto element = static_cast<int64_t>(at.bytes);
  const uint64_t skipped = diagonal ? 0 : at.bytes;
  Region region;
  if (uplo == kLower) {
    region = {at.address + skipped, static_cast<uint64_t>(size) - skipped, -element, 0, {}};
    column += element;
  } else {
    region = {at.address, at.bytes - skipped, element, 0, {}};
  }
  if (at.address == 0) return set->MarkUnknown(UnknownReason::kNullOperand);
  region.AddDimension(static_cast<uint64_t>(n), column);
  set->Add(region, use);
}

void AddScalar(const Scalar& scalar, AccessSet* set) {
  if (scalar.device) set->Add(Region::Bytes(scalar.device, scalar.bytes), Use::kRead);
}

Use Output(const Scalar& beta) { return beta.zero && !beta.device ? Use::kOverwrite : Use::kUpdate; }

bool Transposed(int op) { return op != kN; }
bool IsOp(int op) { return op == kN || op == kT || op == kC; }

}  // namespace

void Describe(const Gemm& call, AccessSet* set) {
  if (Negative({call.m, call.n, call.k, call.batch}) || !IsOp(call.transa) || !IsOp(call.transb))
    return set->MarkUnknown(UnknownReason::kUnsupported);
  if (call.m == 0 || call.n == 0 || call.batch == 0) return;
  AddScalar(call.alpha, set);
  AddScalar(call.beta, set);
  if (call.k > 0) {
    const bool ta = Transposed(call.transa), tb = Transposed(call.transb);
    AddMatrix(call.a, ta ? call.k : call.m, ta ? call.m : call.k, call.batch, Use::kRead, set);
    AddMatrix(call.b, tb ? call.n : call.k, tb ? call.k : call.n, call.batch, Use::kRead, set);
  }
  // With k = 0 the result is beta C; whether a kernel writes it then is not documented.
  const Use use = Output(call.beta);
  AddMatrix(call.c, call.m, call.n, call.batch, call.k == 0 && use == Use::kOverwrite ? Use::kWrite : use, set);
}

void Describe(const BatchedGemm& call, AccessSet* set) {
  if (call.batch < 0) return set->MarkUnknown(UnknownReason::kUnsupported);
  if (call.batch == 0 || call.one.m == 0 || call.one.n == 0) return;
  const auto batch = static_cast<size_t>(call.batch);
  for (const PointerArray* array : {&call.a, &call.b, &call.c}) {
    set->Add(Region::Bytes(array->address, batch * 8), Use::kRead);
    if (array->seen.size() < batch) set->MarkUnknown(UnknownReason::kPointerArray);
  }
  set->MarkAssumed();  // a kernel may have changed the pointers since the last copy from the host
  if (!set->known()) return;
  Gemm one = call.one;
  one.batch = 1;
  for (size_t i = 0; i < batch && set->known(); ++i) {
    one.a.address = call.a.seen[i];
    one.b.address = call.b.seen[i];
    one.c.address = call.c.seen[i];
    Describe(one, set);
  }
}

void Describe(const Gemv& call, AccessSet* set) {
  if (Negative({call.m, call.n, call.batch}) || !IsOp(call.trans)) return set->MarkUnknown(UnknownReason::kUnsupported);
  if (call.m == 0 || call.n == 0 || call.batch == 0) return;
  set->MarkStreaming();
  AddScalar(call.alpha, set);
  AddScalar(call.beta, set);
  AddMatrix(call.a, call.m, call.n, call.batch, Use::kRead, set);
  const bool t = Transposed(call.trans);
  AddVector(call.x, t ? call.m : call.n, call.batch, Use::kRead, set);
  AddVector(call.y, t ? call.n : call.m, call.batch, Output(call.beta), set);
}

void Describe(const Triangular& call, AccessSet* set) {
  if (Negative({call.m, call.n}) || (call.side != kLeft && call.side != kRight))
    return set->MarkUnknown(UnknownReason::kUnsupported);
  if (call.m == 0 || call.n == 0) return;
  AddScalar(call.alpha, set);
  AddTriangle(call.a, call.uplo, call.diag != kUnit, call.side == kLeft ? call.m : call.n, Use::kRead, set);
  AddMatrix(call.b, call.m, call.n, 1, call.in_place ? Use::kUpdate : Use::kRead, set);
  if (!call.in_place) AddMatrix(call.c, call.m, call.n, 1, Use::kOverwrite, set);
}

void Describe(const BatchedTrsm& call, AccessSet* set) {
  if (call.batch < 0) return set->MarkUnknown(UnknownReason::kUnsupported);
  if (call.batch == 0 || call.one.m == 0 || call.one.n == 0) return;
  const auto batch = static_cast<size_t>(call.batch);
  for (const PointerArray* array : {&call.a, &call.b}) {
    set->Add(Region::Bytes(array->address, batch * 8), Use::kRead);
    if (array->seen.size() < batch) set->MarkUnknown(UnknownReason::kPointerArray);
  }
  if (!set->known()) return;
  Triangular one = call.one;
  for (size_t i = 0; i < batch && set->known(); ++i) {
    one.a.address = call.a.seen[i];
    one.b.address = call.b.seen[i];
    Describe(one, set);
  }
}

void Describe(const Symm& call, AccessSet* set) {
  if (Negative({call.m, call.n}) || (call.side != kLeft && call.side != kRight))
    return set->MarkUnknown(UnknownReason::kUnsupported);
  if (call.m == 0 || call.n == 0) return;
  AddScalar(call.alpha, set);
  AddScalar(call.beta, set);
  AddTriangle(call.a, call.uplo, true, call.side == kLeft ? call.m : call.n, Use::kRead, set);
  AddMatrix(call.b, call.m, call.n, 1, Use::kRead, set);
  AddMatrix(call.c, call.m, call.n, 1, Output(call.beta), set);
}

void Describe(const Syrk& call, AccessSet* set) {
  if (Negative({call.n, call.k}) || !IsOp(call.trans)) return set->MarkUnknown(UnknownReason::kUnsupported);
  if (call.n == 0) return;
  AddScalar(call.alpha, set);
  AddScalar(call.beta, set);
  const bool t = Transposed(call.trans);
  if (call.k > 0) {
    AddMatrix(call.a, t ? call.k : call.n, t ? call.n : call.k, 1, Use::kRead, set);
    if (call.two) AddMatrix(call.b, t ? call.k : call.n, t ? call.n : call.k, 1, Use::kRead, set);
  }
  const Use use = Output(call.beta);
  AddTriangle(call.c, call.uplo, true, call.n, call.k == 0 && use == Use::kOverwrite ? Use::kWrite : use, set);
}

void Describe(const Geam& call, AccessSet* set) {
  if (Negative({call.m, call.n}) || !IsOp(call.transa) || !IsOp(call.transb))
    return set->MarkUnknown(UnknownReason::kUnsupported);
  if (call.m == 0 || call.n == 0) return;
  set->MarkStreaming();
  AddScalar(call.alpha, set);
  AddScalar(call.beta, set);
  auto input = [&](const Operand& at, int op) {
    AddMatrix(at, Transposed(op) ? call.n : call.m, Transposed(op) ? call.m : call.n, 1, Use::kRead, set);
  };
  // By the documentation a matrix whose factor is zero need not be valid.
  if (!call.alpha.zero || call.alpha.device) input(call.a, call.transa);
  if (!call.beta.zero || call.beta.device) input(call.b, call.transb);
  AddMatrix(call.c, call.m, call.n, 1, Use::kOverwrite, set);
}

void Describe(const Dgmm& call, AccessSet* set) {
  if (Negative({call.m, call.n}) || (call.side != kLeft && call.side != kRight))
    return set->MarkUnknown(UnknownReason::kUnsupported);
  if (call.m == 0 || call.n == 0) return;
  set->MarkStreaming();
  AddMatrix(call.a, call.m, call.n, 1, Use::kRead, set);
  AddVector(call.x, call.side == kLeft ? call.m : call.n, 1, Use::kRead, set);
  AddMatrix(call.c, call.m, call.n, 1, Use::kOverwrite, set);
}

uint64_t BitsOf(int type) {
  switch (type) {
#define SLUICE_CUDA_DATA_TYPE(name, number, bits) \
  case number: /* CUDA_##name */                  \
    return bits;
#include "hooklib/libraries/cuda_data_types.def"
    default:
      return 0;
  }
}

uint64_t BytesOf(int type) { return BitsOf(type) % 8 ? 0 : BitsOf(type) / 8; }

}  // namespace sluice::libraries::blas
