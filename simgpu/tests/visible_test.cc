// The contract of any CUDA driver: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER. A process reads them once, so each value
// gets a process of its own. On a real driver: two or more cards, LD_LIBRARY_PATH names libcuda.so.1.
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Answer {
  int init = -1, count = 0;
  std::array<std::array<char, 16>, 16> uuids{};
};

Answer Ask(const char* visible, const char* order = nullptr) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    setenv("SIMGPU_PROFILE", "two-gpu", 0);
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDA_DEVICE_ORDER");
    if (visible) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    if (order) setenv("CUDA_DEVICE_ORDER", order, 1);
    Answer answer;
    answer.init = cuInit(0);
    if (answer.init == CUDA_SUCCESS) cuDeviceGetCount(&answer.count);
    for (int i = 0; i < answer.count && i < 16; ++i) {
      CUuuid uuid{};
      cuDeviceGetUuid(&uuid, i);
      std::memcpy(answer.uuids[static_cast<size_t>(i)].data(), uuid.bytes, 16);
    }
    _exit(write(ends[1], &answer, sizeof answer) == sizeof answer ? 0 : 1);
  }
  close(ends[1]);
  Answer answer;
  REQUIRE(read(ends[0], &answer, sizeof answer) == sizeof answer);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return answer;
}

std::string Hex(const std::array<char, 16>& uuid, size_t from, size_t to) {
  std::string text;
  for (size_t i = from; i < to; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(uuid[i]));
    text += two;
  }
  return text;
}

std::string Uuid(const std::array<char, 16>& u) {
  return Hex(u, 0, 4) + "-" + Hex(u, 4, 6) + "-" + Hex(u, 6, 8) + "-" + Hex(u, 8, 10) + "-" + Hex(u, 10, 16);
}

std::string Upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

struct Case {
  std::string visible;
  std::vector<size_t> cards;  // empty: no device
};

}  // namespace

TEST_CASE("CUDA_VISIBLE_DEVICES chooses and orders the devices") {
  const Answer all = Ask(nullptr);
  REQUIRE(all.init == CUDA_SUCCESS);
  REQUIRE(all.count >= 2);
  const std::string a = Uuid(all.uuids[0]), b = Uuid(all.uuids[1]);
  const std::string count = std::to_string(all.count);
  std::string plain = b;
  std::erase(plain, '-');
  std::vector<Case> cases = {
      {"0", {0}},
      {"1", {1}},
      {"1,0", {1, 0}},
      // The first wrong entry ends the list.
      {"", {}},
      {"-1", {}},
      {"0,-1,1", {0}},
      {"0," + count + ",1", {0}},
      {count + ",0", {}},
      {"0," + count + ",0", {0}},
      {",0", {}},
      {"0,", {0}},
      {"0,,1", {0}},
      {"a", {}},
      {"all", {}},
      {"none", {}},
      {"[1]", {}},
      {"--1", {}},
      // Blanks and signs before a number, anything behind it.
      {" 1", {1}},
      {"\t1", {1}},
      {"1 ,0", {1, 0}},
      {"1, 0", {1, 0}},
      {"+1", {1}},
      {"01", {1}},
      {"0x1", {0}},
      {"1a", {1}},
      {"1.5", {1}},
      {"0;1", {0}},
      {"0 1", {0}},
      {"1 junk,0", {1, 0}},
      {"4294967297", {1}},
      {"99999999999", {}},
      // UUIDs.
      {"GPU-" + a, {0}},
      {"GPU-" + b + ",GPU-" + a, {1, 0}},
      {"GPU-" + Upper(b), {1}},
      {"GPU-" + plain, {1}},
      {"GPU-" + b + "0", {1}},
      {"GPU-" + b + " ", {1}},
      {"GPU-" + b + "junk,GPU-" + a, {1, 0}},
      {"GPU-" + b + ";GPU-" + a, {1}},
      {"GPU--" + b, {1}},
      {"MIG-" + b, {1}},
      {"MIG-" + b + ",GPU-" + a, {1, 0}},
      {"GPU-", {}},
      {"GPU", {}},
      {"gpu-" + b, {}},
      {b, {}},
      {" GPU-" + b, {}},
      {"GPU-" + b.substr(0, 4) + "zz", {}},
      {"MIG-GPU-" + b + "/0/0", {}},
      // Numbers and UUIDs are not mixed.
      {"GPU-" + b + ",0", {1}},
      {"0,GPU-" + b, {0}},
      {"GPU-" + b + ",GPU-ffffffffffff,GPU-" + a, {1}},
      {"GPU-" + b + ", GPU-" + a, {1}},
  };
  // The shortest prefix that names one card.
  size_t same = 0;
  for (int i = 0; i < all.count; ++i) {
    if (i == 1) continue;
    const std::string other = Uuid(all.uuids[static_cast<size_t>(i)]);
    size_t n = 0;
    while (n < b.size() && other[n] == b[n]) ++n;
    same = std::max(same, n);
  }
  cases.push_back({"GPU-" + b.substr(0, same + 1), {1}});
  if (same > 0) cases.push_back({"GPU-" + b.substr(0, same), {}});
  for (const Case& one : cases) {
    CAPTURE(one.visible);
    const Answer answer = Ask(one.visible.c_str());
    CHECK(answer.init == (one.cards.empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS));
    CHECK(answer.count == static_cast<int>(one.cards.size()));
    for (size_t i = 0; i < one.cards.size(); ++i) CHECK(answer.uuids[i] == all.uuids[one.cards[i]]);
  }
  for (const std::string& twice : {std::string("0,0"), std::string("0,1,0"), "GPU-" + a + ",GPU-" + a}) {
    CAPTURE(twice);
    CHECK(Ask(twice.c_str()).init == CUDA_ERROR_INVALID_DEVICE);
  }
}

TEST_CASE("CUDA_DEVICE_ORDER has two values") {
  const Answer all = Ask(nullptr);
  for (const char* order : {"FASTEST_FIRST", "PCI_BUS_ID"}) {
    const Answer answer = Ask("1", order);
    CHECK(answer.init == CUDA_SUCCESS);
    CHECK(answer.uuids[0] == all.uuids[1]);
  }
  CHECK(Ask("1", "bogus").init == CUDA_ERROR_INVALID_DEVICE);
  CHECK(Ask(nullptr, "").init == CUDA_ERROR_INVALID_DEVICE);
}

// A program works on the card that it chose, and reads its own numbers of devices.
TEST_CASE("devices are numbered as they are seen") {
  const Answer all = Ask(nullptr);
  REQUIRE(all.count >= 2);
  const pid_t child = fork();
  if (child == 0) {
    setenv("SIMGPU_PROFILE", "two-gpu", 0);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    CUcontext context = nullptr;
    CUdevice device = 9;
    CUdeviceptr p = 0, m = 0;
    CUstream s = nullptr;
    CUmemoryPool pool = nullptr;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemLocation second{};
    second.type = CU_MEM_LOCATION_TYPE_DEVICE;
    second.id = 1;
    int ordinal = 9, line = 0;
#define STEP(condition) \
  ++line;               \
  if (!(condition)) _exit(line)
    STEP(cuInit(0) == CUDA_SUCCESS);
    STEP(cuDeviceGet(&device, 1) == CUDA_ERROR_INVALID_DEVICE);
    STEP(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS);
    STEP(cuCtxGetDevice(&device) == CUDA_SUCCESS && device == 0);
    STEP(cuMemAlloc(&p, 1 << 20) == CUDA_SUCCESS);
    STEP(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p) == CUDA_SUCCESS && ordinal == 0);
    STEP(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    STEP(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
    STEP(cuDeviceGetDefaultMemPool(&pool, 1) == CUDA_ERROR_INVALID_DEVICE);
    STEP(cuMemAllocManaged(&m, 2 << 20, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
    STEP(cuMemAdvise(m, 2 << 20, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, prop.location) == CUDA_SUCCESS);
    STEP(cuMemRangeGetAttribute(&ordinal, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, m, 2 << 20) == CUDA_SUCCESS);
    STEP(ordinal == 0);
    STEP(cuMemAdvise(m, 2 << 20, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, second) == CUDA_ERROR_INVALID_VALUE);
    STEP(cuMemCreate(&handle, 2 << 20, &prop, 0) == CUDA_SUCCESS);
    prop.location.id = 1;
    STEP(cuMemCreate(&handle, 2 << 20, &prop, 0) == CUDA_ERROR_INVALID_DEVICE);
#undef STEP
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
}
