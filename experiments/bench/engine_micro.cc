// The cost of single driver calls to the calling thread:
// - an empty launch that names two blocks of 64 MiB, one, or two of 4 MiB
// - malloc + free of 8 MiB
// - copies of 4 B to 64 MiB from pinned and pageable memory, and memsets, of whole blocks and of parts of a large block
// Run it with and without the hook in turn; the ratio is the row. For launches it also counts the calling thread's own
// instructions, which do not depend on the machine's load.
//   engine_micro [SCALE] [launches]    SCALE: repetitions of each measurement, default 10; launches: only launches
//   engine_micro [SCALE] paired        launches through the hook and around it, alternating in one process: the hook's
//                                      cost, on one core at one clock. Without the hook the difference is about 0.
//   engine_micro [SCALE] stepped       the instructions of 64 * SCALE launches of each kind (16 * SCALE larger than the
//                                      budget) and of the two calls of Triton's launches (a question about a pointer,
//                                      cuLaunchKernelEx), by single-stepping, for machines without a performance
//                                      counter: mean and median of all, and the mean inside the engine, the shim and
//                                      the driver
// Prints one RESULT line of JSON. Needs only libcuda.so.1, found as applications find it.
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/bench/step_counter.h"

namespace {

constexpr const char* kEmptyKernel =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry empty(.param .u64 a, .param .u64 b, .param .u32 n)\n{\n  ret;\n}\n";
// The same for the simulated GPU, which takes PTX for a kernel without parameters, so that the launch would name no
// operand.
constexpr const char* kSimulatedEmptyKernel = "simgpu-module 1\nkernel empty params 8,8,4\n";

void* g_cuda = nullptr;

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define CALL(name, ...)                                                                            \
  do {                                                                                             \
    static const auto function = reinterpret_cast<decltype(&name)>(dlsym(g_cuda, TEXT(name)));     \
    if (function == nullptr) Die(TEXT(name), "is missing");                                        \
    const CUresult result = function(__VA_ARGS__);                                                 \
    if (result != CUDA_SUCCESS) Die(TEXT(name), std::to_string(static_cast<int>(result)).c_str()); \
  } while (false)

[[noreturn]] void Die(const char* what, const char* why) {
  std::fprintf(stderr, "engine_micro: %s: %s\n", what, why);
  std::exit(1);
}

double Now() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Median microseconds of `once` (or the unit of `clock`), measured in batches to hide the clock's own cost.
double Median(int batches, int batch, const std::function<void()>& once, const std::function<void()>& between,
              const std::function<double()>& clock = Now) {
  std::vector<double> times;
  for (int i = 0; i < batches; ++i) {
    const double begin = clock();
    for (int j = 0; j < batch; ++j) once();
    times.push_back((clock() - begin) / batch);
    between();
  }
  std::nth_element(times.begin(), times.begin() + batches / 2, times.end());
  return times[static_cast<size_t>(batches) / 2];
}

void Sync() { CALL(cuCtxSynchronize); }

// This thread's instructions outside the kernel.
class Instructions {
 public:
  Instructions() {
    perf_event_attr what{};
    what.type = PERF_TYPE_HARDWARE;
    what.size = sizeof what;
    what.config = PERF_COUNT_HW_INSTRUCTIONS;
    what.exclude_kernel = what.exclude_hv = 1;
    file_ = static_cast<int>(syscall(SYS_perf_event_open, &what, 0, -1, -1, 0));
  }
  // The count so far; 0 where the machine does not count.
  double Now() const {
    long long n = 0;
    return file_ >= 0 && read(file_, &n, sizeof n) == sizeof n ? static_cast<double>(n) : 0;
  }

 private:
  int file_;
};

// The driver's own function of this name, from libcuda's symbol table: a hook of dlsym does not see the lookup.
void* FindInDriver(const char* name) {
  struct Search {
    const char* name;
    void* found = nullptr;
  } search{name};
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* argument) {
        auto* const wanted = static_cast<Search*>(argument);
        if (std::strstr(object->dlpi_name, "libcuda.so") == nullptr) return 0;
        const char* strings = nullptr;
        const ElfW(Sym)* symbols = nullptr;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          if (object->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
          const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
          for (; entry->d_tag != DT_NULL; ++entry) {  // glibc has relocated these addresses
            if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
            if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
          }
        }
        if (strings == nullptr || symbols == nullptr) return 0;
        // The strings follow the symbols in every linker's layout.
        for (const ElfW(Sym)* s = symbols; reinterpret_cast<const char*>(s) < strings; ++s)
          if (s->st_shndx != SHN_UNDEF && std::strcmp(strings + s->st_name, wanted->name) == 0)
            wanted->found = reinterpret_cast<void*>(object->dlpi_addr + s->st_value);
        return wanted->found != nullptr ? 1 : 0;
      },
      &search);
  return search.found;
}

const std::vector<std::string> kObjects = {"/libsluice_engine.so", "/libsluice.so", "/libcuda.so"};

// Prints the instructions of `count` launches. A stepped launch takes longer than the hook's ticker needs to end its
// fast path, so 50 launches at full speed lie between two that are stepped.
void PrintStepped(sluice::bench::StepCounter& counter, const char* kind, int count,
                  const std::function<void()>& launch) {
  Median(20, 100, launch, Sync);
  const int first = counter.samples();
  for (int i = 0; i < count; ++i) {
    Sync();
    for (int k = 0; k < 50; ++k) launch();
    if (const int error = counter.Attach(); error != 0) Die("ptrace", std::strerror(error));
    counter.Begin();
    launch();
    counter.End();
    counter.Detach();
  }
  std::vector<long> all;
  std::vector<double> mean(kObjects.size());
  double sum = 0;
  for (int i = first; i < counter.samples(); ++i) {
    all.push_back(counter.Count(i));
    sum += static_cast<double>(all.back());
    for (size_t k = 0; k < mean.size(); ++k) mean[k] += static_cast<double>(counter.Count(i, k));
  }
  std::sort(all.begin(), all.end());
  std::printf("\"%s\": {\"mean\": %.1f, \"median\": %ld, \"engine\": %.1f, \"shim\": %.1f, \"driver\": %.1f}", kind,
              sum / count, all[all.size() / 2], mean[0] / count, mean[1] / count, mean[2] / count);
}

}  // namespace

int main(int argc, char** argv) {
  const int scale = argc > 1 ? std::max(1, std::atoi(argv[1])) : 10;
  const bool only_launches = argc > 2;
  const bool paired = only_launches && std::strcmp(argv[2], "paired") == 0;
  const bool stepped = only_launches && std::strcmp(argv[2], "stepped") == 0;
  if (only_launches && !paired && !stepped && std::strcmp(argv[2], "launches") != 0)
    Die(argv[2], "is unknown; accepted: launches, paired, stepped");
  std::optional<sluice::bench::StepCounter> counter;
  if (stepped) counter.emplace(kObjects);
  g_cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (g_cuda == nullptr) Die("libcuda.so.1", dlerror());
  CALL(cuInit, 0);
  CUdevice device = 0;
  CUcontext context = nullptr;
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
  CUmodule module = nullptr;
  CUfunction empty = nullptr;
  const bool simulated = dlsym(g_cuda, "simgpu_next_launch") != nullptr;
  CALL(cuModuleLoadData, &module, simulated ? kSimulatedEmptyKernel : kEmptyKernel);
  CALL(cuModuleGetFunction, &empty, module, "empty");
  CUstream stream = nullptr;
  CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  const size_t max_bytes = size_t{64} << 20;
  CUdeviceptr a = 0, b = 0, c = 0, d = 0;  // b is the large block
  CALL(cuMemAlloc, &a, max_bytes);
  CALL(cuMemAlloc, &b, max_bytes);
  CALL(cuMemsetD8, a, 1, max_bytes);
  CALL(cuMemsetD8, b, 2, max_bytes);
  Sync();

  unsigned n = 3;
  const Instructions instructions;
  struct Cost {
    double us, instructions;
  };
  const auto time_launch = [&](CUdeviceptr* first, CUdeviceptr* second, unsigned grid) {
    void* parameters[] = {first, second, &n};
    const auto launch = [&] { CALL(cuLaunchKernel, empty, grid, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr); };
    Median(20, 100, launch, Sync);
    return Cost{Median(40 * scale, 100, launch, Sync),
                Median(41, 100, launch, Sync, [&] { return instructions.Now(); })};
  };
  // With a budget between 72 and 128 MiB the live set does not fit, but the operands of these launches are resident.
  CALL(cuMemAlloc, &c, size_t{4} << 20);
  CALL(cuMemAlloc, &d, size_t{4} << 20);
  CALL(cuMemsetD8, c, 3, size_t{4} << 20);
  CALL(cuMemsetD8, d, 4, size_t{4} << 20);
  Sync();
  if (paired) {
    const auto around = reinterpret_cast<decltype(&cuLaunchKernel)>(FindInDriver("cuLaunchKernel"));
    if (around == nullptr) Die("cuLaunchKernel", "was not found in libcuda itself");
    const auto differences = [&](CUdeviceptr* first, CUdeviceptr* second, unsigned grid) {
      void* parameters[] = {first, second, &n};
      const auto through = [&] { CALL(cuLaunchKernel, empty, grid, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr); };
      const auto past = [&] {
        if (around(empty, grid, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr) != CUDA_SUCCESS)
          Die("launch", "failed");
      };
      Median(20, 100, through, Sync);
      std::vector<double> added, bare;
      for (int i = 0; i < 40 * scale; ++i) {
        double us[2];
        for (const int which : {i % 2, 1 - i % 2}) {
          const double begin = Now();
          for (int j = 0; j < 100; ++j) which == 0 ? past() : through();
          us[which] = (Now() - begin) / 100;
          Sync();
        }
        added.push_back(us[1] - us[0]);
        bare.push_back(us[0]);
      }
      std::sort(added.begin(), added.end());
      std::sort(bare.begin(), bare.end());
      const size_t size = added.size();
      std::printf("{\"added_us\": [%.4f, %.4f, %.4f], \"bare_us\": %.4f}", added[size / 4], added[size / 2],
                  added[size * 3 / 4], bare[size / 2]);
    };
    std::printf("RESULT {\"small\": ");
    differences(&c, &d, 1);
    std::printf(", \"one\": ");
    differences(&b, &b, 2);
    std::printf("}\n");
    return 0;
  }
  if (stepped) {
    const int count = std::min(64 * scale, sluice::bench::StepCounter::kMaxSamples / 5);
    const auto print = [&](const char* kind, int launches, CUdeviceptr* first, CUdeviceptr* second, unsigned grid) {
      void* parameters[] = {first, second, &n};
      PrintStepped(*counter, kind, launches,
                   [&] { CALL(cuLaunchKernel, empty, grid, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr); });
    };
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    std::printf("RESULT {");
    print("small", count, &c, &d, 1);
    std::printf(", ");
    print("one", count, &b, &b, 2);
    std::printf(", ");
    print("two", count / 4, &a, &b, 3);
    // As Triton launches: a question about each pointer, and a launch with a configuration.
    CUdeviceptr mapped = 0;
    std::printf(", ");
    PrintStepped(*counter, "question", count,
                 [&] { CALL(cuPointerGetAttribute, &mapped, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, c); });
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 32;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    void* parameters[] = {&c, &d, &n};
    std::printf(", ");
    PrintStepped(*counter, "extended", count, [&] { CALL(cuLaunchKernelEx, &config, empty, parameters, nullptr); });
    std::printf("}\n");
    return 0;
  }
  const Cost small = time_launch(&c, &d, 1);
  const Cost one = time_launch(&b, &b, 2);
  // More than the budget.
  const Cost two = time_launch(&a, &b, 3);
  std::printf(
      "RESULT {\"launch_us\": %.4f, \"launch_one_us\": %.4f, \"launch_small_us\": %.4f, \"launch_instructions\": "
      "{\"two\": %.0f, \"one\": %.0f, \"small\": %.0f}",
      two.us, one.us, small.us, two.instructions, one.instructions, small.instructions);
  if (only_launches) {
    std::printf("}\n");
    return 0;
  }
  const double alloc_us = Median(
      20 * scale, 10,
      [] {
        CUdeviceptr p = 0;
        CALL(cuMemAlloc, &p, size_t{8} << 20);
        CALL(cuMemFree, p);
      },
      Sync);
  std::printf(", \"malloc_free_8m_us\": %.4f, \"copies\": {", alloc_us);
  void* pinned = nullptr;
  CALL(cuMemHostAlloc, &pinned, max_bytes, 0);
  std::vector<char> pageable(max_bytes, 1);
  std::memset(pinned, 1, max_bytes);
  bool first = true;
  const auto print = [&first](const std::string& what, double us) {
    std::printf("%s\"%s\": %.3f", first ? "" : ", ", what.c_str(), us);
    first = false;
  };
  const auto set = [&](CUdeviceptr to, size_t bytes) {
    return Median(10 * scale, 20, [=] { CALL(cuMemsetD8Async, to, 0, bytes, stream); }, Sync);
  };
  for (size_t bytes = 4; bytes <= max_bytes; bytes *= 16) {
    CUdeviceptr own = a;
    if (bytes < max_bytes) CALL(cuMemAlloc, &own, bytes);
    const int batches = bytes >= (size_t{1} << 20) ? 3 * scale : 10 * scale,
              batch = bytes >= (size_t{1} << 20) ? 2 : 20;
    for (const bool is_pinned : {true, false}) {
      void* host = is_pinned ? pinned : pageable.data();
      const std::string what = (is_pinned ? "pinned " : "pageable ") + std::to_string(bytes);
      for (const CUdeviceptr block : {own, b}) {
        if (block == b && bytes >= (size_t{1} << 20)) continue;
        const std::string of = block == b ? " of a large block" : "";
        print(what + " in" + of, Median(batches, batch, [&] { CALL(cuMemcpyHtoD, block, host, bytes); }, Sync));
        print(what + " out" + of, Median(batches, batch, [&] { CALL(cuMemcpyDtoH, host, block, bytes); }, Sync));
      }
    }
    if (bytes == 64) {
      print("memset 64", set(own, bytes));
      print("memset 64 of a large block", set(b, bytes));
    }
    if (bytes < max_bytes) CALL(cuMemFree, own);
  }
  // The process's own memory: the difference is the hook's part.
  long rss = 0;
  if (std::FILE* f = std::fopen("/proc/self/statm", "r")) {
    long total = 0;
    if (std::fscanf(f, "%ld %ld", &total, &rss) != 2) rss = 0;
    std::fclose(f);
  }
  std::printf("}, \"rss_bytes\": %ld}\n", rss * 4096);
  return 0;
}
