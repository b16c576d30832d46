// Memory and order that other processes and other interfaces share with the program; decompression by hardware.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/engine/scenario.h"
#include "test/engine/vmm.h"
#include "test/lib/passed_files.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kBytes = 8 * kMiB;

void* AsPointer(uintptr_t number) { return reinterpret_cast<void*>(number); }  // NOLINT(performance-no-int-to-ptr)

// A message of a process to its child: how to find a piece of memory, and the byte that fills it.
struct Message {
  enum Kind { kBlock, kPoolMemory, kVmm, kEvent, kEnd } kind;
  uint64_t bytes;
  unsigned char fill;
  CUipcMemHandle block;
  CUmemPoolPtrExportData pointer;
  CUipcEventHandle event;
};

void Send(int socket, const Message& message, int file = -1) { EXPECT(passed_files::Send(socket, message, file)); }
Message Receive(int socket, int* file) {
  Message message{};
  if (!passed_files::Receive(socket, &message, file)) std::_Exit(4);
  return message;
}

bool HoldsOnly(CUdeviceptr at, uint64_t bytes, unsigned char fill) {
  std::vector<unsigned char> got(bytes);
  OK(cuMemcpyDtoH(got.data(), at, bytes));
  for (const unsigned char byte : got) {
    if (byte != fill) return false;
  }
  return true;
}

// Whether the memory has the bytes, or the event the state, that the message names.
bool IsRight(const Message& said, int file, CUstream s) {
  CUdeviceptr at = 0;
  bool is_right = false;
  switch (said.kind) {
    case Message::kBlock:
      OK(cuIpcOpenMemHandle(&at, said.block, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
      is_right = HoldsOnly(at, said.bytes, said.fill);
      OK(cuIpcCloseMemHandle(at));
      return is_right;
    case Message::kPoolMemory: {
      CUmemoryPool pool = nullptr;
      CUmemPoolPtrExportData data = said.pointer;
      OK(cuMemPoolImportFromShareableHandle(&pool, AsPointer(static_cast<uintptr_t>(file)),
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      OK(cuMemPoolImportPointer(&at, pool, &data));
      is_right = HoldsOnly(at, said.bytes, said.fill);
      OK(cuMemFreeAsync(at, s));
      OK(cuStreamSynchronize(s));
      return is_right;
    }
    case Message::kVmm: {
      vmm::Handle handle = 0;
      OK(cuMemImportFromShareableHandle(&handle, AsPointer(static_cast<uintptr_t>(file)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
      at = vmm::Reserve(said.bytes);
      vmm::Map(at, said.bytes, handle);
      is_right = HoldsOnly(at, said.bytes, said.fill);
      OK(cuMemUnmap(at, said.bytes));
      OK(cuMemRelease(handle));
      OK(cuMemAddressFree(at, said.bytes));
      return is_right;
    }
    default: {
      CUevent event = nullptr;
      OK(cuIpcOpenEventHandle(&event, said.event));
      OK(cuStreamWaitEvent(s, event, 0));
      OK(cuEventSynchronize(event));
      is_right = cuEventQuery(event) == CUDA_SUCCESS;
      OK(cuStreamSynchronize(s));
      OK(cuEventDestroy(event));
      return is_right;
    }
  }
}

// The child's life: memory of its own, more than a small budget, and the parent's shared memory.
[[noreturn]] void Serve(int socket) {
  Card card;
  const CUstream s = card.Stream();
  std::array<CUdeviceptr, 8> own{};
  for (CUdeviceptr& block : own) block = Alloc(16 * kMiB);
  for (;;) {
    int file = -1;
    const Message said = Receive(socket, &file);
    if (said.kind == Message::kEnd) break;
    for (const CUdeviceptr block : own) OK(cuMemsetD8Async(block, 200, 16 * kMiB, s));
    const char answer = IsRight(said, file, s) ? 1 : 0;
    EXPECT(write(socket, &answer, 1) == 1);
    if (file >= 0) close(file);
  }
  for (const CUdeviceptr block : own) EXPECT(HoldsOnly(block, 16 * kMiB, 200));
  std::exit(0);
}

}  // namespace

// A block is exported or refused, and never another block's bytes arrive. Pools and VMM memory that were made for
// export are the driver's own.
SCENARIO(memory_of_another_process) {
  std::array<int, 2> ends{};
  EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()) == 0);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    Serve(ends[1]);
  }
  close(ends[1]);
  Card card;
  CUstream s = card.Stream();
  const auto ask = [&](Message message, int file) {
    Send(ends[0], message, file);
    char answer = 0;
    EXPECT(read(ends[0], &answer, 1) == 1);
    return answer == 1;
  };
  std::array<CUdeviceptr, 8> crowd{};
  for (CUdeviceptr& block : crowd) block = Alloc(16 * kMiB);
  const auto press = [&] {
    for (const CUdeviceptr block : crowd) OK(cuMemsetD8Async(block, 100, 16 * kMiB, s));
  };
  for (const uint64_t bytes : {uint64_t{512}, 4 * kMiB / 1024, kMiB, 3 * kMiB + 512, kBytes}) {
    const CUdeviceptr before = Alloc(bytes), block = Alloc(bytes), behind = Alloc(bytes);
    for (const CUdeviceptr each : {before, behind}) OK(cuMemsetD8Async(each, 9, bytes, s));
    OK(cuMemsetD8Async(block, 7, bytes, s));
    press();
    OK(cuStreamSynchronize(s));
    Message message{Message::kBlock, bytes, 7, {}, {}, {}};
    int is_capable = -1;
    OK(cuPointerGetAttribute(&is_capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, block));
    const CUresult result = cuIpcGetMemHandle(&message.block, block);
    EXPECT(is_capable == (result == CUDA_SUCCESS));
    EXPECT(result == CUDA_SUCCESS || Budget() != 0);
    Print("refused or right", result == CUDA_ERROR_INVALID_VALUE || ask(message, -1));
    OK(cuMemFree(block));
    Print("freed", cuIpcGetMemHandle(&message.block, block));  // never the memory around it
    for (const CUdeviceptr each : {before, behind}) OK(cuMemFree(each));
  }
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool pool = nullptr;
  OK(cuMemPoolCreate(&pool, &props));
  CUdeviceptr shared = 0, unshared = 0;
  OK(cuMemAllocFromPoolAsync(&shared, kBytes, pool, s));
  OK(cuMemsetD8Async(shared, 5, kBytes, s));
  OK(cuMemAllocAsync(&unshared, kBytes, s));
  press();
  OK(cuStreamSynchronize(s));
  Message message{Message::kPoolMemory, kBytes, 5, {}, {}, {}};
  int file = -1;
  OK(cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cuMemPoolExportPointer(&message.pointer, shared));
  Print("pool", ask(message, file));
  // Memory of a pool without handle types has no data for others.
  CUmemPoolPtrExportData none{};
  CUmemoryPool standard = nullptr;
  OK(cuDeviceGetDefaultMemPool(&standard, 0));
  std::printf("not exported %d %d\n", cuMemPoolExportPointer(&none, unshared),
              cuMemPoolExportToShareableHandle(&file, standard, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  const vmm::Handle handle = vmm::Create(kBytes);
  const CUdeviceptr mapped = vmm::Reserve(kBytes);
  vmm::Map(mapped, kBytes, handle);
  OK(cuMemsetD8Async(mapped, 3, kBytes, s));
  press();
  OK(cuStreamSynchronize(s));
  message = {Message::kVmm, kBytes, 3, {}, {}, {}};
  OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  Print("vmm", ask(message, file));
  Print("still here", HoldsOnly(mapped, kBytes, 3));
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
  message = {Message::kEvent, 0, 0, {}, {}, {}};
  OK(cuIpcGetEventHandle(&message.event, event));
  press();
  OK(cuEventRecord(event, s));
  OK(cuEventSynchronize(event));
  Print("event", ask(message, -1));
  Send(ends[0], {Message::kEnd, 0, 0, {}, {}, {}});
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child);
  Print("child", static_cast<uint64_t>(status));
  for (const CUdeviceptr block : crowd) EXPECT(HoldsOnly(block, 16 * kMiB, 100));
}

// A buffer of another interface, and semaphores that order it with work on memory that moves.
SCENARIO(external_memory_and_semaphores) {
  Card card;
  CUstream s = card.Stream(), t = card.Stream();
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC memory{};
  memory.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  memory.size = 16 * kMiB;
  CUexternalMemory imported = nullptr;
  OK(cuImportExternalMemory(&imported, &memory));
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC part{};
  part.offset = 4 * kMiB;
  part.size = kBytes;
  CUdeviceptr buffer = 0;
  OK(cuExternalMemoryGetMappedBuffer(&buffer, imported, &part));
  CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC said{};
  said.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
  CUexternalSemaphore timeline = nullptr, binary = nullptr;
  OK(cuImportExternalSemaphore(&timeline, &said));
  said.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD;
  OK(cuImportExternalSemaphore(&binary, &said));
  std::array<CUdeviceptr, 10> crowd{};
  for (CUdeviceptr& block : crowd) block = Alloc(kBytes);
  const auto press = [&](CUstream stream, unsigned seed) {
    for (const CUdeviceptr block : crowd) card.Named(stream, {Write(block, kBytes, seed)});
  };
  OK(cuMemsetD8Async(buffer, 1, kBytes, s));
  press(s, 1);
  for (unsigned round = 1; round <= 4; ++round) {
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait{};
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal{};
    wait.params.fence.value = signal.params.fence.value = round;
    // The kernel behind the wait names memory that is freed meanwhile.
    const CUdeviceptr freed = Alloc(kBytes);
    card.Named(s, {Write(freed, kBytes, 40 + round)});
    OK(cuWaitExternalSemaphoresAsync(&timeline, &wait, 1, s));
    card.Named(s, {Read(freed, kBytes, 40 + round), Update(buffer, kBytes)});
    OK(cuMemcpyDtoDAsync(crowd[round], buffer, kBytes, s));
    OK(cuSignalExternalSemaphoresAsync(&binary, &signal, 1, s));
    OK(cuMemFreeAsync(freed, s));
    // The other stream goes on, and signals late.
    CUdeviceptr next = 0;
    OK(cuMemAllocAsync(&next, kBytes, t));
    card.Named(t, {Write(next, kBytes, 60 + round)});
    OK(cuStreamSynchronize(t));
    Print("other", simgpu_digest(next, kBytes));
    OK(cuSignalExternalSemaphoresAsync(&timeline, &signal, 1, t));
    OK(cuWaitExternalSemaphoresAsync(&binary, &wait, 1, t));
    card.Named(t, {Read(next, kBytes, 60 + round), Update(buffer, kBytes)});
    OK(cuMemFreeAsync(next, t));
    OK(cuStreamSynchronize(t));
    press(s, 10 + round);
  }
  PrintDigest("buffer", buffer, kBytes);
  // The same by nodes of a graph.
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUgraphNode first = nullptr, second = nullptr, third = nullptr;
  CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait{};
  CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal{};
  wait.params.fence.value = 10;
  signal.params.fence.value = 11;
  CUDA_EXT_SEM_WAIT_NODE_PARAMS waits{&timeline, &wait, 1};
  CUDA_EXT_SEM_SIGNAL_NODE_PARAMS signals{&timeline, &signal, 1};
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = crowd[9];
  fill.elementSize = 1;
  fill.width = kBytes;
  fill.height = 1;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddExternalSemaphoresWaitNode(&first, graph, nullptr, 0, &waits));
  OK(cuGraphAddMemsetNode(&second, graph, &first, 1, &fill, card.context));
  OK(cuGraphAddExternalSemaphoresSignalNode(&third, graph, &second, 1, &signals));
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphLaunch(executable, s));
  const CUdeviceptr between = Alloc(kBytes);
  card.Named(t, {Write(between, kBytes, 80)});
  CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS opens{};
  opens.params.fence.value = 10;
  CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS done{};
  done.params.fence.value = 11;
  OK(cuSignalExternalSemaphoresAsync(&timeline, &opens, 1, t));
  OK(cuWaitExternalSemaphoresAsync(&timeline, &done, 1, t));
  OK(cuMemcpyDtoDAsync(between, crowd[9], kMiB, t));
  PrintDigest("behind the graph", between, kBytes);
  OK(cuDestroyExternalSemaphore(timeline));
  OK(cuDestroyExternalSemaphore(binary));
  OK(cuMemFree(buffer));
  OK(cuDestroyExternalMemory(imported));
  for (const CUdeviceptr block : crowd) PrintDigest("block", block, kBytes);
}

// Hardware decompresses in memory that does not move: a device whose memory moves does not offer it, and memory that
// was made for it stays the driver's own.
SCENARIO(decompression) {
  Card card;
  CUstream s = card.Stream();
  int algorithms = -1;
  OK(cuDeviceGetAttribute(&algorithms, CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK, 0));
  constexpr uint64_t kPacked = kMiB, kUnpacked = 2 * kMiB;
  const auto unpack = [&](CUdeviceptr from, CUdeviceptr to, CUdeviceptr size, uint64_t expected) {
    CUmemDecompressParams one{};
    one.srcNumBytes = kPacked;
    one.dstNumBytes = expected;
    one.src = AsPointer(from);
    one.dst = AsPointer(to);
    one.dstActBytes = static_cast<cuuint32_t*>(AsPointer(size));
    one.algo = CU_MEM_DECOMPRESS_ALGORITHM_LZ4;
    size_t failed = 7;
    return cuMemBatchDecompressAsync(&one, 1, 0, &failed, s);
  };
  std::array<CUdeviceptr, 10> crowd{};
  for (CUdeviceptr& block : crowd) block = Alloc(kBytes);
  const auto press = [&](unsigned seed) {
    for (const CUdeviceptr block : crowd) card.Named(s, {Write(block, kBytes, seed)});
  };
  // Without an expected size, behind an eviction.
  for (const uint64_t expected : {kUnpacked, uint64_t{0}}) {
    const CUdeviceptr from = Alloc(4 * kMiB), to = Alloc(4 * kMiB), size = Alloc(4 * kMiB);
    card.Named(s, {Write(from, kPacked, 1)});
    press(2);
    int is_capable = -1;
    OK(cuPointerGetAttribute(&is_capable, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, to));
    EXPECT(is_capable == (algorithms != 0));
    EXPECT(algorithms != 0 || Budget() != 0);
    EXPECT(unpack(from, to, size, expected) == (is_capable != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE));
    OK(cuStreamSynchronize(s));
    for (const CUdeviceptr each : {from, to, size}) OK(cuMemFree(each));
  }
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.usage = CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS;
  CUmemoryPool pool = nullptr;
  OK(cuMemPoolCreate(&pool, &props));
  CUdeviceptr from = 0, to = 0, size = 0;
  for (CUdeviceptr* each : {&from, &to, &size}) OK(cuMemAllocFromPoolAsync(each, kUnpacked, pool, s));
  for (unsigned round = 0; round < 3; ++round) {
    card.Named(s, {Write(crowd[round], kBytes, 20 + round)});
    OK(cuMemcpyDtoDAsync(from, crowd[round] + kMiB, kPacked, s));
    OK(unpack(from, to, size, round % 2 == 0 ? kUnpacked : 0));
    OK(cuMemcpyDtoDAsync(crowd[round + 4], to, kUnpacked, s));
    press(30 + round);
    PrintDigest("unpacked", to, kUnpacked);
  }
  CUmemAllocationProp prop = vmm::Properties();
  prop.allocFlags.usage = CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
  vmm::Handle handle = 0;
  OK(cuMemCreate(&handle, kBytes, &prop, 0));
  const CUdeviceptr mapped = vmm::Reserve(kBytes);
  vmm::Map(mapped, kBytes, handle);
  OK(cuMemcpyDtoDAsync(mapped, crowd[9], kPacked, s));
  OK(unpack(mapped, mapped + 2 * kMiB, mapped + 6 * kMiB, kUnpacked));
  PrintDigest("in mapped memory", mapped, kBytes);
}
