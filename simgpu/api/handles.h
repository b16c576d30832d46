// The objects behind the opaque handles of cuda.h.
#ifndef SIMGPU_API_HANDLES_H_
#define SIMGPU_API_HANDLES_H_

#include <cuda.h>

#include <atomic>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "../core/simulator.h"

enum SimMagic : uint32_t {
  kDead = 0,
  kContextMagic = 0x53430001,
  kStreamMagic,
  kEventMagic,
  kModuleMagic,
  kFunctionMagic,
  kKernelMagic,
  kGraphMagic,
  kPoolMagic,
  kUserObjectMagic,
  kOrphanMagic,  // a stream whose green context was destroyed
};

constexpr size_t kMaxMultiprocessors = 512;
using SimMultiprocessors = std::bitset<kMaxMultiprocessors>;

// A CUgreenCtx is the same object: the driver's cuCtxFromGreenCtx gives the handle itself as well.
struct CUctx_st {
  uint32_t magic = kContextMagic;
  int card = 0;
  unsigned flags = 0;
  bool primary = false;
  int retained = 0;  // primary
  bool active = false;
  uint64_t id = 0;
  unsigned api_version = 3020;
  CUstream legacy = nullptr;
  std::set<CUstream> streams;
  std::set<CUevent> events;
  std::map<uint64_t, simgpu::Allocation*> memory;
  std::set<CUarray> arrays;
  std::set<CUmodule> modules;              // libraries' too
  std::set<uint64_t> registered;           // host memory, by cuMemHostRegister
  std::vector<simgpu::FencePtr> barriers;  // cuCtxWaitEvent: streams to come wait for them
  simgpu::Stream* gathering = nullptr;     // cuCtxRecordEvent
  std::set<CUcontext> peers;               // whose memory it may use (cuCtxEnablePeerAccess)
  // Copies that other contexts' streams hold and that run here: cuMemFree of this context's memory waits for them.
  std::vector<simgpu::FencePtr> peer_copies;
  // A green context.
  CUcontext parent = nullptr;  // the primary context, which owns its memory, modules and events
  bool converted = false;      // by cuCtxFromGreenCtx; others do not become current
  SimMultiprocessors multiprocessors;
  std::set<CUcontext> greens;                              // the primary context's
  size_t limits[CU_LIMIT_MAX] = {1024, 1 << 20, 8 << 20};  // stack, printf, heap; none of them takes memory
};

struct CUarray_st {
  CUcontext context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  CUmipmappedArray levels_of = nullptr;
  uint64_t base = 0;  // 0: its memory is mapped into it, which is not simulated
  uint64_t row = 0, bytes = 0;
};

struct CUmipmappedArray_st {
  std::vector<CUarray> levels;
};

struct SimObject {  // a texture or surface object
  CUDA_RESOURCE_DESC resource{};
  uint64_t address = 0, bytes = 0;
};

struct SimCapture {
  CUgraph graph = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t id = 0;
  bool invalidated = false;
  CUstream origin = nullptr;
  const void* thread = nullptr;
  std::set<CUstream> joined;
};

struct CUstream_st {
  uint32_t magic = kStreamMagic;
  simgpu::Stream* sim = nullptr;
  CUcontext context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  std::shared_ptr<SimCapture> capture;
  std::vector<CUgraphNode> tail;  // dependencies of the next captured node
};

// Records of an event by all processes that know it.
struct SimSharedEvent {
  std::atomic<uint64_t> recorded{0}, done{0};
};

struct CUevent_st {
  uint32_t magic = kEventMagic;
  CUcontext context = nullptr;
  unsigned flags = 0;
  simgpu::FencePtr fence;  // of the latest record; null: never recorded
  std::shared_ptr<SimCapture> capture;
  std::vector<CUgraphNode> captured;
  SimSharedEvent* shared = nullptr;  // with other processes
  int shared_file = -1;
};

// A parsed module image; see README.md for the text.
struct SimTouchSpec {
  uint32_t access = 0;
  int param = -1;
  uint32_t param_offset = 0;
  bool indirect = false;  // the parameter points to a table in device memory that holds the pointer
  bool object = false;    // the parameter is a texture or surface object
  uint64_t offset = 0;
  uint64_t length = 0;
  int length_param = -1;
  uint64_t length_scale = 1;
};

struct SimKernelInfo {
  std::string name;
  std::vector<uint32_t> sizes, offsets;
  uint32_t bytes = 0;
  int64_t duration = 1000;
  double ns_per_kib = 0;
  std::vector<SimTouchSpec> touches;
  uint64_t seed = 0;
};

struct SimImage {
  bool text = false;
  std::map<std::string, std::unique_ptr<SimKernelInfo>> kernels;
  std::vector<std::pair<std::string, uint64_t>> globals;
};

struct CUfunc_st {
  uint32_t magic = kFunctionMagic;
  SimKernelInfo* info = nullptr;
  CUmodule module = nullptr;
  CUkernel kernel = nullptr;
  int max_dynamic_shared = 48 << 10;
  // As the calls of CUDA 3 set them, one by one.
  std::vector<uint8_t> parameters;
  unsigned block[3] = {1, 1, 1}, shared = 0;
};

struct CUmod_st {
  uint32_t magic = kModuleMagic;
  CUcontext context = nullptr;
  CUlibrary library = nullptr;
  std::shared_ptr<SimImage> image;
  std::map<std::string, std::unique_ptr<CUfunc_st>> functions;
  std::map<std::string, simgpu::Allocation*> globals;
};

struct CUkern_st {
  uint32_t magic = kKernelMagic;
  SimKernelInfo* info = nullptr;
  CUlibrary library = nullptr;
};

struct CUlib_st {
  uint32_t magic = kModuleMagic;
  std::shared_ptr<SimImage> image;
  std::map<std::string, std::unique_ptr<CUkern_st>> kernels;
  std::map<CUcontext, CUmodule> modules;
};

// A launch as the application described it, for graph nodes.
struct SimKernelCall {
  CUfunction function = nullptr;
  CUkernel kernel = nullptr;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, shared = 0;
  std::vector<uint8_t> params;
  std::vector<void*> pointers;
  CUgraphConditionalHandle sets = 0;  // the condition that it sets, to one of the values in each run, cyclically
  std::vector<unsigned> values;
  size_t runs = 0;
};

struct SimConditional {
  CUgraphConditionalHandle handle = 0;
  CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
  std::vector<CUgraph> bodies;
};

struct CUgraphNode_st {
  CUgraph graph = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::vector<CUgraphNode> after;  // dependencies
  std::shared_ptr<simgpu::Op> op;  // the recipe; null: does nothing
  std::shared_ptr<SimKernelCall> kernel;
  CUDA_MEMCPY3D copy{};
  CUDA_MEMSET_NODE_PARAMS set{};
  CUDA_HOST_NODE_PARAMS host{};
  CUDA_MEM_ALLOC_NODE_PARAMS alloc{};
  CUdeviceptr free_pointer = 0;
  CUevent event = nullptr;
  CUgraph child = nullptr;
  std::shared_ptr<SimConditional> conditional;
  std::vector<CUstreamBatchMemOpParams> values;
  std::vector<std::shared_ptr<simgpu::Op>> more;  // behind `op`: the batch's other operations
  CUgraphNode cloned_from = nullptr;
  unsigned enabled = 1;
  uint64_t id = 0;
};

struct CUuserObject_st {
  uint32_t magic = kUserObjectMagic;
  CUhostFn destroy = nullptr;
  void* data = nullptr;
  uint64_t references = 0;
};
using SimKept = std::map<CUuserObject, unsigned>;  // references by object

struct CUgraph_st {
  uint32_t magic = kGraphMagic;
  SimKept kept;
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
  bool owned_by_node = false;
};

struct CUgraphExec_st {
  uint32_t magic = kGraphMagic;
  std::unique_ptr<CUgraph_st> graph;        // its own copy
  std::vector<CUgraphNode> order;           // topological
  std::map<CUgraphNode, CUgraphNode> node;  // original -> copy
  unsigned long long flags = 0;
  simgpu::FencePtr last;  // end of its last launch, for which the next waits in whichever stream
};

struct CUmemPoolHandle_st {
  uint32_t magic = kPoolMagic;
  int card = 0;
  bool is_imported = false;
  CUmemPoolProps props{};
  cuuint64_t threshold = 0;
  int reuse[3] = {1, 1, 1};
  uint64_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
};

#endif  // SIMGPU_API_HANDLES_H_
