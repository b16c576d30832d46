// Memory and semaphores of other interfaces. The memory is this GPU's; a semaphore is a word on the host, which streams
// write and wait for.
#include <set>

#include "graph_ops.h"

using simgpu::Allocation;
using simgpu::MemoryKind;
using simgpu::Op;
using simgpu::OpKind;
using simgpu::Sim;

struct CUextMemory_st {
  int card = 0;
  uint64_t bytes = 0;
};
struct CUextSemaphore_st {
  bool is_timeline = false;
  uint64_t signals = 0, waits = 0;  // of one that is not: each wait takes one signal
  alignas(8) uint64_t value = 0;
};

namespace {

std::set<CUexternalMemory>& Memories() {
  static auto* all = new std::set<CUexternalMemory>;
  return *all;
}
std::set<CUexternalSemaphore>& Semaphores() {
  static auto* all = new std::set<CUexternalSemaphore>;
  return *all;
}

Op* ValueOp(CUexternalSemaphore semaphore, bool is_wait, uint64_t value) {
  Op* op = Sim().NewOp(is_wait ? OpKind::kWaitValue : OpKind::kWriteValue);
  op->value.address = reinterpret_cast<uint64_t>(&semaphore->value);
  op->value.value = semaphore->is_timeline ? value : is_wait ? ++semaphore->waits : ++semaphore->signals;
  op->value.wide = true;
  return op;
}

template <typename Parameters>
CUresult Queue(simgpu::Call& call, CUstream stream, const CUexternalSemaphore* list, const Parameters* parameters,
               unsigned count, bool is_wait) {
  NEED_ARG(list != nullptr && parameters != nullptr && count != 0);
  for (unsigned i = 0; i < count; ++i) {
    NEED(Semaphores().count(list[i]) != 0, CUDA_ERROR_INVALID_HANDLE);
    NEED_ARG(parameters[i].flags == 0);
  }
  for (unsigned i = 0; i < count; ++i) {
    const CUresult r =
        simgpu::Dispatch(call, stream, ValueOp(list[i], is_wait, parameters[i].params.fence.value),
                         is_wait ? CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT : CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL);
    if (r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

template <typename Parameters>
CUresult AddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, const Parameters* parameters,
                 bool is_wait) {
  NEED_ARG(out != nullptr && simgpu::ValidGraph(graph) && parameters != nullptr && parameters->numExtSems != 0);
  for (unsigned i = 0; i < parameters->numExtSems; ++i)
    NEED(Semaphores().count(parameters->extSemArray[i]) != 0, CUDA_ERROR_INVALID_HANDLE);
  CUgraphNode n = simgpu::AddNode(
      graph, is_wait ? CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT : CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, after, count);
  for (unsigned i = 0; i < parameters->numExtSems; ++i) {
    std::shared_ptr<Op> op(ValueOp(parameters->extSemArray[i], is_wait, parameters->paramsArray[i].params.fence.value));
    if (i == 0) {
      n->op = op;
    } else {
      n->more.push_back(op);
    }
  }
  *out = n;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuImportExternalMemory(CUexternalMemory* out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* d) {
  BEGIN_UNSAFE(20000);
  NEED_OWNER();
  NEED_ARG(out != nullptr && d != nullptr && d->size != 0);
  NEED(d->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, CUDA_ERROR_NOT_SUPPORTED);
  NEED(Sim().TakeUnmanaged(context->card, d->size), CUDA_ERROR_OUT_OF_MEMORY);
  *out = new CUextMemory_st{context->card, d->size};
  Memories().insert(*out);
  return CUDA_SUCCESS;
}

// The buffer is freed by cuMemFree.
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr* out, CUexternalMemory memory,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* d) {
  BEGIN_UNSAFE(20000);
  NEED_OWNER();
  NEED_ARG(out != nullptr && d != nullptr && d->flags == 0 && d->size != 0);
  NEED(Memories().count(memory) != 0, CUDA_ERROR_INVALID_HANDLE);
  NEED_ARG(d->offset + d->size <= memory->bytes);
  const uint64_t size = (d->size + 511) / 512 * 512, address = Sim().memory().Reserve(size, simgpu::kBlockBytes);
  NEED(address != 0, CUDA_ERROR_OUT_OF_MEMORY);
  Allocation* a = Sim().memory().Add(address, size, MemoryKind::kUnmanaged, memory->card);
  a->requested = d->size;
  a->counted = false;
  a->owner = context;
  context->memory[address] = a;
  *out = address;
  return CUDA_SUCCESS;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
  BEGIN_UNSAFE(5000);
  NEED(Memories().erase(memory) == 1, CUDA_ERROR_INVALID_HANDLE);
  Sim().GiveUnmanaged(memory->card, memory->bytes);
  delete memory;
  return CUDA_SUCCESS;
}

CUresult cuImportExternalSemaphore(CUexternalSemaphore* out, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC* d) {
  BEGIN_UNSAFE(20000);
  NEED_CONTEXT();
  NEED_ARG(out != nullptr && d != nullptr && d->flags == 0);
  const bool is_timeline = d->type == CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
  NEED(is_timeline || d->type == CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD, CUDA_ERROR_NOT_SUPPORTED);
  *out = new CUextSemaphore_st;
  (*out)->is_timeline = is_timeline;
  Semaphores().insert(*out);
  return CUDA_SUCCESS;
}

CUresult cuDestroyExternalSemaphore(CUexternalSemaphore semaphore) {
  BEGIN_UNSAFE(5000);
  NEED(Semaphores().erase(semaphore) == 1, CUDA_ERROR_INVALID_HANDLE);
  return CUDA_SUCCESS;  // work that is queued keeps the word
}

CUresult cuGraphAddExternalSemaphoresSignalNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                                const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS* parameters) {
  BEGIN(2000);
  return AddNode(out, graph, after, count, parameters, false);
}
CUresult cuGraphAddExternalSemaphoresWaitNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                              const CUDA_EXT_SEM_WAIT_NODE_PARAMS* parameters) {
  BEGIN(2000);
  return AddNode(out, graph, after, count, parameters, true);
}

}  // extern "C"

ENTRY(cuSignalExternalSemaphoresAsync, _ptsz,
      (const CUexternalSemaphore* list, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS* parameters, unsigned int count,
       CUstream s),
      (list, parameters, count, s)) {
  BEGIN(2000);
  NEED_STREAM(s);
  return Queue(call, stream, list, parameters, count, false);
}
ENTRY(cuWaitExternalSemaphoresAsync, _ptsz,
      (const CUexternalSemaphore* list, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS* parameters, unsigned int count,
       CUstream s),
      (list, parameters, count, s)) {
  BEGIN(2000);
  NEED_STREAM(s);
  return Queue(call, stream, list, parameters, count, true);
}
