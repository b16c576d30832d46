// Random cuDNN tensors and operation graphs against the oracle.
#include "hooklib/libraries/extents/graph.h"
#include "test/libraries/oracle.h"

namespace sluice::libraries {
namespace {

using test::Bytes;
using test::Judge;
using test::Random;
using test::Touched;

Tensor Make(Random& r, bool packed_bits) {
  Tensor t;
  constexpr uint32_t kBits[] = {8, 16, 32, 64, 4};
  t.bits = kBits[r.In(0, packed_bits ? 4 : 3)];
  t.rank = static_cast<int>(r.In(1, 5));
  int64_t step = 1;
  for (int d = t.rank - 1; d >= 0; --d) {
    t.dims[d] = r.In(1, 4);
    t.strides[d] = step;
    step *= t.dims[d];
    if (r.OneIn(4)) step += r.In(0, 3);
  }
  if (r.OneIn(3)) std::swap(t.strides[0], t.strides[t.rank - 1]);  // channels last, and unusual orders
  if (r.OneIn(4) && t.bits >= 8) t.strides[r.In(0, t.rank - 1)] *= -1;
  if (r.OneIn(8)) t.strides[r.In(0, t.rank - 1)] = 0;  // broadcast
  if (r.OneIn(4)) t.vector = 4;
  return t;
}

template <typename Visit>
void Each(uint64_t address, const Tensor& t, Visit visit) {
  std::array<int64_t, Tensor::kMaxRank> at{};
  const auto bits = static_cast<int64_t>(t.bits) * t.vector;
  for (;;) {
    int64_t offset = 0;
    for (int d = 0; d < t.rank; ++d) offset += at[d] * t.strides[d];
    const int64_t first = offset * bits;
    visit(address + static_cast<uint64_t>(first / 8), static_cast<uint64_t>((first % 8 + bits + 7) / 8));
    int d = 0;
    while (d < t.rank && ++at[d] == t.dims[d]) at[d++] = 0;
    if (d == t.rank) break;
  }
}

TEST_CASE("the set of a strided or vectorised tensor holds exactly its bytes: 150,000 tensors") {
  Random r(41);
  Touched truth;
  Judge judge;
  AccessSet exact(0, SIZE_MAX), coarse(96, 3);
  int checked = 0;
  for (int round = 0; round < 150000; ++round) {
    truth.Clear();
    const Tensor t = Make(r, true);
    const uint64_t address = Bytes::kBase + 32768;
    const Use use = r.OneIn(2) ? Use::kRead : Use::kOverwrite;
    Each(address, t, [&](uint64_t at, uint64_t bytes) {
      if (use == Use::kRead) {
        truth.Read(at, bytes);
      } else {
        truth.Write(at, bytes);
      }
    });
    if (!truth.inside) continue;
    ++checked;
    const bool whole_bytes = t.bits * static_cast<uint64_t>(t.vector) % 8 == 0;
    for (AccessSet* set : {&exact, &coarse}) {
      set->Clear();
      if (!AddTensor(address, t, use, set)) FAIL("a valid tensor has an incomplete set");
      set->Close();
      const std::string wrong = judge(*set, truth, set == &exact && whole_bytes, whole_bytes);
      if (!wrong.empty()) FAIL(wrong << " in round " << round);
    }
  }
  CHECK(checked > 145000);
}

TEST_CASE("the set of an operation graph holds exactly the bytes that it touches: 60,000 executions") {
  Random r(42);
  Touched truth;
  Judge judge;
  AccessSet exact(0, SIZE_MAX);
  std::vector<int64_t> ids;
  std::vector<uint64_t> pointers;
  int checked = 0;
  for (int round = 0; round < 60000; ++round) {
    truth.Clear();
    ids.clear(), pointers.clear();
    OperationGraph graph;
    bool overwrites = true;
    const int64_t count = r.In(1, 6);
    for (int64_t id = 0; id < count; ++id) {
      GraphTensor tensor{100 + id * 7, {}};
      for (uint64_t span = UINT64_MAX; span > 8900;) {  // so that tensors do not overlap
        tensor.tensor = Make(r, false);
        span = 0;
        for (int64_t& stride : tensor.tensor.strides) stride = std::abs(stride);
        Each(0, tensor.tensor, [&](uint64_t at, uint64_t bytes) { span = std::max(span, at + bytes); });
      }
      tensor.is_virtual = r.OneIn(4);
      tensor.by_value = !tensor.is_virtual && r.OneIn(8);
      OperandUse use{r.OneIn(2), false};
      use.written = !use.read || r.OneIn(6);
      graph.Add(tensor, {use.read, false});
      graph.Add(tensor, {false, use.written});  // two operations name it
      const uint64_t pointer = Bytes::kBase + 9000 * static_cast<uint64_t>(id) + 64;
      if (!tensor.is_virtual || r.OneIn(2)) {  // some programs pass a pointer for virtual tensors as well
        ids.push_back(tensor.id);
        pointers.push_back(pointer);
      }
      if (tensor.is_virtual || tensor.by_value) continue;
      Each(pointer, tensor.tensor, [&](uint64_t at, uint64_t bytes) {
        if (use.read) truth.Read(at, bytes);
        if (use.written) truth.Write(at, bytes);
      });
      if (use.read && use.written) overwrites = false;
    }
    for (size_t i = ids.size(); i > 1; --i) {  // the pack's order is the program's
      const auto j = static_cast<size_t>(r.In(0, static_cast<int64_t>(i) - 1));
      std::swap(ids[i - 1], ids[j]);
      std::swap(pointers[i - 1], pointers[j]);
    }
    uint64_t workspace_bytes = 0;
    VariantPack pack{ids, pointers, 0};
    if (r.OneIn(2)) {
      pack.workspace = Bytes::kBase + 60000;
      workspace_bytes = 1024;
      truth.Write(pack.workspace, workspace_bytes);
      overwrites = false;
    }
    if (!truth.inside) continue;
    ++checked;
    exact.Clear();
    Describe(&graph, pack, workspace_bytes, &exact);
    exact.Close();
    if (!exact.known()) FAIL("a valid graph has an incomplete set");
    const std::string wrong = judge(exact, truth, true, overwrites);
    if (!wrong.empty()) FAIL(wrong << " in round " << round);
  }
  CHECK(checked > 59000);
}

TEST_CASE(
    "unknown graphs, ragged tensors, missing pointers and invalid tensors make ranges unknown or the set incomplete") {
  AccessSet set;
  const int64_t ids[] = {1, 2};
  const uint64_t pointers[] = {Bytes::kBase, Bytes::kBase + 4096};
  Describe(nullptr, {ids, pointers, 0}, 0, &set);
  set.Close();
  CHECK(set.unknown_reason() == UnknownReason::kDescriptor);
  CHECK((set.ranges().size() == 2 && set.ranges()[1].bytes == 0 && !set.ranges()[1].overwritten));

  OperationGraph graph;
  Tensor t;
  t.bits = 16, t.rank = 1, t.dims = {8}, t.strides = {1};
  GraphTensor one{1, t}, two{2, t};
  two.ragged = true;
  graph.Add(one, {false, true});
  graph.Add(two, {true, false});
  set.Clear();
  Describe(&graph, {ids, pointers, 0}, 0, &set);
  set.Close();
  CHECK(set.known());
  CHECK((set.ranges()[0].bytes == 16 && set.ranges()[1].bytes == 0 && set.ranges()[1].read));
  CHECK_FALSE(set.ranges()[0].overwritten);  // the ragged one may reach into it
  set.Clear();
  Describe(&graph, {std::span(ids).first(1), std::span(pointers).first(1), 0}, 0, &set);
  CHECK(set.unknown_reason() == UnknownReason::kNullOperand);

  // Attention and pages may leave elements as they are.
  using Attribute = CudnnAttribute;
  for (const int attribute :
       {Attribute::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, Attribute::CUDNN_ATTR_OPERATION_MATMUL_CDESC,
        Attribute::CUDNN_ATTR_OPERATION_NORM_FWD_YDESC}) {
    CHECK((UseOf(attribute, false).written && !UseOf(attribute, false).in_part));
  }
  for (const int attribute :
       {Attribute::CUDNN_ATTR_OPERATION_CONCAT_OUTPUT_DESC, Attribute::CUDNN_ATTR_OPERATION_SIGNAL_YDESC,
        Attribute::CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_YDESC, Attribute::CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC}) {
    CHECK(UseOf(attribute, false).in_part);
  }
  const OperandUse input = UseOf(Attribute::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, false);
  CHECK((input.read && !input.written));
  constexpr int kLaterAttribute = 799;
  for (const int attribute : {+Attribute::CUDNN_ATTR_OPERATION_NORM_FWD_PEER_STAT_DESCS, kLaterAttribute})
    CHECK((UseOf(attribute, false).read && UseOf(attribute, false).written));
  for (const bool in_part : {false, true}) {
    OperationGraph written;
    written.Add(one, {false, true, in_part});
    set.Clear();
    Describe(&written, {std::span(ids).first(1), std::span(pointers).first(1), 0}, 0, &set);
    set.Close();
    CHECK((set.ranges().size() == 1 && set.ranges()[0].written && set.ranges()[0].overwritten == !in_part));
  }

  Random r(6);
  for (int i = 0; i < 100000; ++i) {
    auto wild = [&] { return static_cast<int64_t>(r.Next() >> r.In(0, 63)) * (r.OneIn(2) ? 1 : -1); };
    Tensor invalid;
    invalid.bits = static_cast<uint32_t>(r.In(0, 70)), invalid.rank = static_cast<int>(r.In(-1, 9)),
    invalid.vector = wild();
    for (int d = 0; d < Tensor::kMaxRank; ++d) invalid.dims[d] = wild(), invalid.strides[d] = wild();
    set.Clear();
    AddTensor(static_cast<uint64_t>(wild()), invalid, Use::kOverwrite, &set);
    set.Close();
    for (const LibraryRange& range : set.ranges()) {
      if (range.address + range.bytes < range.address) FAIL("a range that wraps");
    }
  }
}

}  // namespace
}  // namespace sluice::libraries
