// Every entry as the shim calls it, over libraries of this test's own: arguments and results pass unchanged, sets are
// those of the call, and unknown operands make them incomplete. No driver, no shim.
#include "hooklib/libraries/entries.h"

#include <cudnn.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <map>
#include <thread>

#include "hooklib/libraries/blas_abi.h"
#include "hooklib/libraries/library_calls.h"
#include "test/libraries/backend.h"
#include "test/libraries/fake_getters.h"
#include "test/libraries/library.h"

namespace sluice {

void* LibraryReal() { return libraries::test::t_real; }
void* LibrarySymbol(void*, const char* symbol) { return libraries::test::FakeGetter(symbol); }

namespace libraries {
namespace {

using abi::ConstPointer;
using abi::Pointer;
using test::Backend;
using test::Library;
using test::Random;
using test::t_real;
using test::t_seen;
using test::Wanted;

TEST_CASE("every row has an entry, which passes its arguments and the status unchanged") {
  Random random(7);
  for (const bool on : {false, true}) {
    const Wanted wanted(on);
    for (int round = 0; round < 40; ++round) {
#define SLUICE_LIB(symbol, soname_prefix)
#define SLUICE_BLAS(symbol, family, integer, scalar, element) \
  if (!Library<abi::Blas<integer>::family>::Passes(#symbol, random)) FAIL(#symbol);
#define SLUICE_CUDNN(symbol) \
  if (!Library<decltype(::symbol)>::Passes(#symbol, random)) FAIL(#symbol);
#include "hooklib/hooks.def"
#define SLUICE_BLAS(symbol, family, integer, scalar, element)
#define SLUICE_CUDNN(symbol)
#define SLUICE_LIB(symbol, soname_prefix) \
  if (!Library<decltype(entry::symbol)>::Passes(#symbol, random)) FAIL(#symbol);
#include "hooklib/hooks.def"
    }
  }
  CHECK(LibraryEntry("cudnnRNNForward") == nullptr);
}

const Pointer kHandle = reinterpret_cast<Pointer>(0x1000);
Pointer At(uint64_t address) { return reinterpret_cast<Pointer>(address); }

int Sgemm(int m, int n, int k, const float* beta, Pointer a, Pointer b, Pointer c) {
  static const float alpha = 1;
  return Library<abi::Blas<int>::Gemm>::Call("cublasSgemm_v2", kHandle, 0, 0, m, n, k, &alpha, a, m, b, k, beta, c, m);
}

TEST_CASE("while no sets are wanted, an entry computes none and calls no getter") {
  test::g_pointer_mode_calls = 0;
  const float beta = 0;
  CHECK(Sgemm(4, 4, 4, &beta, At(1 << 20), At(2 << 20), At(3 << 20)) == 1234);
  CHECK_FALSE(t_seen.inside);
  CHECK(test::g_pointer_mode_calls == 0);
}

TEST_CASE("a gemm's set follows beta on the host or on the device, and the handle's workspace") {
  const Wanted wanted;
  test::g_pointer_mode = 0;
  float beta = 0;
  Sgemm(1024, 1024, 1024, &beta, At(0x10000000), At(0x20000000), At(0x30000000));
  REQUIRE(t_seen.inside);
  CHECK(t_seen.call.known);
  CHECK_FALSE(t_seen.call.streaming);
  CHECK(std::strcmp(t_seen.call.symbol, "cublasSgemm_v2") == 0);
  REQUIRE(t_seen.ranges.size() == 3);
  CHECK((t_seen.ranges[0].read && !t_seen.ranges[0].written && t_seen.ranges[0].bytes == 4 << 20));
  CHECK(t_seen.ranges[2].overwritten);
  beta = 0.5F;
  Sgemm(1024, 1024, 1024, &beta, At(0x10000000), At(0x20000000), At(0x30000000));
  CHECK((t_seen.ranges[2].read && t_seen.ranges[2].written && !t_seen.ranges[2].overwritten));

  // The handle has the program's workspace until SetStream.
  Library<abi::SetWorkspace>::Call("cublasSetWorkspace_v2", kHandle, At(0x40000000), 32 << 20);
  Sgemm(4, 4, 4, &beta, At(0x10000000), At(0x20000000), At(0x30000000));
  CHECK(t_seen.ranges.size() == 3);  // the library refused it (1234)
  test::g_workspace_status = 0;
  t_real = reinterpret_cast<void*>(&test::AcceptWorkspace);
  reinterpret_cast<abi::SetWorkspace*>(LibraryEntry("cublasSetWorkspace_v2"))(kHandle, At(0x40000000), 32 << 20);
  Sgemm(4, 4, 4, &beta, At(0x10000000), At(0x20000000), At(0x30000000));
  REQUIRE(t_seen.ranges.size() == 4);
  CHECK((t_seen.ranges[3].scratch && t_seen.ranges[3].bytes == 32 << 20));
  Library<abi::SetStream>::Call("cublasSetStream_v2", kHandle, nullptr);
  Sgemm(4, 4, 4, &beta, At(0x10000000), At(0x20000000), At(0x30000000));
  CHECK(t_seen.ranges.size() == 3);

  // Factors in device memory are read by the kernel; their values are not known.
  test::g_pointer_mode = 1;
  Sgemm(4, 4, 4, static_cast<float*>(At(0x50000000)), At(0x10000000), At(0x20000000), At(0x30000000));
  CHECK(std::any_of(t_seen.ranges.begin(), t_seen.ranges.end(),
                    [](const LibraryRange& r) { return r.address == 0x50000000 && r.bytes == 4 && r.read; }));
  CHECK_FALSE(t_seen.ranges[2].overwritten);
  test::g_pointer_mode = 0;
}

TEST_CASE("invalid operands and destroyed handles make the set incomplete, and the counters say why") {
  const Wanted wanted;
  auto count = [](UnknownReason reason) { return g_library_counters.unknown[static_cast<size_t>(reason)].load(); };
  const float beta = 0;
  const uint64_t null = count(UnknownReason::kNullOperand), unsupported = count(UnknownReason::kUnsupported),
                 destroyed = count(UnknownReason::kDescriptor);
  CHECK(Sgemm(8, 8, 8, &beta, nullptr, At(2 << 20), At(3 << 20)) == 1234);
  CHECK_FALSE(t_seen.call.known);
  CHECK(count(UnknownReason::kNullOperand) == null + 1);
  CHECK(Sgemm(-8, 8, 8, &beta, At(1 << 20), At(2 << 20), At(3 << 20)) == 1234);
  CHECK(count(UnknownReason::kUnsupported) == unsupported + 1);
  CHECK(Sgemm(8, 0, 8, nullptr, nullptr, nullptr, nullptr) == 1234);
  CHECK((t_seen.call.known && t_seen.ranges.empty()));
  CHECK(Sgemm(8, 8, 8, &beta, At(1 << 20), At(2 << 20), At(1 << 20)) == 1234);  // ConstPointer is A
  CHECK(t_seen.call.known);
  for (const LibraryRange& range : t_seen.ranges) CHECK_FALSE(range.overwritten);
  CHECK(Sgemm(8, 8, 8, nullptr, At(1 << 20), At(2 << 20), At(3 << 20)) == 1234);  // no beta: the library refuses it
  test::g_handle_is_destroyed = true;
  CHECK(Sgemm(8, 8, 8, &beta, At(1 << 20), At(2 << 20), At(3 << 20)) == 1234);
  test::g_handle_is_destroyed = false;
  CHECK_FALSE(t_seen.call.known);
  CHECK(count(UnknownReason::kDescriptor) == destroyed + 1);
}

TEST_CASE("a typed strided call with 64-bit sizes has the set of its types and strides") {
  const Wanted wanted;
  const float alpha = 1, beta = 0;
  using Fn = Library<abi::Blas<int64_t>::GemmStridedEx>;
  Fn::Call("cublasGemmStridedBatchedEx_64", kHandle, 1, 0, 64, 32, 16, &alpha, At(1 << 20), 14, 16, 1024, At(2 << 20),
           14, 16, 512, &beta, At(3 << 20), 0, 64, 2048, 10, 68, -1);
  REQUIRE(t_seen.ranges.size() == 3);
  CHECK(t_seen.ranges[0].bytes == 10 * 1024 * 2);
  CHECK(t_seen.ranges[1].bytes == 10 * 512 * 2);
  CHECK((t_seen.ranges[2].bytes == 10 * 2048 * 4 && t_seen.ranges[2].overwritten));
}

TEST_CASE("a pointer array is known from its copy from the host until it is freed or copied to") {
  const Wanted wanted;
  const double alpha = 1, beta = 0;
  const uint64_t a[2] = {0x10000000, 0x10010000}, b[2] = {0x20000000, 0x20010000}, c[2] = {0x30000000, 0x30010000};
  auto call = [&] {
    Library<abi::Blas<int>::GemmBatched>::Call(
        "cublasDgemmBatched", kHandle, 0, 0, 16, 16, 16, &alpha, static_cast<const ConstPointer*>(At(0x5000)), 16,
        static_cast<const ConstPointer*>(At(0x6000)), 16, &beta, static_cast<const Pointer*>(At(0x7000)), 16, 2);
  };
  call();
  CHECK_FALSE(t_seen.call.known);
  NoteHostCopy(0x5000, a, sizeof a);
  NoteHostCopy(0x6000, b, sizeof b);
  NoteHostCopy(0x7000 - 64, std::vector<uint64_t>(8, 0x11110000).data(), 64);
  NoteHostCopy(0x7000, c, sizeof c);
  call();
  REQUIRE(t_seen.call.known);
  REQUIRE(t_seen.ranges.size() == 9);  // three arrays, three operands of two matrices
  CHECK((t_seen.ranges[8].address == c[1] && t_seen.ranges[8].bytes == 2048 && t_seen.ranges[8].written));
  for (const LibraryRange& range : t_seen.ranges) CHECK_FALSE(range.overwritten);  // assumed, not proven
  ForgetHostCopies(0x6008, 8);
  call();
  CHECK_FALSE(t_seen.call.known);
  NoteHostCopy(0x6000, reinterpret_cast<const void*>(uint64_t{16}), 16);  // no host address: nothing faults
  call();
  CHECK_FALSE(t_seen.call.known);
  ForgetHostCopies(0, UINT64_MAX / 2);
}

TEST_CASE("a cublasLt set follows the descriptors, and destroyed ones make it incomplete") {
  const Wanted wanted;
  const test::Layout a{14, 256, 128, 256}, b{14, 128, 512, 128}, d{14, 256, 512, 256};
  test::MatmulDesc op;
  op.epilogue = 4;
  op.bias = At(0x50000000);
  const float alpha = 1, beta = 0;
  auto call = [&](const test::Layout* layout) {
    return Library<abi::LtMatmul>::Call("cublasLtMatmul", kHandle, const_cast<test::MatmulDesc*>(&op), &alpha,
                                        At(0x10000000), const_cast<test::Layout*>(layout), At(0x20000000),
                                        const_cast<test::Layout*>(&b), &beta, At(0x30000000),
                                        const_cast<test::Layout*>(&d), At(0x30000000), const_cast<test::Layout*>(&d),
                                        nullptr, At(0x40000000), 1 << 20, nullptr);
  };
  CHECK(call(&a) == 1234);
  REQUIRE(t_seen.call.known);
  REQUIRE(t_seen.ranges.size() == 5);
  CHECK(t_seen.ranges[0].bytes == 256 * 128 * 2);
  CHECK((t_seen.ranges[2].overwritten && t_seen.ranges[2].bytes == 256 * 512 * 2));
  CHECK(t_seen.ranges[3].scratch);
  CHECK((t_seen.ranges[4].address == 0x50000000 && t_seen.ranges[4].bytes == 256 * 2 && t_seen.ranges[4].read));
  test::Layout destroyed = a;
  destroyed.alive = false;
  CHECK(call(&destroyed) == 1234);
  CHECK_FALSE(t_seen.call.known);
  CHECK(call(nullptr) == 1234);
  CHECK_FALSE(t_seen.call.known);
}

TEST_CASE("a cublasLt workspace counts with the bytes of the algorithm, asked once for each shape") {
  const Wanted wanted;
  constexpr size_t kMiB = 1 << 20;
  test::Layout a{14, 256, 128, 256}, b{14, 128, 512, 128}, d{14, 256, 512, 256};
  test::MatmulDesc op;
  const float alpha = 1, beta = 0;
  abi::LtAlgo algorithm{{test::kAlive, 1}};
  auto workspace = [&](const abi::LtAlgo* by, size_t given) {
    Library<abi::LtMatmul>::Call("cublasLtMatmul", kHandle, &op, &alpha, At(0x10000000), &a, At(0x20000000), &b, &beta,
                                 At(0x30000000), &d, At(0x30000000), &d, by, At(0x40000000), given, nullptr);
    for (const LibraryRange& range : t_seen.ranges) {
      if (range.scratch) return range.bytes;
    }
    return uint64_t{0};
  };
  test::g_algo_workspace = 100 * 1024;
  test::g_algo_calls = 0;
  CHECK(workspace(nullptr, 32 * kMiB) == 32 * kMiB);  // the library chooses the algorithm
  CHECK(workspace(&algorithm, kMiB) == kMiB);         // less than a chunk
  CHECK(test::g_algo_calls == 0);
  for (int i = 0; i < 5; ++i) CHECK(workspace(&algorithm, 32 * kMiB) == 100 * 1024);
  CHECK(test::g_algo_calls == 1);
  test::g_algo_workspace = 48 * kMiB;
  a.rows = d.rows = a.ld = d.ld = 512;  // another shape; the library would refuse the call itself
  CHECK(workspace(&algorithm, 32 * kMiB) == 32 * kMiB);
  test::g_algo_workspace = -1;
  algorithm.data[1] = 2;  // another algorithm
  for (int i = 0; i < 3; ++i) CHECK(workspace(&algorithm, 32 * kMiB) == 32 * kMiB);
  CHECK(test::g_algo_calls == 3);
  CHECK(t_seen.call.known);
}

TEST_CASE("the sets of a cuDNN convolution and a batch norm follow their descriptors") {
  const Wanted wanted;
  test::TensorDescriptor x{CUDNN_DATA_HALF, {8, 64, 32, 32}, {65536, 1, 2048, 64}};  // channels last
  test::TensorDescriptor y{CUDNN_DATA_HALF, {8, 128, 32, 32}, {131072, 1, 4096, 128}};
  test::FilterDescriptor w{CUDNN_DATA_HALF, 128 * 64 * 9 * 2};
  const float alpha = 1;
  float beta = 0;
  auto forward = [&](test::TensorDescriptor* to) {
    Library<decltype(::cudnnConvolutionForward)>::Call(
        "cudnnConvolutionForward", nullptr, &alpha, test::Opaque(&x), At(0x10000000), test::Opaque(&w), At(0x20000000),
        nullptr, CUDNN_CONVOLUTION_FWD_ALGO_GEMM, At(0x40000000), 4096, &beta, test::Opaque(to), At(0x30000000));
  };
  forward(&y);
  REQUIRE(t_seen.call.known);
  REQUIRE(t_seen.ranges.size() == 4);
  CHECK((t_seen.ranges[0].bytes == 8 * 65536 * 2 && t_seen.ranges[0].read));
  CHECK(t_seen.ranges[1].bytes == 128 * 64 * 9 * 2);
  CHECK((t_seen.ranges[2].bytes == 8 * 131072 * 2 && t_seen.ranges[2].overwritten));
  CHECK(t_seen.ranges[3].scratch);
  beta = 1;
  forward(&y);
  CHECK((t_seen.ranges[2].read && !t_seen.ranges[2].overwritten));
  y.alive = false;
  forward(&y);
  CHECK_FALSE(t_seen.call.known);

  test::TensorDescriptor s{CUDNN_DATA_FLOAT, {1, 64, 1, 1}, {64, 1, 1, 1}};
  beta = 0;
  Library<decltype(::cudnnBatchNormalizationForwardTrainingEx)>::Call(
      "cudnnBatchNormalizationForwardTrainingEx", nullptr, CUDNN_BATCHNORM_SPATIAL, CUDNN_BATCHNORM_OPS_BN, &alpha,
      &beta, test::Opaque(&x), At(0x10000000), nullptr, nullptr, test::Opaque(&x), At(0x20000000), test::Opaque(&s),
      At(0x30000000), At(0x30001000), 0.1, At(0x30002000), At(0x30003000), 1e-5, At(0x30004000), At(0x30005000),
      nullptr, nullptr, 0, At(0x40000000), 512);
  REQUIRE(t_seen.call.known);
  CHECK(t_seen.call.streaming);
  REQUIRE(t_seen.ranges.size() == 9);
  CHECK((t_seen.ranges[4].read && t_seen.ranges[4].written));  // running mean
  CHECK((t_seen.ranges[6].overwritten && t_seen.ranges[6].bytes == 256));
}

TEST_CASE("32 threads have their own calls, plans and packs at the same time") {
  const Wanted wanted;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  std::vector<std::pair<cudnnBackendDescriptor_t, cudnnBackendDescriptor_t>> made(32);
  for (auto& [plan, pack] : made) {
    plan = Backend::Plan();
    pack = Backend::PackOf({1, 2, 4, 5}, {0x10000000, 0x20000000, 0x40000000, 0x50000000}, 0);
  }
  for (int i = 0; i < 32; ++i) {
    threads.emplace_back([i, &wrong, &made] {
      auto* const gemm = reinterpret_cast<abi::Blas<int>::Gemm*>(LibraryEntry("cublasSgemm_v2"));
      auto* const execute = reinterpret_cast<decltype(::cudnnBackendExecute)*>(LibraryEntry("cudnnBackendExecute"));
      const uint64_t base = static_cast<uint64_t>(i + 1) << 32;
      const float alpha = 1, beta = 0;
      for (int round = 0; round < 2000; ++round) {
        t_real = reinterpret_cast<void*>(&Library<abi::Blas<int>::Gemm>::Function);
        const int status = gemm(kHandle, 0, 0, 64, 64, 64, &alpha, At(base), 64, At(base + (1 << 20)), 64, &beta,
                                At(base + (2 << 20)), 64);
        wrong += status != 1234 || !t_seen.call.known || t_seen.ranges.size() != 3 || t_seen.ranges[0].address != base;
        t_real = reinterpret_cast<void*>(&Library<decltype(::cudnnBackendExecute)>::Function);
        execute(nullptr, made[static_cast<size_t>(i)].first, made[static_cast<size_t>(i)].second);
        wrong += !t_seen.call.known || t_seen.ranges.size() != 4;
        const uint64_t array[2] = {base, base + 64};
        NoteHostCopy(base + 4096 + static_cast<uint64_t>(round % 8) * 16, array, 16);
        if (round % 64 == 0) ForgetHostCopies(base, 1 << 20);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  for (auto& [plan, pack] : made) Backend::Destroy(plan), Backend::Destroy(pack);
  ForgetHostCopies(0, UINT64_MAX / 2);
}

TEST_CASE("the set of a call inside another call ends with the inner call") {
  const Wanted wanted;
  static const LibraryCall* after = nullptr;
  static bool same = false;
  // A library's function that calls another library from outside.
  auto* const outer = +[](Pointer, int, int, int, int, int, ConstPointer, ConstPointer, int, ConstPointer, int,
                          ConstPointer, Pointer, int) -> int {
    const LibraryCall* mine = CurrentLibraryCall();
    const float beta = 0;
    Sgemm(4, 4, 4, &beta, At(1 << 20), At(2 << 20), At(3 << 20));
    same = mine && t_seen.inside && CurrentLibraryCall() == mine && mine->ranges[0].address == 0x70000000 &&
           mine->has_queued;  // the inner call may have written memory that this one overwrites
    return 5;
  };
  const float alpha = 1, beta = 0;
  t_real = reinterpret_cast<void*>(outer);
  auto* const gemm = reinterpret_cast<abi::Blas<int>::Gemm*>(LibraryEntry("cublasSgemm_v2"));
  CHECK(gemm(kHandle, 0, 0, 8, 8, 8, &alpha, At(0x70000000), 8, At(0x71000000), 8, &beta, At(0x72000000), 8) == 5);
  after = CurrentLibraryCall();
  CHECK(same);
  CHECK(after == nullptr);
}

}  // namespace
}  // namespace libraries
}  // namespace sluice
