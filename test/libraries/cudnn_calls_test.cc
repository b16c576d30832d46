// Each legacy call of cuDNN as a program makes it, with random descriptors: each operand is in the set with the bytes
// that its descriptor covers, and in the direction that cuDNN's documentation tells. What a descriptor covers,
// tensor_oracle_test.cc holds to the oracle.
#include <cudnn.h>

#include <cstring>
#include <deque>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <type_traits>

#include "hooklib/libraries/extents/tensor.h"
#include "test/libraries/fake_getters.h"
#include "test/libraries/library.h"

namespace sluice::libraries {
namespace {

using test::Library;
using test::Opaque;
using test::Random;
using test::t_seen;

// An operand as the call is given it, and what it covers.
struct Given {
  uint64_t at = 0;
  Tensor covers;
  test::TensorDescriptor tensor{};
  test::FilterDescriptor filter{};
  test::SequenceDescriptor sequence{};
  std::size_t bytes = 0;
  void* p() const { return reinterpret_cast<void*>(at); }
  cudnnTensorDescriptor_t t() { return Opaque(&tensor); }
  cudnnFilterDescriptor_t f() { return Opaque(&filter); }
  cudnnSeqDataDescriptor_t s() { return Opaque(&sequence); }
};
struct Expected {
  const Given* of;
  Use use;
};
Expected Reads(const Given& g) { return {&g, Use::kRead}; }
Expected Writes(const Given& g) { return {&g, Use::kWrite}; }
Expected Overwrites(const Given& g) { return {&g, Use::kOverwrite}; }
Expected Updates(const Given& g) { return {&g, Use::kUpdate}; }
Expected Scratch(const Given& g) { return {&g, Use::kScratch}; }

struct Scene {
  Random r{67};
  std::deque<Given> made;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  alignas(8) unsigned char alpha[8] = {}, beta[8] = {};
  bool beta_zero = false;
  std::set<std::string> called;
  std::map<std::string, std::string> wrong;  // the last of each row

  void Next() {
    made.clear();
    constexpr cudnnDataType_t kTypes[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_HALF, CUDNN_DATA_DOUBLE, CUDNN_DATA_BFLOAT16};
    type = kTypes[r.In(0, 3)];
    // A factor is a double for tensors of double, else a float.
    beta_zero = r.OneIn(2);
    std::memset(beta, 0, sizeof beta);
    const int last = type == CUDNN_DATA_DOUBLE ? 7 : 3;
    if (!beta_zero) {
      beta[last] = 0x3f;
    } else if (r.OneIn(2)) {
      beta[last] = 0x80;  // minus zero
    } else if (type != CUDNN_DATA_DOUBLE) {
      std::memset(beta + 4, 0xff, 4);  // behind the float
    }
  }
  Given& New() {
    made.emplace_back();
    made.back().at = made.size() << 36;
    return made.back();
  }
  Given& T(bool vectors = false) {
    Given& g = New();
    g.tensor.type = vectors ? CUDNN_DATA_INT8x32 : type;
    g.tensor.rank = vectors ? 4 : static_cast<int>(r.In(3, 5));
    int stride = 1;
    for (int d = g.tensor.rank - 1; d >= 0; --d) {
      g.tensor.dims[d] = static_cast<int>(r.In(1, 9)) * (vectors && d == 1 ? 32 : 1);
      g.tensor.strides[d] = stride;
      stride *= g.tensor.dims[d] + (r.OneIn(4) ? 3 : 0);
    }
    g.covers.bits = TensorBits(g.tensor.type);
    g.covers.rank = g.tensor.rank;
    for (int d = 0; d < g.tensor.rank; ++d) {
      g.covers.dims[d] = g.tensor.dims[d];
      g.covers.strides[d] = g.tensor.strides[d];
    }
    return g;
  }
  Given& Space(std::size_t bytes) {
    Given& g = New();
    g.bytes = bytes;
    g.covers.bits = 8;
    g.covers.rank = 1;
    g.covers.dims[0] = static_cast<int64_t>(bytes);
    g.covers.strides[0] = 1;
    return g;
  }
  Given& Space() { return Space(static_cast<std::size_t>(r.In(1, 1 << 20))); }
  Given& F() {
    Given& g = Space();
    g.filter = {type, g.bytes};
    return g;
  }
  Given& S() {
    std::array<int, 4> dims{};
    for (int& d : dims) d = static_cast<int>(r.In(1, 9));
    Given& g = Space(static_cast<std::size_t>(dims[0] * dims[1] * dims[2] * dims[3]) * TensorBits(type) / 8);
    g.sequence = {type, dims};
    return g;
  }
  Expected Result(const Given& g) { return {&g, beta_zero ? Use::kOverwrite : Use::kUpdate}; }

  template <typename... Args>
  void Call(const char* symbol, cudnnStatus_t (*call)(const char*, Args...), bool streams,
            std::initializer_list<Expected> all, std::type_identity_t<Args>... args) {
    called.insert(symbol);
    AccessSet expected;
    if (streams) expected.MarkStreaming();
    for (const Expected& one : all) AddTensor(one.of->at, one.of->covers, one.use, &expected);
    expected.Close();
    call(symbol, args...);
    const auto same = [](const LibraryRange& a, const LibraryRange& b) {
      return a.address == b.address && a.bytes == b.bytes && a.read == b.read && a.written == b.written &&
             a.overwritten == b.overwritten && a.scratch == b.scratch;
    };
    const auto want = expected.ranges();
    if (!t_seen.inside || !t_seen.call.known || t_seen.call.streaming != streams ||
        !std::equal(want.begin(), want.end(), t_seen.ranges.begin(), t_seen.ranges.end(), same)) {
      std::string text = symbol;
      for (const LibraryRange& range : want) text += Text(" wanted", range);
      for (const LibraryRange& range : t_seen.ranges) text += Text(" got", range);
      wrong[symbol] = text + (t_seen.call.known ? " known" : " doubted") + (t_seen.call.streaming ? " streams" : "");
    }
  }
  static std::string Text(const char* what, const LibraryRange& range) {
    char text[96];
    std::snprintf(text, sizeof text, "%s %llx+%llu %d%d%d%d", what, static_cast<unsigned long long>(range.address),
                  static_cast<unsigned long long>(range.bytes), range.read, range.written, range.overwritten,
                  range.scratch);
    return text;
  }
};

#define SLUICE_CALL(symbol) #symbol, &Library<decltype(::symbol)>::Call

void Convolutions(Scene* scene) {
  Scene& s = *scene;
  const void *alpha = s.alpha, *beta = s.beta;
  {
    Given &x = s.T(), &w = s.F(), &y = s.T(), &space = s.Space();
    s.Call(SLUICE_CALL(cudnnConvolutionForward), false, {Reads(x), Reads(w), s.Result(y), Scratch(space)}, nullptr,
           alpha, x.t(), x.p(), w.f(), w.p(), nullptr, CUDNN_CONVOLUTION_FWD_ALGO_GEMM, space.p(), space.bytes, beta,
           y.t(), y.p());
    Given &z = s.T(), &bias = s.T();
    const auto call = [&](std::initializer_list<Expected> all, cudnnTensorDescriptor_t zd, const void* zp) {
      s.Call(SLUICE_CALL(cudnnConvolutionBiasActivationForward), false, all, nullptr, alpha, x.t(), x.p(), w.f(), w.p(),
             nullptr, CUDNN_CONVOLUTION_FWD_ALGO_GEMM, space.p(), space.bytes, beta, zd, zp, bias.t(), bias.p(),
             nullptr, y.t(), y.p());
    };
    // What is added is read where its factor is not zero.
    if (s.beta_zero) {
      call({Reads(x), Reads(w), Reads(bias), Overwrites(y), Scratch(space)}, z.t(), z.p());
    } else {
      call({Reads(x), Reads(w), Reads(z), Reads(bias), Overwrites(y), Scratch(space)}, z.t(), z.p());
    }
  }
  {
    Given &w = s.F(), &dy = s.T(), &dx = s.T(), &space = s.Space();
    s.Call(SLUICE_CALL(cudnnConvolutionBackwardData), false, {Reads(w), Reads(dy), s.Result(dx), Scratch(space)},
           nullptr, alpha, w.f(), w.p(), dy.t(), dy.p(), nullptr, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, space.p(),
           space.bytes, beta, dx.t(), dx.p());
  }
  {
    Given &x = s.T(), &dy = s.T(), &dw = s.F(), &space = s.Space(), &db = s.T();
    s.Call(SLUICE_CALL(cudnnConvolutionBackwardFilter), false, {Reads(x), Reads(dy), s.Result(dw), Scratch(space)},
           nullptr, alpha, x.t(), x.p(), dy.t(), dy.p(), nullptr, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, space.p(),
           space.bytes, beta, dw.f(), dw.p());
    s.Call(SLUICE_CALL(cudnnConvolutionBackwardBias), true, {Reads(dy), s.Result(db)}, nullptr, alpha, dy.t(), dy.p(),
           beta, db.t(), db.p());
  }
}

void Maps(Scene* scene) {
  Scene& s = *scene;
  const void *alpha = s.alpha, *beta = s.beta;
  Given &x = s.T(), &y = s.T(), &dy = s.T(), &dx = s.T();
  s.Call(SLUICE_CALL(cudnnActivationForward), true, {Reads(x), s.Result(y)}, nullptr, nullptr, alpha, x.t(), x.p(),
         beta, y.t(), y.p());
  s.Call(SLUICE_CALL(cudnnActivationBackward), true, {Reads(y), Reads(dy), Reads(x), s.Result(dx)}, nullptr, nullptr,
         alpha, y.t(), y.p(), dy.t(), dy.p(), x.t(), x.p(), beta, dx.t(), dx.p());
  s.Call(SLUICE_CALL(cudnnPoolingForward), true, {Reads(x), s.Result(y)}, nullptr, nullptr, alpha, x.t(), x.p(), beta,
         y.t(), y.p());
  s.Call(SLUICE_CALL(cudnnPoolingBackward), true, {Reads(y), Reads(dy), Reads(x), s.Result(dx)}, nullptr, nullptr,
         alpha, y.t(), y.p(), dy.t(), dy.p(), x.t(), x.p(), beta, dx.t(), dx.p());
  s.Call(SLUICE_CALL(cudnnSoftmaxForward), true, {Reads(x), s.Result(y)}, nullptr, CUDNN_SOFTMAX_FAST,
         CUDNN_SOFTMAX_MODE_CHANNEL, alpha, x.t(), x.p(), beta, y.t(), y.p());
  s.Call(SLUICE_CALL(cudnnSoftmaxBackward), true, {Reads(y), Reads(dy), s.Result(dx)}, nullptr, CUDNN_SOFTMAX_FAST,
         CUDNN_SOFTMAX_MODE_CHANNEL, alpha, y.t(), y.p(), dy.t(), dy.p(), beta, dx.t(), dx.p());
  s.Call(SLUICE_CALL(cudnnLRNCrossChannelForward), true, {Reads(x), s.Result(y)}, nullptr, nullptr,
         CUDNN_LRN_CROSS_CHANNEL_DIM1, alpha, x.t(), x.p(), beta, y.t(), y.p());
  s.Call(SLUICE_CALL(cudnnLRNCrossChannelBackward), true, {Reads(y), Reads(dy), Reads(x), s.Result(dx)}, nullptr,
         nullptr, CUDNN_LRN_CROSS_CHANNEL_DIM1, alpha, y.t(), y.p(), dy.t(), dy.p(), x.t(), x.p(), beta, dx.t(),
         dx.p());
  // Means and temporaries are as x is.
  const auto like = [&](const Given& g) -> Given& {
    Given& other = s.New();
    other.covers = g.covers;
    return other;
  };
  Given &means = like(x), &temp = like(x), &temp2 = like(x), &grad = like(x), &dmeans = like(dx);
  s.Call(SLUICE_CALL(cudnnDivisiveNormalizationForward), true,
         {Reads(x), Reads(means), Scratch(temp), Scratch(temp2), s.Result(y)}, nullptr, nullptr,
         CUDNN_DIVNORM_PRECOMPUTED_MEANS, alpha, x.t(), x.p(), means.p(), temp.p(), temp2.p(), beta, y.t(), y.p());
  s.Call(SLUICE_CALL(cudnnDivisiveNormalizationBackward), true,
         {Reads(x), Reads(means), Reads(grad), Scratch(temp), Scratch(temp2), s.Result(dx), s.Result(dmeans)}, nullptr,
         nullptr, CUDNN_DIVNORM_PRECOMPUTED_MEANS, alpha, x.t(), x.p(), means.p(), grad.p(), temp.p(), temp2.p(), beta,
         dx.t(), dx.p(), dmeans.p());
}

void Tensors(Scene* scene) {
  Scene& s = *scene;
  const void *alpha = s.alpha, *beta = s.beta;
  Given &x = s.T(), &y = s.T(), &b = s.T(), &from = s.F(), &to = s.F();
  s.Call(SLUICE_CALL(cudnnTransformTensor), true, {Reads(x), s.Result(y)}, nullptr, alpha, x.t(), x.p(), beta, y.t(),
         y.p());
  s.Call(SLUICE_CALL(cudnnTransformTensorEx), true, {Reads(x), s.beta_zero ? Writes(y) : Updates(y)}, nullptr, nullptr,
         alpha, x.t(), x.p(), beta, y.t(), y.p());
  s.Call(SLUICE_CALL(cudnnTransformFilter), true, {Reads(from), s.beta_zero ? Writes(to) : Updates(to)}, nullptr,
         nullptr, alpha, from.f(), from.p(), beta, to.f(), to.p());
  s.Call(SLUICE_CALL(cudnnAddTensor), true, {Reads(x), s.Result(y)}, nullptr, alpha, x.t(), x.p(), beta, y.t(), y.p());
  s.Call(SLUICE_CALL(cudnnScaleTensor), true, {Updates(y)}, nullptr, y.t(), y.p(), alpha);
  s.Call(SLUICE_CALL(cudnnSetTensor), true, {Overwrites(y)}, nullptr, y.t(), y.p(), alpha);
  test::OpTensorDescriptor two{CUDNN_OP_TENSOR_MUL}, one{s.r.OneIn(2) ? CUDNN_OP_TENSOR_SQRT : CUDNN_OP_TENSOR_NOT};
  s.Call(SLUICE_CALL(cudnnOpTensor), true, {Reads(x), Reads(b), s.Result(y)}, nullptr, Opaque(&two), alpha, x.t(),
         x.p(), alpha, b.t(), b.p(), beta, y.t(), y.p());
  s.Call(SLUICE_CALL(cudnnOpTensor), true, {Reads(x), s.Result(y)}, nullptr, Opaque(&one), alpha, x.t(), x.p(), alpha,
         b.t(), b.p(), beta, y.t(), y.p());
  Given &indices = s.Space(), &space = s.Space(), &reserve = s.Space();
  s.Call(SLUICE_CALL(cudnnReduceTensor), true, {Reads(x), s.Result(y), Writes(indices), Scratch(space)}, nullptr,
         nullptr, indices.p(), indices.bytes, space.p(), space.bytes, alpha, x.t(), x.p(), beta, y.t(), y.p());
  s.Call(SLUICE_CALL(cudnnDropoutForward), true, {Reads(x), Overwrites(y), Writes(reserve)}, nullptr, nullptr, x.t(),
         x.p(), y.t(), y.p(), reserve.p(), reserve.bytes);
  s.Call(SLUICE_CALL(cudnnDropoutBackward), true, {Reads(x), Overwrites(y), Reads(reserve)}, nullptr, nullptr, x.t(),
         x.p(), y.t(), y.p(), reserve.p(), reserve.bytes);
  // Elements of 32 bytes: what the library says that such a tensor takes, never called overwritten.
  Given &v = s.T(true), &w = s.T(true);
  for (Given* g : {&v, &w}) {
    std::size_t bytes = 1;
    for (int d = 0; d < 4; ++d) bytes *= static_cast<std::size_t>(g->tensor.dims[d]);
    g->covers = Tensor{8, 1, {static_cast<int64_t>(bytes)}, {1}};
  }
  s.Call(SLUICE_CALL(cudnnSetTensor), true, {Writes(w)}, nullptr, w.t(), w.p(), alpha);
  s.Call(SLUICE_CALL(cudnnSoftmaxBackward), true, {Reads(v), Reads(x), s.Result(y)}, nullptr, CUDNN_SOFTMAX_FAST,
         CUDNN_SOFTMAX_MODE_CHANNEL, alpha, v.t(), v.p(), x.t(), x.p(), beta, y.t(), y.p());
}

void Norms(Scene* scene) {
  Scene& s = *scene;
  const void *alpha = s.alpha, *beta = s.beta;
  Given &x = s.T(), &y = s.T(), &z = s.T(), &dy = s.T(), &dx = s.T(), &dz = s.T(), &param = s.T(), &stat = s.T();
  const auto like = [&](const Given& g) -> Given& {
    Given& other = s.New();
    other.covers = g.covers;
    return other;
  };
  Given &scale = like(param), &bias = like(param), &dscale = like(param), &dbias = like(param);
  Given &mean = like(param), &var = like(param), &saved_mean = like(param), &saved_var = like(param);
  Given &mean2 = like(stat), &var2 = like(stat), &saved_mean2 = like(stat), &saved_var2 = like(stat);
  Given &space = s.Space(), &reserve = s.Space();
  constexpr auto kMode = CUDNN_BATCHNORM_SPATIAL;
  constexpr auto kOps = CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION;
  constexpr auto kNorm = CUDNN_NORM_PER_CHANNEL;
  constexpr auto kNormOps = CUDNN_NORM_OPS_NORM_ADD_ACTIVATION;
  constexpr auto kAlgo = CUDNN_NORM_ALGO_STANDARD;
  s.Call(SLUICE_CALL(cudnnBatchNormalizationForwardInference), true,
         {Reads(x), s.Result(y), Reads(scale), Reads(bias), Reads(mean), Reads(var)}, nullptr, kMode, alpha, beta,
         x.t(), x.p(), y.t(), y.p(), param.t(), scale.p(), bias.p(), mean.p(), var.p(), 1e-5);
  s.Call(SLUICE_CALL(cudnnBatchNormalizationForwardTraining), true,
         {Reads(x), s.Result(y), Reads(scale), Reads(bias), Updates(mean), Updates(var), Overwrites(saved_mean),
          Overwrites(saved_var)},
         nullptr, kMode, alpha, beta, x.t(), x.p(), y.t(), y.p(), param.t(), scale.p(), bias.p(), 0.1, mean.p(),
         var.p(), 1e-5, saved_mean.p(), saved_var.p());
  // Neither running nor saved statistics, which are the program's choice.
  s.Call(SLUICE_CALL(cudnnBatchNormalizationForwardTraining), true, {Reads(x), s.Result(y), Reads(scale), Reads(bias)},
         nullptr, kMode, alpha, beta, x.t(), x.p(), y.t(), y.p(), param.t(), scale.p(), bias.p(), 0.1, nullptr, nullptr,
         1e-5, nullptr, nullptr);
  s.Call(SLUICE_CALL(cudnnBatchNormalizationForwardTrainingEx), true,
         {Reads(x), Reads(z), s.Result(y), Reads(scale), Reads(bias), Updates(mean), Updates(var),
          Overwrites(saved_mean), Overwrites(saved_var), Scratch(space), Writes(reserve)},
         nullptr, kMode, kOps, alpha, beta, x.t(), x.p(), z.t(), z.p(), y.t(), y.p(), param.t(), scale.p(), bias.p(),
         0.1, mean.p(), var.p(), 1e-5, saved_mean.p(), saved_var.p(), nullptr, space.p(), space.bytes, reserve.p(),
         reserve.bytes);
  // Parameters' gradients have a factor of their own.
  alignas(8) const unsigned char zero[8] = {};
  s.Call(SLUICE_CALL(cudnnBatchNormalizationBackward), true,
         {Reads(x), Reads(dy), s.Result(dx), Reads(scale), Overwrites(dscale), Overwrites(dbias), Reads(saved_mean),
          Reads(saved_var)},
         nullptr, kMode, alpha, beta, alpha, zero, x.t(), x.p(), dy.t(), dy.p(), dx.t(), dx.p(), param.t(), scale.p(),
         dscale.p(), dbias.p(), 1e-5, saved_mean.p(), saved_var.p());
  // Whether the second gradient is blended, too, is not written: only where nothing is, it is called overwritten.
  s.Call(SLUICE_CALL(cudnnBatchNormalizationBackwardEx), true,
         {Reads(x), Reads(y), Reads(dy), s.Result(dz), s.Result(dx), Reads(scale), Reads(bias), Overwrites(dscale),
          Overwrites(dbias), Reads(saved_mean), Reads(saved_var), Scratch(space), Updates(reserve)},
         nullptr, kMode, kOps, alpha, beta, alpha, zero, x.t(), x.p(), y.t(), y.p(), dy.t(), dy.p(), dz.t(), dz.p(),
         dx.t(), dx.p(), param.t(), scale.p(), bias.p(), dscale.p(), dbias.p(), 1e-5, saved_mean.p(), saved_var.p(),
         nullptr, space.p(), space.bytes, reserve.p(), reserve.bytes);
  s.Call(SLUICE_CALL(cudnnNormalizationForwardInference), true,
         {Reads(x), Reads(z), s.Result(y), Reads(scale), Reads(bias), Reads(mean2), Reads(var2)}, nullptr, kNorm,
         kNormOps, kAlgo, alpha, beta, x.t(), x.p(), param.t(), scale.p(), bias.p(), stat.t(), mean2.p(), var2.p(),
         z.t(), z.p(), nullptr, y.t(), y.p(), 1e-5, 1);
  s.Call(SLUICE_CALL(cudnnNormalizationForwardTraining), true,
         {Reads(x), Reads(z), s.Result(y), Reads(scale), Reads(bias), Updates(mean2), Updates(var2),
          Overwrites(saved_mean2), Overwrites(saved_var2), Scratch(space), Writes(reserve)},
         nullptr, kNorm, kNormOps, kAlgo, alpha, beta, x.t(), x.p(), param.t(), scale.p(), bias.p(), 0.1, stat.t(),
         mean2.p(), var2.p(), 1e-5, saved_mean2.p(), saved_var2.p(), nullptr, z.t(), z.p(), y.t(), y.p(), space.p(),
         space.bytes, reserve.p(), reserve.bytes, 1);
  s.Call(SLUICE_CALL(cudnnNormalizationBackward), true,
         {Reads(x), Reads(y), Reads(dy), s.Result(dz), s.Result(dx), Reads(scale), Reads(bias), Overwrites(dscale),
          Overwrites(dbias), Reads(saved_mean2), Reads(saved_var2), Scratch(space), Updates(reserve)},
         nullptr, kNorm, kNormOps, kAlgo, alpha, beta, alpha, zero, x.t(), x.p(), y.t(), y.p(), dy.t(), dy.p(), dz.t(),
         dz.p(), dx.t(), dx.p(), param.t(), scale.p(), bias.p(), dscale.p(), dbias.p(), 1e-5, stat.t(), saved_mean2.p(),
         saved_var2.p(), nullptr, space.p(), space.bytes, reserve.p(), reserve.bytes, 1);
}

void Attention(Scene* scene) {
  Scene& s = *scene;
  Given &q = s.S(), &k = s.S(), &v = s.S(), &o = s.S(), &weights = s.Space(), &space = s.Space(), &reserve = s.Space();
  const auto like = [&](const Given& g) -> Given& {
    Given& other = s.New();
    other.covers = g.covers;
    return other;
  };
  Given &residual = like(o), &dq = like(q), &dk = like(k), &dv = like(v), &dweights = like(weights);
  s.Call(SLUICE_CALL(cudnnMultiHeadAttnForward), false,
         {Reads(q), Reads(residual), Reads(k), Reads(v), Writes(o), Reads(weights), Scratch(space), Writes(reserve)},
         nullptr, nullptr, -1, nullptr, nullptr, nullptr, nullptr, q.s(), q.p(), residual.p(), k.s(), k.p(), v.s(),
         v.p(), o.s(), o.p(), weights.bytes, weights.p(), space.bytes, space.p(), reserve.bytes, reserve.p());
  // Without a reserve, all steps at once or one by one: then what the steps before left in the workspace is read.
  for (const int step : {-1, 3}) {
    s.Call(SLUICE_CALL(cudnnMultiHeadAttnForward), false,
           {Reads(q), Reads(k), Reads(v), Writes(o), Reads(weights), step < 0 ? Scratch(space) : Updates(space)},
           nullptr, nullptr, step, nullptr, nullptr, nullptr, nullptr, q.s(), q.p(), nullptr, k.s(), k.p(), v.s(),
           v.p(), o.s(), o.p(), weights.bytes, weights.p(), space.bytes, space.p(), 0, nullptr);
  }
  s.Call(SLUICE_CALL(cudnnMultiHeadAttnBackwardData), false,
         {Reads(o), Writes(dq), Reads(q), Writes(dk), Reads(k), Writes(dv), Reads(v), Reads(weights), Updates(space),
          Updates(reserve)},
         nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, o.s(), o.p(), q.s(), dq.p(), q.p(), k.s(), dk.p(), k.p(),
         v.s(), dv.p(), v.p(), weights.bytes, weights.p(), space.bytes, space.p(), reserve.bytes, reserve.p());
  for (const auto mode : {CUDNN_WGRAD_MODE_SET, CUDNN_WGRAD_MODE_ADD}) {
    s.Call(SLUICE_CALL(cudnnMultiHeadAttnBackwardWeights), false,
           {Reads(q), Reads(k), Reads(v), Reads(o), Reads(weights),
            mode == CUDNN_WGRAD_MODE_SET ? Writes(dweights) : Updates(dweights), Updates(space), Updates(reserve)},
           nullptr, nullptr, mode, q.s(), q.p(), k.s(), k.p(), v.s(), v.p(), o.s(), o.p(), weights.bytes, weights.p(),
           dweights.p(), space.bytes, space.p(), reserve.bytes, reserve.p());
  }
}

TEST_CASE("every legacy call of cuDNN: each operand with its bytes and its direction; 500 rounds of all rows") {
  const test::Wanted wanted;
  Scene s;
  for (int round = 0; round < 500; ++round) {
    for (auto* const part : {&Convolutions, &Maps, &Tensors, &Norms, &Attention}) {
      s.Next();
      part(&s);
    }
  }
  for (const auto& [symbol, what] : s.wrong) FAIL_CHECK(what);
#define SLUICE_LIB(symbol, soname_prefix)
#define SLUICE_BLAS(symbol, family, integer, scalar, element)
#define SLUICE_CUDNN(symbol) CHECK(s.called.count(#symbol) == 1);
#include "hooklib/hooks.def"
}

}  // namespace
}  // namespace sluice::libraries
