#include "peer.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

#include "machine.h"
#include "test/lib/passed_files.h"
#include "try.h"

namespace differential {
namespace {

using passed_files::Receive;
using passed_files::Send;

// To the peer, with a file where the kind has one.
struct Request {
  enum Kind { kReadBlock, kReadPooled, kReadMapped, kWaitEvent, kGiveBlock, kGiveMapped, kTakeBack } kind;
  int device;
  uint64_t bytes, seed;
  CUipcMemHandle block;
  CUmemPoolPtrExportData pointer;
  CUipcEventHandle event;
};
struct Answer {
  CUresult result;
  uint64_t digest;
  CUipcMemHandle block;
};

int g_socket = -1;
pid_t g_peer = -1;
std::map<CUdeviceptr, uint64_t> g_opened;  // and the peer's number of it

void* AsPointer(uintptr_t number) { return reinterpret_cast<void*>(number); }  // NOLINT(performance-no-int-to-ptr)
void* FileHandle(int file) { return AsPointer(static_cast<uintptr_t>(file)); }

// Whether the hook may refuse to export memory that it moves: the driver does not.
bool MayRefuse() { return std::getenv("SLUICE_GPU_MEMORY") != nullptr; }

CUmemAllocationProp Exportable(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}
CUresult FillBlock(CUdeviceptr at, size_t bytes, uint64_t seed) {
  std::vector<char> host(bytes);
  FillHost(host.data(), bytes, seed);
  return cuMemcpyHtoD(at, host.data(), bytes);
}

// --- In the peer ---

struct Peer {
  std::map<uint64_t, CUdeviceptr> given;        // by the seed of each block
  std::vector<std::array<CUdeviceptr, 3>> own;  // of each GPU: memory that the budget cannot hold with the shared
};

CUresult Read(const Request& said, int file, Answer* answer) {
  CUdeviceptr at = 0;
  switch (said.kind) {
    case Request::kReadBlock:
      TRY(cuIpcOpenMemHandle(&at, said.block, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
      TRY(Digest(at, said.bytes, &answer->digest));
      return cuIpcCloseMemHandle(at);
    case Request::kReadPooled: {
      CUmemoryPool from = nullptr;
      CUmemPoolPtrExportData data = said.pointer;
      TRY(cuMemPoolImportFromShareableHandle(&from, FileHandle(file), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      TRY(cuMemPoolImportPointer(&at, from, &data));
      TRY(Digest(at, said.bytes, &answer->digest));
      TRY(cuMemFree(at));
      return cuMemPoolDestroy(from);
    }
    default: {
      CUmemGenericAllocationHandle handle = 0;
      TRY(cuMemImportFromShareableHandle(&handle, FileHandle(file), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
      TRY(MapHandle(&at, said.bytes, said.device, handle));
      TRY(Digest(at, said.bytes, &answer->digest));
      TRY(cuMemUnmap(at, said.bytes));
      TRY(cuMemAddressFree(at, said.bytes));
      return cuMemRelease(handle);
    }
  }
}

CUresult Serve(const Request& said, int file, Peer* peer, Answer* answer, int* given) {
  TRY(cuCtxSetCurrent(c[said.device]));
  for (const CUdeviceptr block : peer->own[static_cast<size_t>(said.device)])
    TRY(cuMemsetD8Async(block, 200, 4 << 20, CU_STREAM_LEGACY));
  switch (said.kind) {
    case Request::kWaitEvent: {
      CUevent event = nullptr;
      TRY(cuIpcOpenEventHandle(&event, said.event));
      TRY(cuEventSynchronize(event));
      return cuEventDestroy(event);
    }
    case Request::kGiveBlock: {
      CUdeviceptr at = 0;
      TRY(cuMemAlloc(&at, said.bytes));
      TRY(FillBlock(at, said.bytes, said.seed));
      peer->given[said.seed] = at;
      return cuIpcGetMemHandle(&answer->block, at);
    }
    case Request::kTakeBack:
      TRY(cuMemFree(peer->given[said.seed]));
      peer->given.erase(said.seed);
      return CUDA_SUCCESS;
    case Request::kGiveMapped: {
      const CUmemAllocationProp prop = Exportable(said.device);
      CUmemGenericAllocationHandle handle = 0;
      CUdeviceptr at = 0;
      TRY(cuMemCreate(&handle, said.bytes, &prop, 0));
      TRY(MapHandle(&at, said.bytes, said.device, handle));
      TRY(FillBlock(at, said.bytes, said.seed));
      TRY(cuCtxSynchronize());
      TRY(cuMemExportToShareableHandle(given, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      TRY(cuMemUnmap(at, said.bytes));
      TRY(cuMemAddressFree(at, said.bytes));
      return cuMemRelease(handle);
    }
    default:
      return Read(said, file, answer);
  }
}

[[noreturn]] void Live() {
  Peer peer;
  const int count = Start();
  for (int device = 0; device < count; ++device) {
    std::array<CUdeviceptr, 3> own{};
    bool is_good =
        cuDevicePrimaryCtxRetain(&c[device], device) == CUDA_SUCCESS && cuCtxSetCurrent(c[device]) == CUDA_SUCCESS;
    for (CUdeviceptr& block : own) is_good = is_good && cuMemAlloc(&block, 4 << 20) == CUDA_SUCCESS;
    if (!is_good) std::_Exit(3);
    peer.own.push_back(own);
  }
  for (;;) {
    Request said{};
    Answer answer{};
    int file = -1, given = -1;
    if (!Receive(g_socket, &said, &file)) break;  // the program has ended
    answer.result = Serve(said, file, &peer, &answer, &given);
    if (!Send(g_socket, answer, given)) break;
    if (file >= 0) close(file);
    if (given >= 0) close(given);
  }
  for (const std::array<CUdeviceptr, 3>& own : peer.own) {
    for (const CUdeviceptr block : own) {
      if (cuMemFree(block) != CUDA_SUCCESS) std::_Exit(4);
    }
  }
  std::exit(0);
}

// --- In the program ---

CUresult Ask(const Request& said, int file, Answer* answer, int* given = nullptr) {
  int unused = -1;
  if (!Send(g_socket, said, file) || !Receive(g_socket, answer, given == nullptr ? &unused : given))
    return CUDA_ERROR_UNKNOWN;
  if (answer->result != CUDA_SUCCESS) Record("the peer's call gave %d", static_cast<int>(answer->result));
  return answer->result;
}
CUresult NoteDigest(uint64_t digest) {
  Record("shared: %016llx", static_cast<unsigned long long>(digest));
  return CUDA_SUCCESS;
}
CUresult NoteOwn(CUdeviceptr at, size_t bytes) {
  uint64_t digest = 0;
  TRY(Digest(at, bytes, &digest));
  return NoteDigest(digest);
}

}  // namespace

void StartPeer(bool exports, int pipe) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
  std::fflush(stdout);
  g_peer = fork();
  g_socket = ends[g_peer == 0 ? 1 : 0];
  close(ends[g_peer == 0 ? 0 : 1]);
  if (g_peer != 0) return;
  if (pipe >= 0) close(pipe);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a program that hangs is killed
  if (exports) setenv("SLUICE_UNMANAGED", "1", 1);
  Live();
}

void EndPeer() {
  if (g_peer <= 0) return;
  close(g_socket);
  int status = 0;
  waitpid(g_peer, &status, 0);
  g_peer = -1;
  Record("the peer ended with %d", status);
}

CUresult ShareBlock(CUdeviceptr block, size_t bytes, int device) {
  Request said{Request::kReadBlock, device, bytes, 0, {}, {}, {}};
  const CUresult exported = cuIpcGetMemHandle(&said.block, block);
  if (exported == CUDA_ERROR_INVALID_VALUE && MayRefuse()) return NoteOwn(block, bytes);
  TRY(exported);
  Answer answer{};
  TRY(Ask(said, -1, &answer));
  return NoteDigest(answer.digest);
}

CUresult ShareMapped(CUdeviceptr at, size_t bytes, int device) {
  CUmemGenericAllocationHandle handle = 0;
  int file = -1;
  TRY(cuMemRetainAllocationHandle(&handle, AsPointer(at)));
  const CUresult exported = cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  TRY(cuMemRelease(handle));
  if (exported == CUDA_ERROR_NOT_SUPPORTED && MayRefuse()) return NoteOwn(at, bytes);
  TRY(exported);
  Answer answer{};
  const CUresult asked = Ask({Request::kReadMapped, device, bytes, 0, {}, {}, {}}, file, &answer);
  close(file);
  TRY(asked);
  return NoteDigest(answer.digest);
}

CUresult SharePooled(CUdeviceptr block, size_t bytes, int device, CUmemoryPool from) {
  Request said{Request::kReadPooled, device, bytes, 0, {}, {}, {}};
  int file = -1;
  TRY(cuMemPoolExportToShareableHandle(&file, from, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  TRY(cuMemPoolExportPointer(&said.pointer, block));
  Answer answer{};
  const CUresult asked = Ask(said, file, &answer);
  close(file);
  TRY(asked);
  return NoteDigest(answer.digest);
}

CUresult ShareEvent(CUstream stream) {
  CUevent event = nullptr;
  Request said{Request::kWaitEvent, 0, 0, 0, {}, {}, {}};
  TRY(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
  TRY(cuIpcGetEventHandle(&said.event, event));
  TRY(cuEventRecord(event, stream));
  if (Simulated()) TRY(cuEventSynchronize(event));  // virtual time stands still while the peer is asked
  Answer answer{};
  TRY(Ask(said, -1, &answer));
  return cuEventDestroy(event);
}

CUresult MakeSharedPool(CUmemoryPool* out, int device) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location = Exportable(device).location;
  return cuMemPoolCreate(out, &props);
}

CUresult OpenBlock(CUdeviceptr* out, size_t bytes, int device, uint64_t seed) {
  Answer answer{};
  TRY(Ask({Request::kGiveBlock, device, bytes, seed, {}, {}, {}}, -1, &answer));
  TRY(cuIpcOpenMemHandle(out, answer.block, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  g_opened[*out] = seed;
  return CUDA_SUCCESS;
}
CUresult CloseBlock(CUdeviceptr block) {
  Answer answer{};
  TRY(cuIpcCloseMemHandle(block));
  TRY(Ask({Request::kTakeBack, 0, 0, g_opened[block], {}, {}, {}}, -1, &answer));
  g_opened.erase(block);
  return CUDA_SUCCESS;
}

CUresult ImportMapped(CUdeviceptr* out, size_t bytes, int device, uint64_t seed) {
  Answer answer{};
  int file = -1;
  TRY(Ask({Request::kGiveMapped, device, bytes, seed, {}, {}, {}}, -1, &answer, &file));
  CUmemGenericAllocationHandle handle = 0;
  TRY(cuMemImportFromShareableHandle(&handle, FileHandle(file), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(file);
  TRY(MapHandle(out, bytes, device, handle));
  KeepMapping(*out, bytes);
  return cuMemRelease(handle);
}

}  // namespace differential
