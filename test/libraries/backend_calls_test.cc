// cuDNN's graphs through the entries of its backend API.
#include <cudnn.h>

#include <string>
#include <vector>

#include "test/libraries/backend.h"

namespace sluice::libraries {
namespace {

using test::Backend;
using test::t_seen;
using test::Wanted;

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

TEST_CASE("cuDNN's graphs: plans from heuristics and from strings, packs, virtual tensors, workspace") {
  cudnnBackendDescriptor_t plan = Backend::Plan();  // made while passive, as a program's first plans are
  const Wanted wanted;
  const std::vector<int64_t> ids{5, 4, 1, 2};
  const std::vector<uint64_t> pointers{0x50000000, 0x40000000, 0x10000000, 0x20000000};
  cudnnBackendDescriptor_t pack = Backend::PackOf(ids, pointers, 0x60000000);
  auto check = [&] {
    REQUIRE(t_seen.call.known);
    REQUIRE(t_seen.ranges.size() == 5);
    CHECK((t_seen.ranges[0].bytes == 8 * 16 * 32 * 32 * 2 && t_seen.ranges[0].read));
    CHECK(t_seen.ranges[1].bytes == 16 * 16 * 9 * 2);
    CHECK(t_seen.ranges[2].bytes == 16 * 2);
    CHECK((t_seen.ranges[3].address == 0x50000000 && t_seen.ranges[3].overwritten));
    CHECK((t_seen.ranges[4].scratch && t_seen.ranges[4].bytes == 4096));
    CHECK_FALSE(t_seen.call.streaming);
  };
  CHECK(Backend::Execute(plan, pack) == 1234);
  check();

  // The plan as text, and a plan from that text.
  Backend::text = "{\"plan\": 17}";
  char kept[64] = {};
  int64_t length = 0;
  Backend::Fetch(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, sizeof kept, &length, kept);
  Backend::text = nullptr;
  cudnnBackendDescriptor_t again = Backend::Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  Backend::Put(again, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, length - 1, kept);
  Backend::Finalize(again);
  Backend::Execute(again, pack);
  check();
  // One that another process wrote: its pointers are known, their reach is not.
  cudnnBackendDescriptor_t foreign = Backend::Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  Backend::Put(foreign, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 5, "other");
  Backend::Finalize(foreign);
  Backend::Execute(foreign, pack);
  CHECK_FALSE(t_seen.call.known);
  CHECK((t_seen.ranges.size() == 5 && t_seen.ranges[0].bytes == 0));

  // Destroyed, never made, missing pointers: doubted, and the library is asked all the same.
  Backend::Destroy(pack);
  CHECK(Backend::Execute(plan, pack) == 1234);
  CHECK_FALSE(t_seen.call.known);
  CHECK(Backend::Execute(At(0x123), At(0x456)) == 1234);
  CHECK_FALSE(t_seen.call.known);
  cudnnBackendDescriptor_t short_pack = Backend::PackOf({5}, {0x50000000}, 0);
  CHECK(Backend::Execute(plan, short_pack) == 1234);
  CHECK_FALSE(t_seen.call.known);
  for (cudnnBackendDescriptor_t d : {plan, again, foreign, short_pack}) Backend::Destroy(d);
}

// An operation alone in its graph, with tensors 1, 2, ... of 64 x 64 halves under these attributes; and its execution,
// tensor n at n GiB.
struct Alone {
  std::vector<cudnnBackendDescriptor_t> tensors;
  cudnnBackendDescriptor_t operation = nullptr;

  Alone(cudnnBackendDescriptorType_t type, const std::vector<int>& attributes) {
    operation = Backend::Make(type);
    for (const int attribute : attributes) {
      tensors.push_back(Backend::TensorOf(static_cast<int64_t>(tensors.size()) + 1, {64, 64}));
      Backend::Link(operation, static_cast<cudnnBackendAttributeName_t>(attribute), tensors.back());
    }
  }
  ~Alone() {
    for (cudnnBackendDescriptor_t d : tensors) Backend::Destroy(d);
    Backend::Destroy(operation);
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

  void Run() {
    cudnnBackendDescriptor_t graph = Backend::Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
                             plan = Backend::Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    Backend::Link(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    Backend::Link(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, graph);
    std::vector<int64_t> ids;
    std::vector<uint64_t> pointers;
    for (size_t i = 1; i <= tensors.size(); ++i) ids.push_back(static_cast<int64_t>(i)), pointers.push_back(i << 30);
    cudnnBackendDescriptor_t pack = Backend::PackOf(ids, pointers, 0);
    Backend::Execute(plan, pack);
    for (cudnnBackendDescriptor_t d : {graph, plan, pack}) Backend::Destroy(d);
  }
  // Of the tensors, in their order: r, w (some of it), u (both), o (overwritten), - (not in the set); ? in front:
  // doubted.
  std::string Uses() {
    Run();
    std::string uses = t_seen.call.known ? "" : "?";
    for (size_t i = 1; i <= tensors.size(); ++i) {
      char use = '-';
      for (const LibraryRange& range : t_seen.ranges) {
        if (range.address != i << 30) continue;
        use = range.overwritten ? 'o' : range.read && range.written ? 'u' : range.written ? 'w' : 'r';
      }
      uses += use;
    }
    return uses;
  }
};

TEST_CASE("cuDNN's graphs: what an operation's attributes make of its tensors") {
  const Wanted wanted;
  const struct {
    cudnnBackendDescriptorType_t type;
    std::vector<int> tensors;
    cudnnBackendAttributeName_t beta;
  } convolutions[] = {{CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                       {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
                      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                       {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX},
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
                      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                       {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW},
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
  for (const auto& [type, tensors, beta] : convolutions) {
    Alone alone(type, tensors);
    CHECK(alone.Uses() == "rro");
    const double halves[] = {0, 0.5};
    Backend::Put(alone.operation, beta, CUDNN_TYPE_DOUBLE, 1, &halves[1]);
    CHECK(alone.Uses() == "rru");
    Backend::Put(alone.operation, beta, CUDNN_TYPE_DOUBLE, 1, &halves[0]);
    CHECK(alone.Uses() == "rro");
    const float half = 0.5F;
    Backend::Put(alone.operation, beta, CUDNN_TYPE_FLOAT, 1, &half);
    CHECK(alone.Uses() == "rru");
    const int64_t other = 0;  // no factor that is known
    Backend::Put(alone.operation, beta, CUDNN_TYPE_INT64, 1, &other);
    CHECK(alone.Uses() == "rru");
  }

  Alone norm(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR,
             {CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC,
              CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, CUDNN_ATTR_OPERATION_NORM_FWD_YDESC,
              CUDNN_ATTR_OPERATION_NORM_FWD_PEER_STAT_DESCS});
  CHECK(norm.Uses() == "rooou");  // of statistics that several cards share nobody says who writes which
  CHECK(t_seen.call.streaming);
  const cudnnBackendNormFwdPhase_t inference = CUDNN_NORM_FWD_INFERENCE;
  Backend::Put(norm.operation, CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE, 1, &inference);
  CHECK(norm.Uses() == "rrrou");

  Alone product(
      CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
      {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_ATTR_OPERATION_MATMUL_CDESC});
  CHECK(product.Uses() == "rro");
  CHECK_FALSE(t_seen.call.streaming);
  Alone sized(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
              {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_ATTR_OPERATION_MATMUL_CDESC,
               CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC});
  CHECK(sized.Uses() == "rrwr");
}

TEST_CASE("cuDNN's graphs: host values, vectors, ragged rows, and what a later cuDNN may bring") {
  const Wanted wanted;
  const std::vector<int> plain{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                               CUDNN_ATTR_OPERATION_POINTWISE_YDESC};
  const auto link = [](Alone* alone, size_t operand, int attribute) {
    Backend::Link(alone->operation, static_cast<cudnnBackendAttributeName_t>(attribute), alone->tensors[operand]);
  };
  {
    Alone add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, plain);
    CHECK(add.Uses() == "rro");
    const bool by_value = true;
    Backend::Put(add.tensors[1], CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    link(&add, 1, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    CHECK(add.Uses() == "r-o");
    const int64_t four = 4;
    Backend::Put(add.tensors[0], CUDNN_ATTR_TENSOR_VECTOR_COUNT, CUDNN_TYPE_INT64, 1, &four);
    link(&add, 0, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    CHECK(add.Uses() == "r-o");
    CHECK(t_seen.ranges[0].bytes == 64 * 64 * 2 * 4);
  }
  {
    Alone ragged(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, plain);
    cudnnBackendDescriptor_t offsets = Backend::TensorOf(4, {65});
    Backend::Link(ragged.tensors[0], CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets);
    link(&ragged, 0, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    ragged.tensors.push_back(offsets);
    CHECK(ragged.Uses() == "rrwr");
    CHECK(t_seen.ranges[0].bytes == 0);  // as far as what is alive around it
    CHECK(t_seen.ranges[3].bytes == 130);
  }
  {
    // An attribute that we do not know may name what is written.
    Alone later(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 799, CUDNN_ATTR_OPERATION_POINTWISE_YDESC});
    CHECK(later.Uses() == "ruo");
  }
  {
    Alone unknown(static_cast<cudnnBackendDescriptorType_t>(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR + 1), plain);
    CHECK(unknown.Uses() == "?uuu");
    CHECK(t_seen.ranges[0].bytes == 0);
  }
}

}  // namespace
}  // namespace sluice::libraries
