// The frame of every driver call: lock, host time, the errors that any call can give, capture rules.
#ifndef SIMGPU_API_CALL_H_
#define SIMGPU_API_CALL_H_

// Exact ELF names: no renaming macros, old declarations included.
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <atomic>
#include <deque>

#include "handles.h"

namespace simgpu {

struct ThreadState {
  std::vector<CUcontext> contexts;  // the stack; its back is current
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::map<CUcontext, CUstream> per_thread;  // CU_STREAM_PER_THREAD
  // simgpu_next_launch
  bool described = false;  // the next launch
  std::vector<Touch> touches;
  int64_t duration = 0;
  uint32_t flags = 0;
  std::vector<uint8_t> parameters;  // of the kernel that is being launched
  // simgpu_next_sets
  uint64_t sets = 0;
  std::vector<unsigned> values;
};
ThreadState& ThisState();

struct Driver {
  bool initialised = false;
  std::atomic<bool> forked{false};     // or the process ends: every call fails from here on
  std::vector<int> visible;            // CUDA_VISIBLE_DEVICES: each device's card
  std::vector<CUctx_st*> primary;      // by card, as the pools below
  std::set<CUcontext> contexts;        // green ones too
  std::deque<CUcontext> ended_greens;  // the latest ones: their handles have an error of their own
  uint64_t next_id = 1;
  CUresult sticky = CUDA_SUCCESS;
  std::set<std::shared_ptr<SimCapture>> captures;                       // active ones
  std::map<uint64_t, std::pair<uint64_t, unsigned>> host_memory;        // pinned: address -> size, flags
  std::vector<CUmemoryPool> default_pools, current_pools, graph_pools;  // the last: for allocation nodes of graphs
  std::map<uint64_t, SimObject> objects;                                // textures and surfaces
  uint64_t next_object = 1;
  const ThreadState* holder = nullptr;  // the thread whose call holds the driver's lock while it waits for the GPU
};
Driver& TheDriver();
inline Simulator& Sim() { return TheSimulator(); }

// kAlways: also in a context that an error has ended.
enum CallKind { kNormal, kUnsafeInCapture, kNeedsNoInit, kAlways };

// SIMGPU_TRACE_CALLS=1: every call on stderr, to see a program's use of the driver.
void TraceCall(const char* what, const char* detail);

// The latest of all threads: one of them may have seen the end of work that is done by then, and told this thread.
int64_t SeenTime();

class Call {
 public:
  // Costs host_ns of the calling thread's time.
  explicit Call(int64_t host_ns, const char* name, CallKind kind = kNormal);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  CUresult error = CUDA_SUCCESS;
  Simulator::Lock lock;
  const char* name;  // ends in "Impl" for calls with two stream flavours
  std::string Name() const;
};

// Programs number the devices that they see; the simulation, the side channel and NVML number all cards.
CUresult ReadVisibleCards(std::vector<int>* out);
bool CardOf(CUdevice device, int* card);
CUdevice DeviceOf(int card);

// Current context or null; and the checked handles. kPerThread names the meaning of stream 0.
CUcontext CurrentContext();
CUresult ResolveStream(CUstream handle, bool per_thread, CUstream* out);
bool ValidContext(CUcontext c);
bool EndedGreen(CUcontext c);
CUresult NoContext();  // the error of a call without a usable current context
// The primary context of a green one, otherwise `c`.
inline CUcontext OwnerOf(CUcontext c) { return c->parent != nullptr ? c->parent : c; }
// The context's streams; a primary context's green contexts have theirs too.
std::vector<CUcontext> WithGreenContexts(CUcontext c);
void WaitFor(Call& call, CUcontext c, const char* what);
// The contexts besides that of the stream in which a copy runs. The driver runs one inside device memory in the context
// of its source; copies to the host are taken to run there, too. Without peer access from there to the other GPU it has
// a part in the destination's, too (two H200s, driver 580).
std::vector<CUcontext> OtherContextsOf(CUcontext queued_in, uint64_t to, uint64_t from);
bool ValidEvent(CUevent e);
CUstream NewStreamHandle(CUcontext c, unsigned flags, int priority, bool legacy);
void DestroyContext(Call& call, CUcontext c);
void ActivatePrimary(CUcontext c);
bool ChargeContext(int card);    // false: no memory for the process' first context on the card
void EndGathering(CUcontext c);  // what cuCtxRecordEvent and cuCtxWaitEvent keep
// An event of everything that the contexts' streams have queued, or a wait of all of them for one.
CUresult RecordContexts(Call& call, const std::vector<CUcontext>& contexts, CUevent e);
CUresult WaitInContexts(Call& call, const std::vector<CUcontext>& contexts, CUevent e);

// Runs `op` on the stream, or makes it a node of the graph being captured. Takes op over.
CUresult Dispatch(Call& call, CUstream s, Op* op, CUgraphNodeType type, CUgraphNode* node = nullptr);

// Capture.
CUresult RefuseInCapture(Call& call);             // unsafe calls; invalidates
CUresult RefuseImplicit(Call& call, CUstream s);  // the legacy stream beside a captured blocking one; invalidates
CUresult CaptureMisuse(Call& call, CUstream s, CUresult error);
CUgraphNode AddNode(CUgraph g, CUgraphNodeType type, const CUgraphNode* after, size_t count);
bool Capturing(CUstream s);
bool AnyCaptures(const std::vector<CUcontext>& contexts, Call& call);  // invalidates those

// Memory.
Allocation* FindAllocation(CUdeviceptr p);
bool IsPinned(uint64_t address);
bool FindPinned(uint64_t address, uint64_t* base, uint64_t* size);
bool IsAccessible(uint64_t address, uint64_t length);                    // VMM memory: a device has rights to all of it
bool FindReservation(uint64_t address, uint64_t* base, uint64_t* size);  // cuMemAddressReserve's, mapped or not
CUresult FreeNow(CUdeviceptr p);
CUmemoryPool PoolOf(const Allocation& a);  // null: of none
CUmemoryPool DefaultPool(int card);
void FreeArray(CUarray array);
const CUmemAllocationProp& MappedProperties(const Allocation& a);  // of the memory of a mapping
constexpr uint64_t kMaxDecompressedBytes = 4 << 20;                // CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH
bool IsDecompressCapable(const Allocation& a);
void NotePrefetch(const PrefetchRange& range);  // for cuMemRangeGetAttribute

// Launches.
CUresult MakeKernelOp(CUfunction f, void** params, void** extra, const SimKernelCall* described, Op** op,
                      SimKernelCall* call);
SimKernelInfo* KernelInfo(CUfunction f);
Op* CloneOp(const Op& op);

bool HasSymbol(const char* elf_name);  // in the simulated driver's version

}  // namespace simgpu

#define SIM_CONCAT2(a, b) a##b
#define SIM_CONCAT(a, b) SIM_CONCAT2(a, b)
#define BEGIN_KIND(host_ns, kind)                 \
  simgpu::Call call((host_ns), __func__, (kind)); \
  if (call.error != CUDA_SUCCESS) return call.error
#define BEGIN(host_ns) BEGIN_KIND(host_ns, simgpu::kNormal)
#define BEGIN_ALWAYS(host_ns) BEGIN_KIND(host_ns, simgpu::kAlways)
#define BEGIN_UNSAFE(host_ns) BEGIN_KIND(host_ns, simgpu::kUnsafeInCapture)
#define NEED(condition, error) \
  if (!(condition)) return (error)
#define NEED_ARG(condition) NEED(condition, CUDA_ERROR_INVALID_VALUE)
#define NEED_CONTEXT()                                \
  CUcontext context = simgpu::CurrentContext();       \
  if (context == nullptr) return simgpu::NoContext(); \
  (void)context
// Gives the owner of memory, modules and events: a green context owns only streams.
#define NEED_OWNER() \
  NEED_CONTEXT();    \
  context = simgpu::OwnerOf(context)

// An entry point in two stream flavours, with one body: ENTRY(cuX, _ptsz, (params), (arguments)) { ... kPerThread ... }
// NOLINTBEGIN(bugprone-macro-parentheses): lists of parameters and arguments bring their own
#define ENTRY(name, suffix, params, arguments)                                                           \
  template <bool kPerThread>                                                                             \
  static CUresult SIM_CONCAT(name, Impl) params;                                                         \
  extern "C" CUresult name params { return SIM_CONCAT(name, Impl)<false> arguments; }                    \
  extern "C" CUresult SIM_CONCAT(name, suffix) params { return SIM_CONCAT(name, Impl)<true> arguments; } \
  template <bool kPerThread>                                                                             \
  static CUresult SIM_CONCAT(name, Impl) params
// NOLINTEND(bugprone-macro-parentheses)
#define NEED_CARD(device) \
  int card = -1;          \
  NEED(simgpu::CardOf((device), &card), CUDA_ERROR_INVALID_DEVICE)
#define NEED_STREAM(handle)  \
  CUstream stream = nullptr; \
  if (const CUresult wrong = simgpu::ResolveStream((handle), kPerThread, &stream); wrong != CUDA_SUCCESS) return wrong
// For a call that queues work in the stream or waits for it.
#define NEED_QUEUE(handle) \
  NEED_STREAM(handle);     \
  if (const CUresult refused = simgpu::RefuseImplicit(call, stream); refused != CUDA_SUCCESS) return refused
// The same for a call that a capture of another stream may bar (an unsafe call). It stands behind BEGIN, not behind
// BEGIN_UNSAFE, since the driver checks the legacy stream first (H200, driver 580).
#define NEED_UNSAFE_QUEUE(handle)                                                                     \
  NEED_QUEUE(handle);                                                                                 \
  if (!simgpu::TheDriver().captures.empty() && !simgpu::Capturing(stream)) {                          \
    if (const CUresult barred = simgpu::RefuseInCapture(call); barred != CUDA_SUCCESS) return barred; \
  }

#endif  // SIMGPU_API_CALL_H_
