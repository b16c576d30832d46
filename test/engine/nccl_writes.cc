// Built as libnccl.so.2: writes of values by a library whose memory is not oversubscribed.
#include <cuda.h>

extern "C" CUresult nccl_write(CUstream stream, CUdeviceptr at, cuuint64_t value) {
  return cuStreamWriteValue64(stream, at, value, 0);
}

extern "C" CUresult nccl_write_two(CUstream stream, CUdeviceptr at, cuuint64_t value) {
  CUstreamBatchMemOpParams list[2] = {};
  for (unsigned i = 0; i < 2; ++i) {
    list[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    list[i].writeValue.address = at + i * 8;
    list[i].writeValue.value64 = value + i;
  }
  return cuStreamBatchMemOp(stream, 2, list, 0);
}
