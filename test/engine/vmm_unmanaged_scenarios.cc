// VMM memory that begins in managed form and has to become the driver's own, with its contents.
#include <future>
#include <thread>
#include <vector>

#include "test/engine/scenario.h"
#include "test/engine/vmm.h"

using namespace scenario;       // NOLINT(google-build-using-namespace)
using namespace scenario::vmm;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kBytes = 6 * kMiB;

void Fill(CUdeviceptr at, uint64_t bytes, unsigned seed) {
  std::vector<unsigned char> host(bytes);
  for (size_t i = 0; i < bytes; ++i) host[i] = static_cast<unsigned char>(i * 7 + (i >> 12) + seed);
  OK(cuMemcpyHtoD(at, host.data(), bytes));
}

}  // namespace

// What managed memory cannot do: whatever it is needed for, the contents of the handle and its neighbours stay.
SCENARIO(vmm_becomes_unmanaged) {
  Card card;
  size_t free_bytes = 0;
  OK(cuMemGetInfo(&free_bytes, nullptr));
  const CUdeviceptr at = Reserve(4 * kBytes), elsewhere = Reserve(2 * kBytes);
  const Handle twice = Create(kBytes), neighbour = Create(kBytes), unmapped = Create(kBytes);
  Map(at, kBytes, unmapped);
  Fill(at, kBytes, 1);
  OK(cuMemUnmap(at, kBytes));
  Map(at + kBytes, kBytes, twice);
  Map(at + 2 * kBytes, kBytes, neighbour);
  Fill(at + kBytes, kBytes, 2);
  Fill(at + 2 * kBytes, kBytes, 3);
  OK(cuMemMap(elsewhere, kBytes, 0, twice, 0));  // a second time
  Allow(elsewhere, kBytes);
  PrintBytes("mapped twice", at + kBytes, kBytes);
  PrintBytes("its neighbour", at + 2 * kBytes, kBytes);
  Map(at, kBytes, unmapped);
  PrintBytes("not mapped then", at, kBytes);
  Handle again = 0;
  OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at + kBytes + 4096)));
  EXPECT(again == twice);
  OK(cuMemUnmap(at + kBytes, kBytes));
  OK(cuMemUnmap(elsewhere, kBytes));
  for (const Handle handle : {twice, again, neighbour, unmapped}) OK(cuMemRelease(handle));
  Print("released once more", cuMemRelease(neighbour));
  PrintBytes("released and mapped", at + 2 * kBytes, kBytes);
  OK(cuMemUnmap(at, kBytes));
  OK(cuMemUnmap(at + 2 * kBytes, kBytes));
  OK(cuMemAddressFree(at, 4 * kBytes));
  OK(cuMemAddressFree(elsewhere, 2 * kBytes));

  // A part of a handle (refused), host memory beside the GPU's, and an export behind the mapping.
  const CUdeviceptr mixed = Reserve(4 * kBytes);
  const Handle parts = Create(kBytes);
  Map(mixed, kBytes, parts);
  Fill(mixed, kBytes, 4);
  OK(cuMemUnmap(mixed, kBytes));
  Print("in part", cuMemMap(mixed, kBytes / 3, 0, parts, 0));  // a handle is mapped as a whole
  Print("from inside", cuMemMap(mixed, kBytes / 3, kBytes / 3, parts, 0));
  Map(mixed, kBytes, parts);
  PrintBytes("not in part", mixed, kBytes);
  OK(cuMemUnmap(mixed, 2 * kBytes));  // with addresses that are not mapped
  OK(cuMemUnmap(mixed, kBytes));
  OK(cuMemRelease(parts));
  OK(cuMemAddressFree(mixed, 4 * kBytes));
  const CUdeviceptr beside = Reserve(4 * kBytes);
  const Handle device = Create(kBytes);
  Handle host = 0;
  CUmemAllocationProp prop = Properties();
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  OK(cuMemCreate(&host, kBytes, &prop, 0));
  Map(beside, kBytes, device);
  Fill(beside, kBytes, 5);
  OK(cuMemMap(beside + kBytes, kBytes, 0, host, 0));
  Allow(beside + kBytes, kBytes);
  OK(cuMemsetD8(beside + kBytes, 9, kBytes));
  PrintBytes("beside host memory", beside, 2 * kBytes);
  card.Named(nullptr, {Update(beside, kBytes, 1), Read(beside + kBytes, kBytes)});
  int descriptor = -1;
  cuMemExportToShareableHandle(&descriptor, device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  PrintBytes("exported", beside, kBytes);
  OK(cuMemUnmap(beside, 2 * kBytes));
  OK(cuMemRelease(device));
  OK(cuMemRelease(host));
  OK(cuMemAddressFree(beside, 4 * kBytes));
  size_t left = 0;
  OK(cuMemGetInfo(&left, nullptr));
  EXPECT(left == free_bytes);  // each charge is given back
}

// Handles of two GPUs side by side.
SCENARIO(vmm_of_two_gpus) {
  Card card(0);
  CUmemAllocationProp prop = Properties();
  prop.location.id = 1;
  const Handle first = Create(kBytes);
  Handle second = 0;
  OK(cuMemCreate(&second, kBytes, &prop, 0));
  const CUdeviceptr at = Reserve(4 * kBytes);
  Map(at, kBytes, first);
  Fill(at, kBytes, 1);
  OK(cuMemMap(at + kBytes, kBytes, 0, second, 0));
  const CUmemAccessDesc access[] = {{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                    {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  OK(cuMemSetAccess(at, 2 * kBytes, access, 2));
  OK(cuMemsetD8(at + kBytes, 7, kBytes));
  PrintBytes("both", at, 2 * kBytes);
  OK(cuMemUnmap(at, 2 * kBytes));
  OK(cuMemRelease(first));
  OK(cuMemRelease(second));
  OK(cuMemAddressFree(at, 4 * kBytes));
}

// While another thread may queue work the memory stays as it is, and the call is refused. Nothing is lost by it.
SCENARIO(vmm_refusals) {
  Card card;
  std::promise<void> queued, over;
  std::thread running([&] {
    OK(cuCtxSetCurrent(card.context));
    OK(cuStreamSynchronize(nullptr));
    queued.set_value();
    over.get_future().wait();
  });
  queued.get_future().wait();
  const CUdeviceptr at = Reserve(2 * kBytes);
  const Handle handle = Create(kBytes);
  Map(at, kBytes, handle);
  Fill(at, kBytes, 1);
  const bool is_managed = Budget() != 0 && std::getenv("SLUICE_VMM") == nullptr;
  int descriptor = -1;
  if (is_managed) {
    EXPECT(cuMemMap(at + kBytes, kBytes, 0, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);
    EXPECT(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
           CUDA_ERROR_NOT_SUPPORTED);
  }
  PrintBytes("kept", at, kBytes);
  const uint64_t unmanaged_before = card.Stats().unmanaged_bytes;
  // A handle that is exported before it is mapped is the driver's own. Its reservation, still empty, becomes so too.
  const Handle exported = Create(kBytes);
  cuMemExportToShareableHandle(&descriptor, exported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  const CUdeviceptr own = Reserve(5 * kBytes);
  Map(own, kBytes, exported);
  Fill(own, kBytes, 2);
  PrintBytes("exported", own, kBytes);
  if (Budget() != 0) EXPECT(card.Stats().unmanaged_bytes >= unmanaged_before + kBytes);
  if (is_managed) {
    OK(cuMemUnmap(at, kBytes));
    EXPECT(cuMemMap(own + kBytes, kBytes, 0, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);
    Map(at, kBytes, handle);
  }
  PrintBytes("still kept", at, kBytes);
  // A handle that was never mapped takes the form of its reservation.
  const Handle fresh = Create(kBytes);
  Map(own + 2 * kBytes, kBytes, fresh);
  Fill(own + 2 * kBytes, kBytes, 3);
  PrintBytes("fresh", own + 2 * kBytes, kBytes);
  OK(cuMemUnmap(own, kBytes));
  OK(cuMemUnmap(own + 2 * kBytes, kBytes));
  OK(cuMemUnmap(at, kBytes));
  for (const Handle each : {handle, exported, fresh}) OK(cuMemRelease(each));
  OK(cuMemAddressFree(at, 2 * kBytes));
  OK(cuMemAddressFree(own, 5 * kBytes));
  over.set_value();
  running.join();
}

// A free address that is asked for is given, also where the engine keeps a reservation that was freed.
SCENARIO(vmm_reserved_at_an_address) {
  Card card;
  const CUdeviceptr before = Reserve(4 * kBytes);
  const Handle handle = Create(kBytes);
  Map(before, kBytes, handle);
  Fill(before, kBytes, 1);
  OK(cuMemUnmap(before, kBytes));
  OK(cuMemRelease(handle));
  for (const uint64_t bytes : {4 * kBytes, 2 * kBytes, 4 * kBytes}) {
    static CUdeviceptr last = 0;
    if (last == 0) OK(cuMemAddressFree(before, 4 * kBytes));
    OK(cuMemAddressReserve(&last, bytes, 0, before, 0));
    Print("at the address", last == before);
    const Handle fresh = Create(kBytes);
    Map(last + kBytes, kBytes, fresh);
    Fill(last + kBytes, kBytes, 2);
    PrintBytes("contents", last + kBytes, kBytes);
    OK(cuMemUnmap(last + kBytes, kBytes));
    OK(cuMemRelease(fresh));
    OK(cuMemAddressFree(last, bytes));
  }
}
