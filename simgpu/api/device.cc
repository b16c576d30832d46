// Initialisation and the attributes of devices.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "../core/identity.h"
#include "../core/misuse.h"
#include "call.h"

using simgpu::Sim;
using simgpu::TheDriver;

namespace {

// Tenants of one card start their clocks together: waits for SIMGPU_TENANTS processes.
void WaitForTenants() {
  const char* text = std::getenv("SIMGPU_TENANTS");
  if (text == nullptr || !Sim().state().shared()) return;
  const int wanted = std::atoi(text);
  if (wanted < 1 || wanted > simgpu::kMaxSlots) return;
  auto& header = Sim().state().header();
  // Join the common clock before any process starts. The file may have served other groups before.
  Sim().state().Publish(simgpu::ThisThread().now);
  const uint32_t ticket = header.tickets++;
  const uint32_t full = (ticket / static_cast<uint32_t>(wanted) + 1) * static_cast<uint32_t>(wanted);
  for (int i = 0; i < 6000; ++i) {
    if (header.tickets >= full) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::fprintf(stderr, "simgpu: SIMGPU_TENANTS=%d processes did not start within 30 s; continuing\n", wanted);
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned int flags) {
  BEGIN_KIND(1000, simgpu::kNeedsNoInit);
  NEED_ARG(flags == 0);
  auto& d = TheDriver();
  if (d.initialised) return CUDA_SUCCESS;
  if (const CUresult none = simgpu::ReadVisibleCards(&d.visible); none != CUDA_SUCCESS) return none;
  simgpu::CheckMisuseSettings();
  Sim().state().Attach();
  const auto gpus = static_cast<size_t>(Sim().profile().gpus);
  for (size_t i = 0; i < gpus; ++i) {
    auto* c = new CUctx_st;
    c->card = static_cast<int>(i);
    c->primary = true;
    c->id = d.next_id++;
    d.primary.push_back(c);
    d.contexts.insert(c);
  }
  d.default_pools.resize(gpus);
  d.current_pools.resize(gpus);
  d.graph_pools.resize(gpus);
  d.initialised = true;
  WaitForTenants();
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  NEED_ARG(version != nullptr);
  *version = simgpu::TheProfile().CudaVersion();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  BEGIN(50);
  NEED_ARG(device != nullptr);
  NEED_CARD(ordinal);
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  BEGIN(50);
  NEED_ARG(count != nullptr);
  *count = static_cast<int>(TheDriver().visible.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
  BEGIN(50);
  NEED_ARG(name != nullptr && len > 0);
  NEED_CARD(dev);
  std::snprintf(name, static_cast<size_t>(len), "%s", Sim().profile().name.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
  BEGIN(50);
  NEED_ARG(uuid != nullptr);
  NEED_CARD(dev);
  simgpu::UuidBytes(card, reinterpret_cast<uint8_t*>(uuid->bytes));
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) { return cuDeviceGetUuid(uuid, dev); }

CUresult cuDeviceGetLuid(char*, unsigned int*, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  BEGIN(50);
  NEED_ARG(bytes != nullptr);
  NEED_CARD(dev);
  *bytes = static_cast<size_t>(Sim().profile().memory);
  return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
  BEGIN(50);
  NEED_ARG(major != nullptr && minor != nullptr);
  NEED_CARD(dev);
  *major = 9;
  *minor = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* id, int len, CUdevice dev) {
  BEGIN(50);
  NEED_ARG(id != nullptr && len > 12);
  NEED_CARD(dev);
  std::snprintf(id, static_cast<size_t>(len), "%s", simgpu::PciBusId(card).c_str() + 4);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* id) {
  BEGIN(50);
  NEED_ARG(dev != nullptr && id != nullptr);
  for (const int card : TheDriver().visible) {
    const std::string mine = simgpu::PciBusId(card);
    if (strcasecmp(mine.c_str(), id) == 0 || strcasecmp(mine.c_str() + 4, id) == 0) {
      *dev = simgpu::DeviceOf(card);
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice dev) {
  BEGIN(50);
  NEED_ARG(value != nullptr);
  NEED_CARD(dev);
  const simgpu::Profile& p = Sim().profile();
  const bool managed = p.concurrent_managed_access != 0;
  // NOLINTBEGIN(bugprone-branch-clone): a table, in which values come again
  switch (attribute) {
#define IS(name, number)               \
  case CU_DEVICE_ATTRIBUTE_##name:     \
    *value = static_cast<int>(number); \
    return CUDA_SUCCESS
    IS(MAX_THREADS_PER_BLOCK, 1024);
    IS(MAX_BLOCK_DIM_X, 1024);
    IS(MAX_BLOCK_DIM_Y, 1024);
    IS(MAX_BLOCK_DIM_Z, 64);
    IS(MAX_GRID_DIM_X, 2147483647);
    IS(MAX_GRID_DIM_Y, 65535);
    IS(MAX_GRID_DIM_Z, 65535);
    IS(MAX_SHARED_MEMORY_PER_BLOCK, 49152);
    IS(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448);
    IS(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472);
    IS(RESERVED_SHARED_MEMORY_PER_BLOCK, 1024);
    IS(TOTAL_CONSTANT_MEMORY, 65536);
    IS(WARP_SIZE, 32);
    IS(MAX_PITCH, 2147483647);
    IS(MAX_REGISTERS_PER_BLOCK, 65536);
    IS(MAX_REGISTERS_PER_MULTIPROCESSOR, 65536);
    IS(CLOCK_RATE, 1980000);
    IS(MEMORY_CLOCK_RATE, 3201000);
    IS(GLOBAL_MEMORY_BUS_WIDTH, 6144);
    IS(L2_CACHE_SIZE, 62914560);
    IS(TEXTURE_ALIGNMENT, 512);
    IS(TEXTURE_PITCH_ALIGNMENT, 32);
    IS(SURFACE_ALIGNMENT, 512);
    IS(MULTIPROCESSOR_COUNT, p.multiprocessors);
    IS(MAX_THREADS_PER_MULTIPROCESSOR, 2048);
    IS(MAX_BLOCKS_PER_MULTIPROCESSOR, 32);
    IS(COMPUTE_CAPABILITY_MAJOR, 9);
    IS(COMPUTE_CAPABILITY_MINOR, 0);
    IS(INTEGRATED, 0);
    IS(CAN_MAP_HOST_MEMORY, 1);
    IS(COMPUTE_MODE, 0);
    IS(CONCURRENT_KERNELS, 1);
    IS(ECC_ENABLED, p.ecc);
    IS(PCI_BUS_ID, 0x10 + card);
    IS(PCI_DEVICE_ID, 0);
    IS(PCI_DOMAIN_ID, 0);
    IS(ASYNC_ENGINE_COUNT, 3);
    IS(UNIFIED_ADDRESSING, 1);
    IS(STREAM_PRIORITIES_SUPPORTED, 1);
    IS(GLOBAL_L1_CACHE_SUPPORTED, 1);
    IS(LOCAL_L1_CACHE_SUPPORTED, 1);
    IS(MANAGED_MEMORY, 1);
    IS(CONCURRENT_MANAGED_ACCESS, managed);
    IS(PAGEABLE_MEMORY_ACCESS, 0);
    IS(PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, p.host_page_tables);
    IS(DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0);
    IS(HOST_NATIVE_ATOMIC_SUPPORTED, 0);
    IS(COMPUTE_PREEMPTION_SUPPORTED, 1);
    IS(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1);
    IS(COOPERATIVE_LAUNCH, 1);
    IS(CAN_FLUSH_REMOTE_WRITES, 0);
    IS(HOST_REGISTER_SUPPORTED, 1);
    IS(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1);
    IS(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1);
    IS(MEMORY_POOLS_SUPPORTED, 1);
    IS(UNIFIED_FUNCTION_POINTERS, 0);
    IS(DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 1);
    IS(NUMA_CONFIG, 0);
    IS(NUMA_ID, -1);
    IS(HOST_NUMA_ID, p.numa);
    IS(MULTICAST_SUPPORTED, 0);
    IS(MPS_ENABLED, 0);
    IS(IPC_EVENT_SUPPORTED, 1);
    IS(CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1);
    IS(CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1);
    IS(TENSOR_MAP_ACCESS_SUPPORTED, 1);
    IS(CLUSTER_LAUNCH, 1);
    IS(MAX_PERSISTING_L2_CACHE_SIZE, 39321600);
    IS(MAX_ACCESS_POLICY_WINDOW_SIZE, 134213632);
    IS(HOST_NUMA_MULTINODE_IPC_SUPPORTED, 0);
    IS(MEM_DECOMPRESS_ALGORITHM_MASK, 7);  // as Blackwell's
    IS(MEM_DECOMPRESS_MAXIMUM_LENGTH, simgpu::kMaxDecompressedBytes);
#undef IS
    default:
      NEED_ARG(attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX);
      *value = 0;
      return CUDA_SUCCESS;
  }
  // NOLINTEND(bugprone-branch-clone)
}

CUresult cuDeviceGetProperties(CUdevprop* prop, CUdevice dev) {
  BEGIN(50);
  NEED_ARG(prop != nullptr);
  NEED_CARD(dev);
  *prop = {1024, {1024, 1024, 64}, {2147483647, 65535, 65535}, 49152, 65536, 32, 2147483647, 65536, 1980000, 512};
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice a, CUdevice b) {
  BEGIN(50);
  NEED_ARG(can != nullptr);
  NEED_CARD(a);
  NEED(simgpu::CardOf(b, &card), CUDA_ERROR_INVALID_DEVICE);
  *can = a != b;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice a, CUdevice b) {
  BEGIN(50);
  NEED_ARG(value != nullptr);
  NEED_CARD(a);
  NEED(simgpu::CardOf(b, &card) && a != b, CUDA_ERROR_INVALID_DEVICE);
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
           attribute == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int* pi, CUexecAffinityType, CUdevice dev) {
  BEGIN(50);
  NEED_ARG(pi != nullptr);
  NEED_CARD(dev);
  *pi = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* width, CUarray_format, unsigned, CUdevice dev) {
  BEGIN(50);
  NEED_ARG(width != nullptr);
  NEED_CARD(dev);
  *width = 268435456;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  NEED_ARG(text != nullptr);
  *text = simgpu::ErrorName(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  NEED_ARG(text != nullptr);
  *text = simgpu::ErrorText(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// The driver's private tables are no public interface: refused like an unknown table.
CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  NEED_ARG(table != nullptr && id != nullptr);
  *table = nullptr;
  char text[40] = "";
  for (int i = 0; i < 16; ++i)
    std::snprintf(text + ptrdiff_t{2} * i, 3, "%02x", static_cast<unsigned char>(id->bytes[i]));
  simgpu::TraceCall("cuGetExportTable", text);
  return CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
