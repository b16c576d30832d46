// Each legacy call of cuDNN as a program makes it, with random descriptors: each operand is in the set with the bytes
// that its descriptor covers, and with the direction of cuDNN's documentation. tensor_oracle_test.cc compares the bytes
// of a descriptor with the oracle.
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

// An operand as the call gets it, and the bytes that it covers.
struct Operand {
  uint64_t at = 0;
  Tensor covers;
  test::TensorDescriptor tensor_descriptor{};
  test::FilterDescriptor filter_descriptor{};
  test::SequenceDescriptor sequence_descriptor{};
  std::size_t bytes = 0;
  void* data() const { return reinterpret_cast<void*>(at); }
  cudnnTensorDescriptor_t tensor() { return Opaque(&tensor_descriptor); }
  cudnnFilterDescriptor_t filter() { return Opaque(&filter_descriptor); }
  cudnnSeqDataDescriptor_t sequence() { return Opaque(&sequence_descriptor); }
};
struct Expected {
  const Operand* of;
  Use use;
};
Expected Reads(const Operand& g) { return {&g, Use::kRead}; }
Expected Writes(const Operand& g) { return {&g, Use::kWrite}; }
Expected Overwrites(const Operand& g) { return {&g, Use::kOverwrite}; }
Expected Updates(const Operand& g) { return {&g, Use::kUpdate}; }
Expected Scratch(const Operand& g) { return {&g, Use::kScratch}; }

struct Scene {
  Random r{67};
  std::deque<Operand> made;
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
  Operand& New() {
    made.emplace_back();
    made.back().at = made.size() << 36;
    return made.back();
  }
  Operand& NewTensor(bool vectors = false) {
    Operand& g = New();
    g.tensor_descriptor.type = vectors ? CUDNN_DATA_INT8x32 : type;
    g.tensor_descriptor.rank = vectors ? 4 : static_cast<int>(r.In(3, 5));
    int stride = 1;
    for (int d = g.tensor_descriptor.rank - 1; d >= 0; --d) {
      g.tensor_descriptor.dims[d] = static_cast<int>(r.In(1, 9)) * (vectors && d == 1 ? 32 : 1);
      g.tensor_descriptor.strides[d] = stride;
      stride *= g.tensor_descriptor.dims[d] + (r.OneIn(4) ? 3 : 0);
    }
    g.covers.bits = TensorBits(g.tensor_descriptor.type);
    g.covers.rank = g.tensor_descriptor.rank;
    for (int d = 0; d < g.tensor_descriptor.rank; ++d) {
      g.covers.dims[d] = g.tensor_descriptor.dims[d];
      g.covers.strides[d] = g.tensor_descriptor.strides[d];
    }
    return g;
  }
  Operand& NewSpace(std::size_t bytes) {
    Operand& g = New();
    g.bytes = bytes;
    g.covers.bits = 8;
    g.covers.rank = 1;
    g.covers.dims[0] = static_cast<int64_t>(bytes);
    g.covers.strides[0] = 1;
    return g;
  }
  Operand& NewSpace() { return NewSpace(static_cast<std::size_t>(r.In(1, 1 << 20))); }
  Operand& NewFilter() {
    Operand& g = NewSpace();
    g.filter_descriptor = {type, g.bytes};
    return g;
  }
  Operand& NewSequence() {
    std::array<int, 4> dims{};
    for (int& d : dims) d = static_cast<int>(r.In(1, 9));
    Operand& g = NewSpace(static_cast<std::size_t>(dims[0] * dims[1] * dims[2] * dims[3]) * TensorBits(type) / 8);
    g.sequence_descriptor = {type, dims};
    return g;
  }
  Expected Result(const Operand& g) { return {&g, beta_zero ? Use::kOverwrite : Use::kUpdate}; }

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
      wrong[symbol] = text + (t_seen.call.known ? " known" : " unknown") + (t_seen.call.streaming ? " streams" : "");
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
    Operand &x = s.NewTensor(), &w = s.NewFilter(), &y = s.NewTensor(), &space = s.NewSpace();
    s.Call(SLUICE_CALL(cudnnConvolutionForward), false, {Reads(x), Reads(w), s.Result(y), Scratch(space)}, nullptr,
           alpha, x.tensor(), x.data(), w.filter(), w.data(), nullptr, CUDNN_CONVOLUTION_FWD_ALGO_GEMM, space.data(),
           space.bytes, beta, y.tensor(), y.data());
    Operand &z = s.NewTensor(), &bias = s.NewTensor();
    const auto call = [&](std::initializer_list<Expected> all, cudnnTensorDescriptor_t zd, const void* zp) {
      s.Call(SLUICE_CALL(cudnnConvolutionBiasActivationForward), false, all, nullptr, alpha, x.tensor(), x.data(),
             w.filter(), w.data(), nullptr, CUDNN_CONVOLUTION_FWD_ALGO_GEMM, space.data(), space.bytes, beta, zd, zp,
             bias.tensor(), bias.data(), nullptr, y.tensor(), y.data());
    };
    // The addend is read where its factor is not zero.
    if (s.beta_zero) {
      call({Reads(x), Reads(w), Reads(bias), Overwrites(y), Scratch(space)}, z.tensor(), z.data());
    } else {
      call({Reads(x), Reads(w), Reads(z), Reads(bias), Overwrites(y), Scratch(space)}, z.tensor(), z.data());
    }
  }
  {
    Operand &w = s.NewFilter(), &dy = s.NewTensor(), &dx = s.NewTensor(), &space = s.NewSpace();
    s.Call(SLUICE_CALL(cudnnConvolutionBackwardData), false, {Reads(w), Reads(dy), s.Result(dx), Scratch(space)},
           nullptr, alpha, w.filter(), w.data(), dy.tensor(), dy.data(), nullptr, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
           space.data(), space.bytes, beta, dx.tensor(), dx.data());
  }
  {
    Operand &x = s.NewTensor(), &dy = s.NewTensor(), &dw = s.NewFilter(), &space = s.NewSpace(), &db = s.NewTensor();
    s.Call(SLUICE_CALL(cudnnConvolutionBackwardFilter), false, {Reads(x), Reads(dy), s.Result(dw), Scratch(space)},
           nullptr, alpha, x.tensor(), x.data(), dy.tensor(), dy.data(), nullptr, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
           space.data(), space.bytes, beta, dw.filter(), dw.data());
    s.Call(SLUICE_CALL(cudnnConvolutionBackwardBias), true, {Reads(dy), s.Result(db)}, nullptr, alpha, dy.tensor(),
           dy.data(), beta, db.tensor(), db.data());
  }
}

void Maps(Scene* scene) {
  Scene& s = *scene;
  const void *alpha = s.alpha, *beta = s.beta;
  Operand &x = s.NewTensor(), &y = s.NewTensor(), &dy = s.NewTensor(), &dx = s.NewTensor();
  s.Call(SLUICE_CALL(cudnnActivationForward), true, {Reads(x), s.Result(y)}, nullptr, nullptr, alpha, x.tensor(),
         x.data(), beta, y.tensor(), y.data());
  s.Call(SLUICE_CALL(cudnnActivationBackward), true, {Reads(y), Reads(dy), Reads(x), s.Result(dx)}, nullptr, nullptr,
         alpha, y.tensor(), y.data(), dy.tensor(), dy.data(), x.tensor(), x.data(), beta, dx.tensor(), dx.data());
  s.Call(SLUICE_CALL(cudnnPoolingForward), true, {Reads(x), s.Result(y)}, nullptr, nullptr, alpha, x.tensor(), x.data(),
         beta, y.tensor(), y.data());
  s.Call(SLUICE_CALL(cudnnPoolingBackward), true, {Reads(y), Reads(dy), Reads(x), s.Result(dx)}, nullptr, nullptr,
         alpha, y.tensor(), y.data(), dy.tensor(), dy.data(), x.tensor(), x.data(), beta, dx.tensor(), dx.data());
  s.Call(SLUICE_CALL(cudnnSoftmaxForward), true, {Reads(x), s.Result(y)}, nullptr, CUDNN_SOFTMAX_FAST,
         CUDNN_SOFTMAX_MODE_CHANNEL, alpha, x.tensor(), x.data(), beta, y.tensor(), y.data());
  s.Call(SLUICE_CALL(cudnnSoftmaxBackward), true, {Reads(y), Reads(dy), s.Result(dx)}, nullptr, CUDNN_SOFTMAX_FAST,
         CUDNN_SOFTMAX_MODE_CHANNEL, alpha, y.tensor(), y.data(), dy.tensor(), dy.data(), beta, dx.tensor(), dx.data());
  s.Call(SLUICE_CALL(cudnnLRNCrossChannelForward), true, {Reads(x), s.Result(y)}, nullptr, nullptr,
         CUDNN_LRN_CROSS_CHANNEL_DIM1, alpha, x.tensor(), x.data(), beta, y.tensor(), y.data());
  s.Call(SLUICE_CALL(cudnnLRNCrossChannelBackward), true, {Reads(y), Reads(dy), Reads(x), s.Result(dx)}, nullptr,
         nullptr, CUDNN_LRN_CROSS_CHANNEL_DIM1, alpha, y.tensor(), y.data(), dy.tensor(), dy.data(), x.tensor(),
         x.data(), beta, dx.tensor(), dx.data());
  // Means and temporaries have the shape of x.
  const auto like = [&](const Operand& g) -> Operand& {
    Operand& other = s.New();
    other.covers = g.covers;
    return other;
  };
  Operand &means = like(x), &temp = like(x), &temp2 = like(x), &grad = like(x), &dmeans = like(dx);
  s.Call(SLUICE_CALL(cudnnDivisiveNormalizationForward), true,
         {Reads(x), Reads(means), Scratch(temp), Scratch(temp2), s.Result(y)}, nullptr, nullptr,
         CUDNN_DIVNORM_PRECOMPUTED_MEANS, alpha, x.tensor(), x.data(), means.data(), temp.data(), temp2.data(), beta,
         y.tensor(), y.data());
  s.Call(SLUICE_CALL(cudnnDivisiveNormalizationBackward), true,
         {Reads(x), Reads(means), Reads(grad), Scratch(temp), Scratch(temp2), s.Result(dx), s.Result(dmeans)}, nullptr,
         nullptr, CUDNN_DIVNORM_PRECOMPUTED_MEANS, alpha, x.tensor(), x.data(), means.data(), grad.data(), temp.data(),
         temp2.data(), beta, dx.tensor(), dx.data(), dmeans.data());
}

void Tensors(Scene* scene) {
  Scene& s = *scene;
  const void *alpha = s.alpha, *beta = s.beta;
  Operand &x = s.NewTensor(), &y = s.NewTensor(), &b = s.NewTensor(), &from = s.NewFilter(), &to = s.NewFilter();
  s.Call(SLUICE_CALL(cudnnTransformTensor), true, {Reads(x), s.Result(y)}, nullptr, alpha, x.tensor(), x.data(), beta,
         y.tensor(), y.data());
  s.Call(SLUICE_CALL(cudnnTransformTensorEx), true, {Reads(x), s.beta_zero ? Writes(y) : Updates(y)}, nullptr, nullptr,
         alpha, x.tensor(), x.data(), beta, y.tensor(), y.data());
  s.Call(SLUICE_CALL(cudnnTransformFilter), true, {Reads(from), s.beta_zero ? Writes(to) : Updates(to)}, nullptr,
         nullptr, alpha, from.filter(), from.data(), beta, to.filter(), to.data());
  s.Call(SLUICE_CALL(cudnnAddTensor), true, {Reads(x), s.Result(y)}, nullptr, alpha, x.tensor(), x.data(), beta,
         y.tensor(), y.data());
  s.Call(SLUICE_CALL(cudnnScaleTensor), true, {Updates(y)}, nullptr, y.tensor(), y.data(), alpha);
  s.Call(SLUICE_CALL(cudnnSetTensor), true, {Overwrites(y)}, nullptr, y.tensor(), y.data(), alpha);
  test::OpTensorDescriptor two{CUDNN_OP_TENSOR_MUL}, one{s.r.OneIn(2) ? CUDNN_OP_TENSOR_SQRT : CUDNN_OP_TENSOR_NOT};
  s.Call(SLUICE_CALL(cudnnOpTensor), true, {Reads(x), Reads(b), s.Result(y)}, nullptr, Opaque(&two), alpha, x.tensor(),
         x.data(), alpha, b.tensor(), b.data(), beta, y.tensor(), y.data());
  s.Call(SLUICE_CALL(cudnnOpTensor), true, {Reads(x), s.Result(y)}, nullptr, Opaque(&one), alpha, x.tensor(), x.data(),
         alpha, b.tensor(), b.data(), beta, y.tensor(), y.data());
  Operand &indices = s.NewSpace(), &space = s.NewSpace(), &reserve = s.NewSpace();
  s.Call(SLUICE_CALL(cudnnReduceTensor), true, {Reads(x), s.Result(y), Writes(indices), Scratch(space)}, nullptr,
         nullptr, indices.data(), indices.bytes, space.data(), space.bytes, alpha, x.tensor(), x.data(), beta,
         y.tensor(), y.data());
  s.Call(SLUICE_CALL(cudnnDropoutForward), true, {Reads(x), Overwrites(y), Writes(reserve)}, nullptr, nullptr,
         x.tensor(), x.data(), y.tensor(), y.data(), reserve.data(), reserve.bytes);
  s.Call(SLUICE_CALL(cudnnDropoutBackward), true, {Reads(x), Overwrites(y), Reads(reserve)}, nullptr, nullptr,
         x.tensor(), x.data(), y.tensor(), y.data(), reserve.data(), reserve.bytes);
  // Elements of 32 bytes: such a tensor covers the size that the library returns, and never counts as overwritten.
  Operand &v = s.NewTensor(true), &w = s.NewTensor(true);
  for (Operand* g : {&v, &w}) {
    std::size_t bytes = 1;
    for (int d = 0; d < 4; ++d) bytes *= static_cast<std::size_t>(g->tensor_descriptor.dims[d]);
    g->covers = Tensor{8, 1, {static_cast<int64_t>(bytes)}, {1}};
  }
  s.Call(SLUICE_CALL(cudnnSetTensor), true, {Writes(w)}, nullptr, w.tensor(), w.data(), alpha);
  s.Call(SLUICE_CALL(cudnnSoftmaxBackward), true, {Reads(v), Reads(x), s.Result(y)}, nullptr, CUDNN_SOFTMAX_FAST,
         CUDNN_SOFTMAX_MODE_CHANNEL, alpha, v.tensor(), v.data(), x.tensor(), x.data(), beta, y.tensor(), y.data());
}

void Norms(Scene* scene) {
  Scene& s = *scene;
  const void *alpha = s.alpha, *beta = s.beta;
  Operand &x = s.NewTensor(), &y = s.NewTensor(), &z = s.NewTensor(), &dy = s.NewTensor(), &dx = s.NewTensor(),
          &dz = s.NewTensor(), &param = s.NewTensor(), &stat = s.NewTensor();
  const auto like = [&](const Operand& g) -> Operand& {
    Operand& other = s.New();
    other.covers = g.covers;
    return other;
  };
  Operand &scale = like(param), &bias = like(param), &dscale = like(param), &dbias = like(param);
  Operand &mean = like(param), &var = like(param), &saved_mean = like(param), &saved_var = like(param);
  Operand &mean2 = like(stat), &var2 = like(stat), &saved_mean2 = like(stat), &saved_var2 = like(stat);
  Operand &space = s.NewSpace(), &reserve = s.NewSpace();
  constexpr auto kMode = CUDNN_BATCHNORM_SPATIAL;
  constexpr auto kOps = CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION;
  constexpr auto kNorm = CUDNN_NORM_PER_CHANNEL;
  constexpr auto kNormOps = CUDNN_NORM_OPS_NORM_ADD_ACTIVATION;
  constexpr auto kAlgo = CUDNN_NORM_ALGO_STANDARD;
  s.Call(SLUICE_CALL(cudnnBatchNormalizationForwardInference), true,
         {Reads(x), s.Result(y), Reads(scale), Reads(bias), Reads(mean), Reads(var)}, nullptr, kMode, alpha, beta,
         x.tensor(), x.data(), y.tensor(), y.data(), param.tensor(), scale.data(), bias.data(), mean.data(), var.data(),
         1e-5);
  s.Call(SLUICE_CALL(cudnnBatchNormalizationForwardTraining), true,
         {Reads(x), s.Result(y), Reads(scale), Reads(bias), Updates(mean), Updates(var), Overwrites(saved_mean),
          Overwrites(saved_var)},
         nullptr, kMode, alpha, beta, x.tensor(), x.data(), y.tensor(), y.data(), param.tensor(), scale.data(),
         bias.data(), 0.1, mean.data(), var.data(), 1e-5, saved_mean.data(), saved_var.data());
  // Without running and saved statistics, which are optional.
  s.Call(SLUICE_CALL(cudnnBatchNormalizationForwardTraining), true, {Reads(x), s.Result(y), Reads(scale), Reads(bias)},
         nullptr, kMode, alpha, beta, x.tensor(), x.data(), y.tensor(), y.data(), param.tensor(), scale.data(),
         bias.data(), 0.1, nullptr, nullptr, 1e-5, nullptr, nullptr);
  s.Call(SLUICE_CALL(cudnnBatchNormalizationForwardTrainingEx), true,
         {Reads(x), Reads(z), s.Result(y), Reads(scale), Reads(bias), Updates(mean), Updates(var),
          Overwrites(saved_mean), Overwrites(saved_var), Scratch(space), Writes(reserve)},
         nullptr, kMode, kOps, alpha, beta, x.tensor(), x.data(), z.tensor(), z.data(), y.tensor(), y.data(),
         param.tensor(), scale.data(), bias.data(), 0.1, mean.data(), var.data(), 1e-5, saved_mean.data(),
         saved_var.data(), nullptr, space.data(), space.bytes, reserve.data(), reserve.bytes);
  // The gradients of parameters have a factor of their own.
  alignas(8) const unsigned char zero[8] = {};
  s.Call(SLUICE_CALL(cudnnBatchNormalizationBackward), true,
         {Reads(x), Reads(dy), s.Result(dx), Reads(scale), Overwrites(dscale), Overwrites(dbias), Reads(saved_mean),
          Reads(saved_var)},
         nullptr, kMode, alpha, beta, alpha, zero, x.tensor(), x.data(), dy.tensor(), dy.data(), dx.tensor(), dx.data(),
         param.tensor(), scale.data(), dscale.data(), dbias.data(), 1e-5, saved_mean.data(), saved_var.data());
  // Whether the second gradient is blended as well is not documented: it counts as overwritten only without blending.
  s.Call(SLUICE_CALL(cudnnBatchNormalizationBackwardEx), true,
         {Reads(x), Reads(y), Reads(dy), s.Result(dz), s.Result(dx), Reads(scale), Reads(bias), Overwrites(dscale),
          Overwrites(dbias), Reads(saved_mean), Reads(saved_var), Scratch(space), Updates(reserve)},
         nullptr, kMode, kOps, alpha, beta, alpha, zero, x.tensor(), x.data(), y.tensor(), y.data(), dy.tensor(),
         dy.data(), dz.tensor(), dz.data(), dx.tensor(), dx.data(), param.tensor(), scale.data(), bias.data(),
         dscale.data(), dbias.data(), 1e-5, saved_mean.data(), saved_var.data(), nullptr, space.data(), space.bytes,
         reserve.data(), reserve.bytes);
  s.Call(SLUICE_CALL(cudnnNormalizationForwardInference), true,
         {Reads(x), Reads(z), s.Result(y), Reads(scale), Reads(bias), Reads(mean2), Reads(var2)}, nullptr, kNorm,
         kNormOps, kAlgo, alpha, beta, x.tensor(), x.data(), param.tensor(), scale.data(), bias.data(), stat.tensor(),
         mean2.data(), var2.data(), z.tensor(), z.data(), nullptr, y.tensor(), y.data(), 1e-5, 1);
  s.Call(SLUICE_CALL(cudnnNormalizationForwardTraining), true,
         {Reads(x), Reads(z), s.Result(y), Reads(scale), Reads(bias), Updates(mean2), Updates(var2),
          Overwrites(saved_mean2), Overwrites(saved_var2), Scratch(space), Writes(reserve)},
         nullptr, kNorm, kNormOps, kAlgo, alpha, beta, x.tensor(), x.data(), param.tensor(), scale.data(), bias.data(),
         0.1, stat.tensor(), mean2.data(), var2.data(), 1e-5, saved_mean2.data(), saved_var2.data(), nullptr,
         z.tensor(), z.data(), y.tensor(), y.data(), space.data(), space.bytes, reserve.data(), reserve.bytes, 1);
  s.Call(SLUICE_CALL(cudnnNormalizationBackward), true,
         {Reads(x), Reads(y), Reads(dy), s.Result(dz), s.Result(dx), Reads(scale), Reads(bias), Overwrites(dscale),
          Overwrites(dbias), Reads(saved_mean2), Reads(saved_var2), Scratch(space), Updates(reserve)},
         nullptr, kNorm, kNormOps, kAlgo, alpha, beta, alpha, zero, x.tensor(), x.data(), y.tensor(), y.data(),
         dy.tensor(), dy.data(), dz.tensor(), dz.data(), dx.tensor(), dx.data(), param.tensor(), scale.data(),
         bias.data(), dscale.data(), dbias.data(), 1e-5, stat.tensor(), saved_mean2.data(), saved_var2.data(), nullptr,
         space.data(), space.bytes, reserve.data(), reserve.bytes, 1);
}

void Attention(Scene* scene) {
  Scene& s = *scene;
  Operand &q = s.NewSequence(), &k = s.NewSequence(), &v = s.NewSequence(), &o = s.NewSequence(),
          &weights = s.NewSpace(), &space = s.NewSpace(), &reserve = s.NewSpace();
  const auto like = [&](const Operand& g) -> Operand& {
    Operand& other = s.New();
    other.covers = g.covers;
    return other;
  };
  Operand &residual = like(o), &dq = like(q), &dk = like(k), &dv = like(v), &dweights = like(weights);
  s.Call(SLUICE_CALL(cudnnMultiHeadAttnForward), false,
         {Reads(q), Reads(residual), Reads(k), Reads(v), Writes(o), Reads(weights), Scratch(space), Writes(reserve)},
         nullptr, nullptr, -1, nullptr, nullptr, nullptr, nullptr, q.sequence(), q.data(), residual.data(),
         k.sequence(), k.data(), v.sequence(), v.data(), o.sequence(), o.data(), weights.bytes, weights.data(),
         space.bytes, space.data(), reserve.bytes, reserve.data());
  // Without a reserve, all steps at once or one by one. One by one, a step reads the results of earlier ones from the
  // workspace.
  for (const int step : {-1, 3}) {
    s.Call(SLUICE_CALL(cudnnMultiHeadAttnForward), false,
           {Reads(q), Reads(k), Reads(v), Writes(o), Reads(weights), step < 0 ? Scratch(space) : Updates(space)},
           nullptr, nullptr, step, nullptr, nullptr, nullptr, nullptr, q.sequence(), q.data(), nullptr, k.sequence(),
           k.data(), v.sequence(), v.data(), o.sequence(), o.data(), weights.bytes, weights.data(), space.bytes,
           space.data(), 0, nullptr);
  }
  s.Call(SLUICE_CALL(cudnnMultiHeadAttnBackwardData), false,
         {Reads(o), Writes(dq), Reads(q), Writes(dk), Reads(k), Writes(dv), Reads(v), Reads(weights), Updates(space),
          Updates(reserve)},
         nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, o.sequence(), o.data(), q.sequence(), dq.data(),
         q.data(), k.sequence(), dk.data(), k.data(), v.sequence(), dv.data(), v.data(), weights.bytes, weights.data(),
         space.bytes, space.data(), reserve.bytes, reserve.data());
  for (const auto mode : {CUDNN_WGRAD_MODE_SET, CUDNN_WGRAD_MODE_ADD}) {
    s.Call(SLUICE_CALL(cudnnMultiHeadAttnBackwardWeights), false,
           {Reads(q), Reads(k), Reads(v), Reads(o), Reads(weights),
            mode == CUDNN_WGRAD_MODE_SET ? Writes(dweights) : Updates(dweights), Updates(space), Updates(reserve)},
           nullptr, nullptr, mode, q.sequence(), q.data(), k.sequence(), k.data(), v.sequence(), v.data(), o.sequence(),
           o.data(), weights.bytes, weights.data(), dweights.data(), space.bytes, space.data(), reserve.bytes,
           reserve.data());
  }
}

TEST_CASE("the set of every legacy cuDNN call has each operand with its bytes and direction: 500 rounds") {
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
