// Decode steps of an inference server on the simulated GPU: each layer names its weights and its whole paged cache, and
// touches the pages of the sequences that run. Prints virtual microseconds a step: the mean of the first 50 steps, the
// median of those behind the first two seconds, and the share of these that took over five times the median.
//   paged_bench NAME [WEIGHTS_MIB CACHE_MIB SECONDS LAYERS BUFFER_MIB SLOTS_IN_USE STEPS_OF_SLOT]
// NAME is PAGES-LAYOUT-LAUNCH:
//   PAGES: first (the first twelfth of each layer's cache), strewn (half of its pages of 64 KiB, at random), churn (one
//     page more in each step; each 20 steps one of 16 sequences ends and another begins), slots (16 slots of equal size
//     in each layer's cache, as llama.cpp has; SLOTS_IN_USE (4) run, in a tenth of their slots; each STEPS_OF_SLOT (20)
//     steps one ends, and a prompt begins in the slot that was idle the longest: launches one by one, and another
//     graph; each step copies its inputs in another stream)
//   LAYOUT: layers (an allocation for each layer's cache), block (one allocation, which the layers divide)
//   LAUNCH: graph (a step is one CUDA graph), eager (launches one by one, with a framework's pauses between them),
//   mixed
//     (graphs for 200 steps, then launches one by one, as llama.cpp with one request and then several)
// The last figure is a digest of the first 64 steps' results, to be compared with a run without the hook.
#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "simgpu/tests/card.h"
#include "trace/replay/sleep.h"

namespace {

using simgpu_test::kMiB;
using simgpu_test::Read;
using simgpu_test::Update;

constexpr uint64_t kPage = 64 << 10, kActivations = 2 * kMiB, kPromptActivations = 64 * kMiB;
constexpr uint64_t kKernelNs = 17'000, kHostNs = 75'000;  // of a kernel; of the framework between two launches
constexpr size_t kSequences = 16;
constexpr uint64_t kGraphSteps = 200;

struct Options {
  std::string pages, layout, launch;
  uint64_t weights = 1600 * kMiB, cache = 4096 * kMiB, layers = 32, buffer = 2 * kMiB;
  uint64_t slots_in_use = 4, slot_steps = 20;
  double seconds = 6;
};

class Server {
 public:
  explicit Server(const Options& options) : options_(options) {
    CUmodule module = nullptr;
    OK(cuModuleLoadData(&module, "simgpu-module 1\nkernel three params 8,8,8 ns 20000\n"));
    OK(cuModuleGetFunction(&three_, module, "three"));
    stream_ = card_.Stream();
    copy_stream_ = card_.Stream();
    activations_ = Take(options.buffer);
    const uint64_t layer_cache = options.cache / options.layers;
    pages_ = layer_cache / kPage;
    const CUdeviceptr all = options.layout == "block" ? Take(options.cache) : 0;
    for (uint64_t i = 0; i < options.layers; ++i) {
      for (int half = 0; half < 2; ++half) weights_.push_back(Take(options.weights / options.layers / 2));
    }
    for (uint64_t i = 0; i < options.layers; ++i) caches_.push_back(all ? all + i * layer_cache : Take(layer_cache));
    InitPages();
    OK(cuStreamSynchronize(stream_));
  }

  void Step() {
    if (options_.pages == "churn") Churn();
    if (options_.pages == "slots") CopyInputs();
    if (options_.pages == "slots" && step_++ % options_.slot_steps == 0) NextSlot();
    if (options_.launch == "graph" || (options_.launch == "mixed" && graph_steps_++ < kGraphSteps)) {
      if (!executable_) Capture();
      OK(cuGraphLaunch(executable_, stream_));
      simgpu_advance_host(100'000);
    } else {
      Layers();
    }
    OK(cuStreamSynchronize(stream_));
  }

  uint64_t Digest() const {
    uint64_t digest = simgpu_digest(activations_, kActivations);
    for (const CUdeviceptr cache : caches_)
      digest = digest * 31 + simgpu_digest(cache, options_.cache / options_.layers);
    return digest;
  }
  simgpu_test::Card& card() { return card_; }

 private:
  CUdeviceptr Take(uint64_t bytes) {
    CUdeviceptr p = 0;
    OK(cuMemAlloc(&p, bytes));
    OK(cuMemsetD32Async(p, static_cast<unsigned>(++taken_), bytes / 4, stream_));
    return p;
  }
  void Launch(CUdeviceptr a, CUdeviceptr b, const std::vector<simgpu_touch>& touches, unsigned shape,
              simgpu_kernel kind) {
    simgpu_next_launch(touches.data(), touches.size(), kKernelNs, SIMGPU_KERNEL(kind));
    CUdeviceptr none = 0;
    void* params[] = {&a, &b, &none};
    OK(cuLaunchKernel(three_, shape, 1, 1, 1, 1, 1, 0, stream_, params, nullptr));
    if (!capturing_) simgpu_advance_host(kHostNs);
  }
  void Layers() {
    for (size_t i = 0; i < caches_.size(); ++i) {
      const uint64_t half = options_.weights / options_.layers / 2;
      Launch(weights_[2 * i], activations_, {Read(weights_[2 * i], half), Update(activations_, kActivations)}, 1,
             SIMGPU_FEW_ROWS);
      Launch(caches_[i], activations_, {Read(activations_, kActivations), Update(caches_[i] + newest_ * kPage, 4096)},
             2, SIMGPU_ELEMENTWISE);
      std::vector<simgpu_touch> touches{Update(activations_, kActivations)};
      for (const auto& [first, count] : runs_) touches.push_back(Read(caches_[i] + first * kPage, count * kPage));
      Launch(caches_[i], activations_, touches, 3, SIMGPU_PRODUCT);
      Launch(weights_[2 * i + 1], activations_, {Read(weights_[2 * i + 1], half), Update(activations_, kActivations)},
             4, SIMGPU_FEW_ROWS);
    }
  }
  // As llama.cpp: tokens, positions and masks go to the buffer in another stream, which is waited for.
  void CopyInputs() {
    static const std::vector<char> inputs(4096);
    for (int i = 0; i < 4; ++i) {
      OK(cuMemcpyHtoDAsync(activations_ + options_.buffer - kActivations / 2 + i * inputs.size(), inputs.data(),
                           inputs.size(), copy_stream_));
    }
    OK(cuStreamSynchronize(copy_stream_));
  }
  void Capture() {
    CUgraph graph = nullptr;
    OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
    capturing_ = true;
    Layers();
    capturing_ = false;
    OK(cuStreamEndCapture(stream_, &graph));
    OK(cuGraphInstantiate(&executable_, graph, 0));
    OK(cuGraphDestroy(graph));
  }
  // A prompt fills a tenth of the next slot; the graph of the decode steps is made anew.
  void NextSlot() {
    const uint64_t slot_pages = pages_ / kSequences, used = std::max<uint64_t>(1, slot_pages / 10);
    const uint64_t slot = prompts_++ % kSequences, buffer = std::min(options_.buffer, kPromptActivations);
    for (size_t i = 0; i < caches_.size(); ++i) {
      const uint64_t half = options_.weights / options_.layers / 2;
      Launch(weights_[2 * i], activations_, {Read(weights_[2 * i], half), Update(activations_, buffer)}, 5,
             SIMGPU_PRODUCT);
      Launch(caches_[i], activations_,
             {Read(activations_, buffer), Update(caches_[i] + slot * slot_pages * kPage, used * kPage)}, 6,
             SIMGPU_ELEMENTWISE);
      Launch(weights_[2 * i + 1], activations_, {Read(weights_[2 * i + 1], half), Update(activations_, buffer)}, 7,
             SIMGPU_PRODUCT);
    }
    runs_.clear();
    for (uint64_t i = prompts_ - std::min(prompts_, options_.slots_in_use); i < prompts_; ++i)
      runs_.emplace_back(i % kSequences * slot_pages, used);
    newest_ = slot * slot_pages;
    if (executable_) OK(cuGraphExecDestroy(executable_));
    executable_ = nullptr;
  }

  void InitPages() {
    std::vector<bool> used(pages_);
    if (options_.pages == "strewn") {
      for (uint64_t page = 0; page < pages_; ++page) used[page] = random_() % 2 != 0;
    } else if (options_.pages == "first") {
      std::fill_n(used.begin(), pages_ / 12, true);
    } else if (options_.pages == "churn") {
      sequences_.resize(kSequences);
      for (size_t i = 0; i < kSequences; ++i) Begin(i);
    }
    SetRuns(used);
  }
  // Sequences begin where the last one ended, as a server's free list hands pages out.
  void Begin(size_t i) {
    sequences_[i].clear();
    const uint64_t count = pages_ / 12 / kSequences;
    for (uint64_t k = 0; k < count; ++k) sequences_[i].push_back(TakePage());
  }
  uint64_t TakePage() {
    while (std::any_of(sequences_.begin(), sequences_.end(), [this](const std::vector<uint64_t>& pages) {
      return std::find(pages.begin(), pages.end(), next_page_) != pages.end();
    }))
      next_page_ = (next_page_ + 1) % pages_;
    return next_page_;
  }
  void Churn() {
    if (++step_ % 20 == 0) Begin(ended_++ % kSequences);
    sequences_[step_ % kSequences].push_back(TakePage());
    newest_ = next_page_;
    std::vector<bool> used(pages_);
    for (const std::vector<uint64_t>& pages : sequences_) {
      for (const uint64_t page : pages) used[page] = true;
    }
    SetRuns(used);
  }
  void SetRuns(const std::vector<bool>& used) {
    runs_.clear();
    for (uint64_t page = 0; page < pages_; ++page) {
      if (!used[page]) continue;
      if (!runs_.empty() && runs_.back().first + runs_.back().second == page) {
        ++runs_.back().second;
      } else {
        runs_.emplace_back(page, 1);
      }
    }
  }

  const Options options_;
  simgpu_test::Card card_;
  CUfunction three_ = nullptr;
  CUstream stream_ = nullptr, copy_stream_ = nullptr;
  CUgraphExec executable_ = nullptr;
  CUdeviceptr activations_ = 0;
  std::vector<CUdeviceptr> weights_, caches_;
  uint64_t taken_ = 0, pages_ = 0, newest_ = 0, step_ = 0, next_page_ = 0, ended_ = 0, prompts_ = 0, graph_steps_ = 0;
  bool capturing_ = false;
  std::vector<std::vector<uint64_t>> sequences_;
  std::vector<std::pair<uint64_t, uint64_t>> runs_;  // first page and number, of the pages in use
  std::mt19937_64 random_{11};
};

bool Parse(int argc, char** argv, Options* options) {
  const std::string name = argc > 1 ? argv[1] : "";
  const size_t first = name.find('-'), last = name.rfind('-');
  if (first == std::string::npos || last == first) return false;
  options->pages = name.substr(0, first);
  options->layout = name.substr(first + 1, last - first - 1);
  options->launch = name.substr(last + 1);
  if (argc > 2) options->weights = std::strtoull(argv[2], nullptr, 10) * kMiB;
  if (argc > 3) options->cache = std::strtoull(argv[3], nullptr, 10) * kMiB;
  if (argc > 4) options->seconds = std::strtod(argv[4], nullptr);
  if (argc > 5) options->layers = std::strtoull(argv[5], nullptr, 10);
  if (argc > 6) options->buffer = std::strtoull(argv[6], nullptr, 10) * kMiB;
  if (argc > 7) options->slots_in_use = std::strtoull(argv[7], nullptr, 10);
  if (argc > 8) options->slot_steps = std::strtoull(argv[8], nullptr, 10);
  const auto is = [](const std::string& what, std::initializer_list<const char*> any) {
    return std::find(any.begin(), any.end(), what) != any.end();
  };
  // A graph's touches are those of its capture: its pages cannot change.
  return is(options->pages, {"first", "strewn", "churn", "slots"}) && is(options->layout, {"layers", "block"}) &&
         is(options->launch, {"graph", "eager", "mixed"}) &&
         !(options->pages == "churn" && options->launch != "eager") && options->layers != 0 &&
         options->slots_in_use != 0 && options->slot_steps != 0 && options->buffer >= kActivations &&
         options->weights >= options->layers * 2 * kMiB && options->cache >= options->layers * 2 * kMiB;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: paged_bench first|strewn|churn|slots-layers|block-graph|eager|mixed "
                 "[WEIGHTS_MIB CACHE_MIB SECONDS LAYERS BUFFER_MIB SLOTS_IN_USE STEPS_OF_SLOT]\n");
    return 2;
  }
  OK(cuInit(0));
  sluice::replay::SleepOnSimulatedClock(&simgpu_advance_host);
  Server server(options);
  const uint64_t begin = simgpu_now_ns();
  std::vector<double> first, settled;
  uint64_t steps = 0, digest = 0;
  struct simgpu_stats before{};
  for (uint64_t now = begin; now < begin + static_cast<uint64_t>(options.seconds * 1e9) || settled.size() < 20;) {
    const bool is_settled = now >= begin + 2'000'000'000;
    if (is_settled && settled.empty()) before = server.card().Stats();
    server.Step();
    if (++steps == 64) digest = server.Digest();
    const uint64_t end = simgpu_now_ns();
    const double us = static_cast<double>(end - now) / 1e3;
    if (first.size() < 50) first.push_back(us);
    if (is_settled) settled.push_back(us);
    now = end;
  }
  const auto after = server.card().Stats();
  const auto mib = [&](uint64_t a, uint64_t b) {
    return static_cast<double>(b - a) / 0x1p20 / static_cast<double>(settled.size());
  };
  std::fprintf(stderr, "a settled step: %.1f MiB fetched, %.1f by faults, %.1f remote, %.1f evicted\n",
               mib(before.prefetch_in_bytes, after.prefetch_in_bytes), mib(before.fault_bytes, after.fault_bytes),
               mib(before.remote_bytes, after.remote_bytes), mib(before.prefetch_out_bytes, after.prefetch_out_bytes));
  std::fprintf(stderr, "resident peak %.0f MiB, steps %zu\n", static_cast<double>(after.resident_peak_bytes) / 0x1p20,
               settled.size());
  std::fprintf(stderr, "first steps, ms:");
  for (const double us : first) std::fprintf(stderr, " %.1f", us / 1e3);
  std::fprintf(stderr, "\nmeans of 50 settled steps, ms:");
  for (size_t i = 0; i + 50 <= settled.size(); i += 50) {
    const auto from = settled.begin() + static_cast<std::ptrdiff_t>(i);
    std::fprintf(stderr, " %.1f", std::accumulate(from, from + 50, 0.0) / 50e3);
  }
  std::fprintf(stderr, "\n");
  double sum = 0;
  for (const double us : first) sum += us;
  std::vector<double> sorted = settled;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2];
  double all = 0;
  for (const double us : settled) all += us;
  const auto slow = std::count_if(settled.begin(), settled.end(), [&](double us) { return us > 5 * median; });
  std::printf("%.1f %.1f %.1f %.4f %016llx\n", sum / static_cast<double>(first.size()), median,
              all / static_cast<double>(settled.size()),
              static_cast<double>(slow) / static_cast<double>(settled.size()), static_cast<unsigned long long>(digest));
  return 0;
}
