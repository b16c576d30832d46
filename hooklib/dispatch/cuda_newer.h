// The additions of CUDA 13.1 to 13.5 to cuda.h, for a toolkit that lacks it: the hook table has the same rows whatever
// headers it is built with. Only through cuda_api.h.
#ifndef SLUICE_HOOKLIB_DISPATCH_CUDA_NEWER_H_
#define SLUICE_HOOKLIB_DISPATCH_CUDA_NEWER_H_

#include <cuda.h>

#include <cstddef>

#if CUDA_VERSION < 13010
struct CUstreamCigCaptureParams_st;
using CUstreamCigCaptureParams = CUstreamCigCaptureParams_st;
extern "C" {
CUresult CUDAAPI cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void* userData, unsigned int syncMode);
CUresult CUDAAPI cuLaunchHostFunc_v2_ptsz(CUstream hStream, CUhostFn fn, void* userData, unsigned int syncMode);
CUresult CUDAAPI cuStreamBeginCaptureToCig(CUstream hStream, CUstreamCigCaptureParams* streamCigCaptureParams);
CUresult CUDAAPI cuStreamBeginCaptureToCig_ptsz(CUstream hStream, CUstreamCigCaptureParams* streamCigCaptureParams);
CUresult CUDAAPI cuStreamEndCaptureToCig(CUstream hStream);
CUresult CUDAAPI cuStreamEndCaptureToCig_ptsz(CUstream hStream);
CUresult CUDAAPI cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                                       CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                                       unsigned long long flags);
CUresult CUDAAPI cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                                        CUdeviceptr memptr, size_t size, unsigned long long flags);
CUresult CUDAAPI cuGraphExecGetId(CUgraphExec hGraphExec, unsigned int* graphId);
}
#endif

#if CUDA_VERSION < 13020
extern "C" {
CUresult CUDAAPI cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUmemcpyAttributes* attr,
                                             CUstream hStream);
CUresult CUDAAPI cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t size,
                                                  CUmemcpyAttributes* attr, CUstream hStream);
CUresult CUDAAPI cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP* op, unsigned long long flags, CUstream hStream);
CUresult CUDAAPI cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP* op, unsigned long long flags,
                                                    CUstream hStream);
CUresult CUDAAPI cuGraphNodeGetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams);
}
#endif

#if CUDA_VERSION < 13030
enum CUgraphRecaptureStatus : unsigned int;
using CUgraphRecaptureCallback = CUresult(CUDA_CB*)(void* data, CUgraphNode node,
                                                    const CUgraphNodeParams* originalParams,
                                                    const CUgraphNodeParams* recaptureParams,
                                                    CUgraphRecaptureStatus status);
extern "C" {
CUresult CUDAAPI cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
                                               CUgraphRecaptureCallback callbackFunc, void* userData);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
                                                    CUgraphRecaptureCallback callbackFunc, void* userData);
}
#endif

#if CUDA_VERSION < 13040
extern "C" {
CUresult CUDAAPI cuGraphAddNode_v3(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                   const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                   CUgraphNodeParams* nodeParams);
CUresult CUDAAPI cuGraphNodeSetParams_v2(CUgraphNode hNode, CUgraphNodeParams* nodeParams);
CUresult CUDAAPI cuMemGetLocationInfo(CUdeviceptr ptr, size_t size, size_t summaryGranularity,
                                      size_t samplingGranularity, CUmemLocation* location_out);
}
#endif

#if CUDA_VERSION < 13050
struct CUDA_FABRIC_COPY_BATCH_OP_st;
using CUDA_FABRIC_COPY_BATCH_OP = CUDA_FABRIC_COPY_BATCH_OP_st;
enum CUtensorMapAllocClass : unsigned int;
extern "C" {
CUresult CUDAAPI cuFabricCpyBatchAsync(size_t numOps, CUDA_FABRIC_COPY_BATCH_OP* opList, unsigned long long flags,
                                       CUstream hStream);
CUresult CUDAAPI cuFabricCpyBatchAsync_ptsz(size_t numOps, CUDA_FABRIC_COPY_BATCH_OP* opList, unsigned long long flags,
                                            CUstream hStream);
CUresult CUDAAPI cuTensorMapSetAllocationClass(CUtensorMap* tensorMap, CUtensorMapAllocClass allocClass,
                                               CUtensorMapAllocClass* outAllocClass);
}
#endif

namespace sluice::cuda_newer {

// Values of enumerations, by the headers of 13.5.
inline constexpr int kDmaBufMmapSupported = 152;           // CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED
inline constexpr int kRdmaOfLocalizedMemory = 161;         // ..._GPU_DIRECT_RDMA_WITH_LOCALIZED_MEMORY_SUPPORTED
inline constexpr int kLocationOfLocalityDomain = 6;        // CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN
inline constexpr int kStreamOperationAtomicReduction = 8;  // CU_STREAM_MEM_OP_ATOMIC_REDUCTION
inline constexpr size_t kAtomicReductionAddress = 2;       // its address: the index in CUstreamBatchMemOpParams::pad
inline constexpr auto kMaxPoolSize = static_cast<CUmemPool_attribute>(13);  // CU_MEMPOOL_ATTR_MAX_POOL_SIZE
inline constexpr int kGraphNodeMemcpyBatch = 14;  // CU_GRAPH_NODE_TYPE_MEMCPY_BATCH, and newer kinds above it
#if CUDA_VERSION >= 13050
static_assert(kDmaBufMmapSupported == CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED &&
              kRdmaOfLocalizedMemory == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_LOCALIZED_MEMORY_SUPPORTED &&
              kLocationOfLocalityDomain == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN &&
              kStreamOperationAtomicReduction == CU_STREAM_MEM_OP_ATOMIC_REDUCTION &&
              kAtomicReductionAddress * 8 == offsetof(CUstreamBatchMemOpParams, atomicReduction.address) &&
              kMaxPoolSize == CU_MEMPOOL_ATTR_MAX_POOL_SIZE &&
              kGraphNodeMemcpyBatch == CU_GRAPH_NODE_TYPE_MEMCPY_BATCH);
#endif

}  // namespace sluice::cuda_newer

#endif  // SLUICE_HOOKLIB_DISPATCH_CUDA_NEWER_H_
