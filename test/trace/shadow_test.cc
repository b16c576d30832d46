// The truth recorder's copy of managed memory (test/gpu/truth/shadow.h), over a fake driver: its GPU memory is host
// memory, and its one kernel is changes.cu in plain C++.
#include "test/gpu/truth/shadow.h"

#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace {

std::map<CUdeviceptr, std::vector<char>> g_memory;
bool g_full = false, g_blind = false;

char* At(CUdeviceptr address) { return reinterpret_cast<char*>(address); }  // NOLINT(performance-no-int-to-ptr)

}  // namespace

extern "C" {
CUresult cuMemAlloc(CUdeviceptr* pointer, size_t bytes) {
  if (g_full) return CUDA_ERROR_OUT_OF_MEMORY;
  std::vector<char> block(bytes);
  *pointer = reinterpret_cast<CUdeviceptr>(block.data());
  g_memory[*pointer] = std::move(block);
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr pointer) {
  return g_memory.erase(pointer) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  std::memcpy(At(to), from, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  std::memcpy(to, At(from), bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  std::memcpy(At(to), At(from), bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t bytes) {
  std::memset(At(to), value, bytes);
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void*) {
  *module = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) {
  *function = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void** parameters, void**) {
  const char* now = At(*static_cast<CUdeviceptr*>(parameters[0]));
  char* before = At(*static_cast<CUdeviceptr*>(parameters[1]));
  char* flags = At(*static_cast<CUdeviceptr*>(parameters[2]));
  for (uint64_t g = 0; g < *static_cast<uint64_t*>(parameters[3]); ++g) {
    uint32_t words[128];
    std::memcpy(words, before + 512 * g, sizeof words);
    bool filled = words[0] != 0;
    for (const uint32_t word : words) filled = filled && word == words[0];
    const bool differs = !g_blind && std::memcmp(now + 512 * g, words, sizeof words) != 0;
    flags[g] = static_cast<char>((differs ? 1 : 0) | (filled ? 2 : 0));
    std::memcpy(before + 512 * g, now + 512 * g, sizeof words);
  }
  return CUDA_SUCCESS;
}
}

namespace sluice::truth {
namespace {

using trace::Access;

struct Run {
  uint64_t offset, bytes;
  Access access;
  bool operator==(const Run&) const = default;
};

class Recording {
 public:
  Recording() : memory_(static_cast<char*>(std::aligned_alloc(65536, kBytes))) {
    std::memset(memory_, 0, kBytes);
    char name[] = "/tmp/sluice-shadow-test.XXXXXX";
    const int fd = mkstemp(name);
    REQUIRE(write(fd, "kernel", 6) == 6);
    close(fd);
    file_ = name;
  }
  ~Recording() {
    unlink(file_.c_str());
    std::free(memory_);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void Begin() {
    shadow.Load(file_.c_str());
    shadow.Follow(base(), kBytes, true);
  }
  uint64_t base() const { return reinterpret_cast<uint64_t>(memory_); }
  void Set(size_t from, size_t bytes, int value) { std::memset(memory_ + from, value, bytes); }
  std::vector<Run> Changed(std::vector<std::pair<uint64_t, uint64_t>> touched) {
    std::vector<trace::AccessRange> ranges;
    for (const auto& [offset, bytes] : touched)
      ranges.push_back({base() + offset, bytes, Access::kUnknown, trace::AccessSource::kParameters});
    std::vector<Run> runs;
    for (const trace::AccessRange& r : shadow.Changed(ranges)) runs.push_back({r.address - base(), r.bytes, r.access});
    return runs;
  }

  Shadow shadow;

 private:
  static constexpr size_t kBytes = 1 << 20;
  char* const memory_;
  std::string file_;
};

TEST_CASE("a change is reported once, in granules, and only in touched ranges") {
  Recording r;
  r.Begin();
  REQUIRE(r.shadow.on());
  CHECK(r.Changed({{0, 1 << 20}}).empty());
  r.Set(5000, 1, 1);
  r.Set(200000, 70000, 3);
  const std::vector<Run> expected = {{4608, 512, Access::kReadWrite}, {199680, 70656, Access::kReadWrite}};
  CHECK(r.Changed({{0, 65536}, {32768, 300000}}) == expected);  // ranges may overlap
  CHECK(r.Changed({{0, 1 << 20}}).empty());
  r.Set(600000, 4096, 1);
  CHECK(r.Changed({{0, 65536}}).empty());  // elsewhere
}

TEST_CASE("a changed filling counts as overwritten, and zeros are no filling") {
  Recording r;
  r.Set(65536, 65536, 0x7f);
  r.Begin();
  r.Set(0, 131072, 5);
  CHECK(r.Changed({{0, 131072}}) == std::vector<Run>{{0, 65536, Access::kReadWrite}, {65536, 65536, Access::kWrite}});
}

TEST_CASE("many runs in one page are reported as one") {
  Recording r;
  r.Begin();
  for (size_t i = 0; i < 10; ++i) r.Set(65536 + 4096 * i, 4, 1);
  CHECK(r.Changed({{0, 1 << 20}}) == std::vector<Run>{{65536, 9 * 4096 + 512, Access::kReadWrite}});
}

TEST_CASE("refreshed bytes and freed blocks are not reported as changes") {
  Recording r;
  r.Begin();
  r.Set(0, 1024, 9);
  r.shadow.Refresh(r.base(), 1024);
  CHECK(r.Changed({{0, 4096}}).empty());
  r.Set(0, 1024, 1);
  r.shadow.Forget(r.base());
  CHECK(r.Changed({{0, 4096}}).empty());
  CHECK(r.shadow.on());
}

TEST_CASE("without memory, or with a wrong kernel, no directions are recorded") {
  for (bool* wrong : {&g_full, &g_blind}) {
    *wrong = true;
    Recording r;
    r.Begin();
    CHECK_FALSE(r.shadow.on());
    CHECK(r.Changed({{0, 4096}}).empty());
    *wrong = false;
  }
  Shadow absent;
  absent.Load("/no/such/file");
  CHECK_FALSE(absent.on());
}

}  // namespace
}  // namespace sluice::truth
