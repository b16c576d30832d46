// The objects of one generated program and the operations on them. A step of a program is one expression of steps.def
// over these names; a shrunk program is printed as C++ over this header.
//
// Objects are numbered: p[3] is the program's third memory block. Not thread-safe: threads of a program take turns,
// except inside Beside().
#ifndef SLUICE_TEST_DIFFERENTIAL_MACHINE_H_
#define SLUICE_TEST_DIFFERENTIAL_MACHINE_H_

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace differential {

// Upper bounds of object numbers. A program creates fewer.
constexpr int kMaxBlocks = 512, kMaxStreams = 128, kMaxEvents = 2048, kMaxContexts = 16, kMaxGraphs = 64;
constexpr int kMaxThreads = 6, kMaxPools = 32, kMaxModules = 32, kMaxMarks = 2048, kMaxSemaphores = 64;

// Objects by number. s[0] is the legacy stream, s[1] the per-thread default stream, s[2] the null handle.
extern CUcontext c[kMaxContexts];
extern CUdeviceptr p[kMaxBlocks];
extern void* h[kMaxBlocks];
extern CUstream s[kMaxStreams];
extern CUevent e[kMaxEvents];
extern CUgraph g[kMaxGraphs];
extern CUgraphExec x[kMaxGraphs];
extern CUmemoryPool pool[kMaxPools];
extern CUmodule m[kMaxModules];
extern CUarray arr[kMaxBlocks];  // of the block of the same number
extern CUtexObject tex[kMaxBlocks];
extern CUsurfObject surf[kMaxBlocks];
#if CUDA_VERSION >= 12040
extern CUgreenCtx green[kMaxContexts];
#endif

// True on the simulated GPU.
bool Simulated();
// Number of GPUs; initialises CUDA. Exits with status 77 without a GPU.
int Start();

// Loads the kernels into the current context as module m[module].
CUresult Load(int module);
// The address of the module's global array of kGlobalBytes, as block p[block].
constexpr size_t kGlobalBytes = 65536;
CUresult Global(int block, int module);

// Ways to launch a kernel.
enum Form { kPlain, kExtra, kExtended, kCooperative, kKernelHandle, kForms };
// out[i] = mix of a[i], b[i] and k, in words of 4 bytes; out may be a or b. `bytes` is a multiple of 4.
CUresult Mix(int module, CUstream stream, Form form, CUdeviceptr out, CUdeviceptr a, CUdeviceptr b, size_t bytes,
             uint64_t k);
// data[i] = mix of data[i] and k.
CUresult Update(int module, CUstream stream, Form form, CUdeviceptr data, size_t bytes, uint64_t k);
// The same to the block whose address is at `table` in device memory: no argument names it.
CUresult Chase(int module, CUstream stream, CUdeviceptr table, size_t bytes, uint64_t k);

// cuMemcpy2DAsync of `rows` rows of `width` bytes between pitched device memory; with a null stream cuMemcpy2D.
CUresult Copy2D(CUdeviceptr to, size_t to_pitch, CUdeviceptr from, size_t from_pitch, size_t width, size_t rows,
                CUstream stream, bool waits);
CUresult CopyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                  CUstream stream);
CUresult CopyBatch(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);

CUresult Pitched(CUdeviceptr* out, size_t width, size_t rows);
CUresult MakePool(CUmemoryPool* out, int device);
// Maps `bytes` of VMM memory of a GPU at a reserved address; Unmap() gives all back. Multiples of 2 MiB. `form`, below
// kMapForms, a sum. 1: the memory is created before the address is reserved. 2: there is a mapping below it, which ends
// with it. 4: one above it, which ends at once. 8: the handle is released with the mapping, not before it is used.
// 16: the memory is made for export.
constexpr int kMapForms = 16, kMoreMapForms = 32;
CUresult Map(CUdeviceptr* out, size_t bytes, int device, int form);
// Unmaps it and maps the same memory there again; `elsewhere`: and in another place in between.
CUresult Remap(CUdeviceptr at, size_t bytes, int device, bool elsewhere);
CUresult Unmap(CUdeviceptr at, size_t bytes);
// Maps a handle at an address of its own. KeepMapping(): Unmap() is to end it.
CUresult MapHandle(CUdeviceptr* out, size_t bytes, int device, CUmemGenericAllocationHandle handle);
void KeepMapping(CUdeviceptr at, size_t bytes);
// Maps the memory that is mapped at `at` a second time for a moment; exports it. The hook may refuse either, beside
// threads that queue work: the contents stay.
CUresult Alias(CUdeviceptr at, size_t bytes, int device);
CUresult Export(CUdeviceptr at);
// A semaphore of another interface, which one stream signals and another waits for.
CUresult MakeSemaphore(int semaphore);
CUresult SignalSemaphore(int semaphore, CUstream stream);
CUresult WaitSemaphore(int semaphore, CUstream stream);
CUresult MakeManagedPool(CUmemoryPool* out, int device);
// A pool for decompression by hardware. Unpack() writes `unpacked` bytes and their number behind them.
CUresult MakeUnpackPool(CUmemoryPool* out, int device);
CUresult Unpack(CUdeviceptr to, CUdeviceptr from, size_t packed, size_t unpacked, CUstream stream, bool is_expected);
// malloc and cuMemHostRegister; Unregister() frees.
CUresult Register(void** out, size_t bytes);
CUresult Unregister(void* memory);

CUresult Prefetch(CUdeviceptr at, size_t bytes, int device, CUstream stream);  // device -1: host
CUresult Advise(CUdeviceptr at, size_t bytes, CUmem_advise advice, int device);
CUresult Discard(CUdeviceptr at, size_t bytes, CUstream stream);

CUresult MakeContext(CUcontext* out, int device);
// A green context of 16 multiprocessors, and its CUcontext as c[context].
CUresult MakeGreen(int context, int device);
CUresult GreenStream(CUstream* out, int context);
CUresult EndGreen(int context);

// cuStreamQuery, or cuEventQuery, until the work is done.
CUresult PollStream(CUstream stream);
CUresult PollEvent(CUevent event);
// A host function on `stream` that sets mark number `mark`; WaitMark() waits for it.
CUresult SetMark(int mark, CUstream stream);
CUresult WaitMark(int mark);
// A kernel node, a copy and a fill added to a graph by calls, each after the one before.
// `values`: 0, or how many words the last node writes as a stream's values; 0 with kInConditional.
enum GraphShape { kByCalls, kByStruct, kInConditional, kInChild, kCloned, kGraphShapes };
CUresult BuildGraph(int graph, GraphShape shape, CUdeviceptr data, CUdeviceptr copy, size_t bytes, uint64_t k,
                    int values, int module);
// The parameters of a kernel node that launches `update`.
CUDA_KERNEL_NODE_PARAMS UpdateNode(int module, void** params);
// Gives the kernel node of x[graph], made by BuildGraph() in a graph of its own, another `k`.
CUresult SetNode(int graph, int module, CUdeviceptr data, size_t bytes, uint64_t k);
// Captures a stream's work into `graph`, behind the nodes that it has. `is_new`: it is made first.
CUresult CaptureTo(CUstream stream, int graph, CUstreamCaptureMode mode, bool is_new);
CUresult Instantiate(CUgraphExec* out, CUgraph graph);
// Stops the update of an executable graph by the graph that it was made of.
CUresult UpdateExec(CUgraphExec exec, CUgraph graph);

// Arrays of words: `rows` rows of `width` bytes. Copies are of the first rows; memory holds them without a gap.
enum ImageForm { kTwoDimensions, kTwoDimensionsNow, kThreeDimensions, kImageForms };
CUresult MakeArray(CUarray* out, size_t width, size_t rows);
CUresult ToArray(CUarray to, CUdeviceptr from, size_t width, size_t rows, CUstream stream, ImageForm form);
CUresult FromArray(CUdeviceptr to, CUarray from, size_t width, size_t rows, CUstream stream, ImageForm form);
CUresult BetweenArrays(CUarray to, CUarray from, size_t width, size_t rows, CUstream stream, ImageForm form);
CUresult CheckArray(int block, size_t width, size_t rows);
// Slices of `rows` rows, which are `to_rows` and `from_rows` rows apart.
CUresult Copy3D(CUdeviceptr to, size_t to_rows, CUdeviceptr from, size_t from_rows, size_t width, size_t rows,
                size_t slices, CUstream stream);
// The same as two copies of one batch, whose order among each other is free.
CUresult Copy3DBatch(CUdeviceptr to, size_t to_rows, CUdeviceptr from, size_t from_rows, size_t width, size_t rows,
                     size_t slices, CUstream stream);
// A texture over an array, or with a null one over memory. `out` is one of tex[], or of surf[].
CUresult MakeTexture(CUtexObject* out, CUarray array, CUdeviceptr memory, size_t bytes);
CUresult MakeRowsTexture(CUtexObject* out, CUdeviceptr memory, size_t pitch, size_t rows);
CUresult MakeSurface(CUsurfObject* out, CUarray array);
// The words of a row of tex[texture], 0 where it has no rows, and of surf[surface].
uint64_t TextureWidth(int texture);
uint64_t SurfaceWidth(int surface);
// surf[surface][i] = mix of data[i] and k.
CUresult Store(int module, CUstream stream, int surface, CUdeviceptr data, size_t bytes, uint64_t k);
// out[i] = mix of tex[texture][i] and k.
CUresult Sample(int module, CUstream stream, int texture, CUdeviceptr out, size_t bytes, uint64_t k);
// The stream writes one word, or two by one call.
CUresult WriteValues(CUdeviceptr at, uint32_t value, CUstream stream, bool batch);

// Fills host memory with bytes that follow from `seed`.
CUresult FillHost(void* memory, size_t bytes, uint64_t seed);
// Observations: each notes values in the program's record, which runs are compared by. `first` is the range's begin.
CUresult CheckBlock(int block, size_t bytes);
// The hash of memory whose contents no work changes.
CUresult Digest(CUdeviceptr at, size_t bytes, uint64_t* out);
CUresult CheckHost(int block, size_t bytes);
CUresult AskRange(CUdeviceptr block, size_t offset, size_t bytes);
CUresult AskAttributes(int block, size_t offset);
CUresult AskMemory();
CUresult AskPool(CUmemoryPool one);
CUresult AskMarks(CUmemoryPool one);
CUresult AskManaged(CUdeviceptr block, size_t bytes, int gpus);
CUresult AskPoolOf(CUdeviceptr at, CUmemoryPool expected);
CUresult AskStream(CUstream stream);
// Notes the result of a call that may fail.
CUresult Note(CUresult result);
// On the simulated GPU: a kernel that fails, and calls behind it.
CUresult Fail(int module, CUstream stream, CUdeviceptr block);
CUresult CallAll(CUstream stream, CUdeviceptr block, CUevent event);
// One call beside a capture of its own, on memory and streams of its own, by this thread or another one, which may have
// exchanged its mode for the relaxed one. Notes the codes of the call and of the capture's end. kDiscardHere and those
// behind it need a driver that discards.
enum class BarredCall {
  kAlloc,
  kAllocManaged,
  kAllocPitch,
  kAllocHost,
  kFree,
  kFreeManaged,
  kFreePooled,
  kFreeNothing,
  kAllocAsyncOther,
  kFreeAsyncOther,
  kFreeAsyncHere,
  kAdvise,
  kPrefetchHere,
  kPrefetchOther,
  kAttachHere,
  kQueryOther,
  kSynchronizeOther,
  kQueryEvent,
  kSynchronizeContext,
  kCopyFromHost,
  kCopyToHost,
  kFillNow,
  kDiscardHere,
  kDiscardOther,
  kCalls,
  // Of the fourth forms.
  kAttachOther = kCalls,
  kFillOther,
  kRecordOther,
  kWaitOther,
  kAllCalls
};
// `legacy`: the captured stream blocks, and the calls name the legacy stream where they name another one.
CUresult BesideCapture(BarredCall call, CUstreamCaptureMode mode, bool elsewhere, bool relaxed, int device,
                       bool legacy);
// In a hooked program on the simulated GPU: an observation of its own if more is resident than the budget allows.
CUresult CheckBudget();

// Runs the steps of several threads at the same time; `steps` [i] are of thread i.
CUresult Beside(const std::vector<std::function<CUresult()>>& steps);
// Runs `step` on program thread `thread`; 0 is the main thread. Others start at their first use.
CUresult On(int thread, const std::function<CUresult()>& step);
// Ends a thread; its number may be used again.
CUresult EndThread(int thread);
void EndThreads();

// The record so far: a hash of all observations, or their text if it is kept.
void KeepText(bool keep);
void Record(const char* format, ...) __attribute__((format(printf, 1, 2)));
uint64_t RecordHash();
const char* RecordText();

}  // namespace differential

#include "peer.h"  // printed programs include machine.h alone

#endif  // SLUICE_TEST_DIFFERENTIAL_MACHINE_H_
