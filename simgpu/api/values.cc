// Values in memory that streams and graphs write and wait for.
#include "graph_ops.h"

using simgpu::Op;
using simgpu::OpKind;
using simgpu::Sim;

namespace {

bool IsWide(CUstreamBatchMemOpType type) {
  return type == CU_STREAM_MEM_OP_WAIT_VALUE_64 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}
bool IsWait(CUstreamBatchMemOpType type) {
  return type == CU_STREAM_MEM_OP_WAIT_VALUE_32 || type == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}
bool IsBarrier(CUstreamBatchMemOpType type) {
  return type == CU_STREAM_MEM_OP_BARRIER || type == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
}

CUresult MakeOp(const CUstreamBatchMemOpParams& parameters, Op** out) {
  const bool is_wide = IsWide(parameters.operation), is_wait = IsWait(parameters.operation);
  const CUdeviceptr at = parameters.waitValue.address;
  NEED_ARG(is_wait || is_wide || parameters.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32);
  NEED_ARG(at != 0 && at % (is_wide ? 8 : 4) == 0);
  NEED_ARG(simgpu::FindAllocation(at) != nullptr || simgpu::IsPinned(at));
  // Managed memory and that of pools is refused (H100, driver 580).
  const simgpu::Allocation* a = simgpu::FindAllocation(at);
  NEED_ARG(a == nullptr || (a->kind != simgpu::MemoryKind::kManaged && a->kind != simgpu::MemoryKind::kPool));
  Op* op = Sim().NewOp(is_wait ? OpKind::kWaitValue : OpKind::kWriteValue);
  op->value.address = at;
  op->value.value = is_wide ? parameters.waitValue.value64 : parameters.waitValue.value;
  op->value.flags = parameters.waitValue.flags;
  op->value.wide = is_wide;
  *out = op;
  return CUDA_SUCCESS;
}

CUresult Queue(simgpu::Call& call, CUstream stream, const CUstreamBatchMemOpParams& parameters, Op* op = nullptr) {
  if (op == nullptr) {
    if (const CUresult r = MakeOp(parameters, &op); r != CUDA_SUCCESS) return r;
  }
  CUgraphNode node = nullptr;
  const CUresult r = simgpu::Dispatch(call, stream, op, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &node);
  if (node != nullptr) node->values = {parameters};
  return r;
}

}  // namespace

namespace simgpu {

CUresult SetValues(CUgraphNode n, const CUDA_BATCH_MEM_OP_NODE_PARAMS& p) {
  NEED_ARG(p.count != 0 && p.count <= 256 && p.paramArray != nullptr && p.flags == 0);
  std::vector<std::shared_ptr<Op>> ops;
  for (unsigned i = 0; i < p.count; ++i) {
    if (IsBarrier(p.paramArray[i].operation)) continue;
    Op* op = nullptr;
    if (const CUresult r = MakeOp(p.paramArray[i], &op); r != CUDA_SUCCESS) return r;
    ops.emplace_back(op);
  }
  n->values.assign(p.paramArray, p.paramArray + p.count);
  n->op = ops.empty() ? nullptr : ops.front();
  n->more.assign(ops.begin() + (ops.empty() ? 0 : 1), ops.end());
  return CUDA_SUCCESS;
}

}  // namespace simgpu

#define VALUE_ENTRY(name, type_of_operation, type)                                                        \
  ENTRY(name, _ptsz, (CUstream s, CUdeviceptr p, type value, unsigned int flags), (s, p, value, flags)) { \
    BEGIN(2000);                                                                                          \
    NEED_STREAM(s);                                                                                       \
    CUstreamBatchMemOpParams parameters{};                                                                \
    parameters.waitValue.operation = type_of_operation;                                                   \
    parameters.waitValue.address = p;                                                                     \
    parameters.waitValue.value64 = value;                                                                 \
    parameters.waitValue.flags = flags;                                                                   \
    return Queue(call, stream, parameters);                                                               \
  }
VALUE_ENTRY(cuStreamWaitValue32_v2, CU_STREAM_MEM_OP_WAIT_VALUE_32, cuuint32_t)
VALUE_ENTRY(cuStreamWaitValue64_v2, CU_STREAM_MEM_OP_WAIT_VALUE_64, cuuint64_t)
VALUE_ENTRY(cuStreamWriteValue32_v2, CU_STREAM_MEM_OP_WRITE_VALUE_32, cuuint32_t)
VALUE_ENTRY(cuStreamWriteValue64_v2, CU_STREAM_MEM_OP_WRITE_VALUE_64, cuuint64_t)

ENTRY(cuStreamBatchMemOp_v2, _ptsz, (CUstream s, unsigned int count, CUstreamBatchMemOpParams* ops, unsigned int flags),
      (s, count, ops, flags)) {
  BEGIN(2000);
  NEED_ARG(count != 0 && count <= 256 && ops != nullptr && flags == 0);
  NEED_STREAM(s);
  // Refused whole, or queued (H200, driver 580).
  std::vector<std::unique_ptr<Op>> made(count);
  for (unsigned i = 0; i < count; ++i) {
    if (IsBarrier(ops[i].operation)) continue;
    Op* op = nullptr;
    if (const CUresult r = MakeOp(ops[i], &op); r != CUDA_SUCCESS) return r;
    made[i].reset(op);
  }
  if (simgpu::Capturing(stream)) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUgraphNode node = simgpu::AddNode(stream->capture->graph, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, stream->tail.data(),
                                       stream->tail.size());
    stream->tail = {node};
    return simgpu::SetValues(node, {simgpu::CurrentContext(), count, ops, flags});
  }
  for (unsigned i = 0; i < count; ++i) {
    if (!made[i]) continue;
    if (const CUresult r = Queue(call, stream, ops[i], made[i].release()); r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}
