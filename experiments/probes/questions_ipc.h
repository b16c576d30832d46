// The questions of questions.cu about memory and events of other processes.
#pragma once

#include "questions.h"

// Bytes between two processes that both use CUDA.
struct Exchange {
  int in, out;
  template <typename T>
  void Send(const T& value) const {
    if (write(out, &value, sizeof value) != sizeof value) std::exit(1);
  }
  template <typename T>
  T Receive() const {
    T value{};
    if (read(in, &value, sizeof value) != sizeof value) std::exit(1);
    return value;
  }
};

inline void Importer(const Exchange& peer) {
  StartCuda();
  const auto handle = peer.Receive<CUipcMemHandle>();
  const auto offset = peer.Receive<size_t>();  // of the block in its 2 MiB
  CUdeviceptr p = 0, base = 0, again = 0;
  size_t size = 0;
  const CUresult opened = cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  Say("open", opened);
  if (opened != CUDA_SUCCESS) std::exit(0);
  const CUresult ranged = cuMemGetAddressRange(&base, &size, p);
  Say("range", "%d base p%+ld size %zu", ranged, static_cast<long>(base - p), size);
  Say("p_in_2_MiB", "%s", p % (2 * kMiB) == offset ? "as the exporter's" : p % (2 * kMiB) == 0 ? "0" : "other");
  uint8_t byte = 0;
  std::string seen;
  for (size_t i = 0; i < 33; ++i) {
    const CUresult code = cuMemcpyDtoH(&byte, p + i * 64 * kKiB, 1);
    seen += code == CUDA_SUCCESS ? " " + std::to_string(byte) : " E" + std::to_string(code);
  }
  Say("bytes_from_p_each_64_KiB", "%s", seen.c_str());
  const CUresult reopened = cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  Say("open_again", "%d %s", reopened, again == p ? "same address" : "other address");
  Say("free_of_imported", cuMemFree(p));
  Say("export_of_imported", [&] {
    CUipcMemHandle h;
    return cuIpcGetMemHandle(&h, p);
  }());
  Say("close", cuIpcCloseMemHandle(p));
  Say("close_again", cuIpcCloseMemHandle(p));
  std::exit(0);
}

// Four blocks of `bytes`, each full of its number; the second is exported.
inline void SmallBlocks(size_t bytes) {
  int to[2], from[2];
  if (pipe(to) != 0 || pipe(from) != 0) return;
  const pid_t child = fork();
  if (child == 0) Importer({to[0], from[1]});
  StartCuda();
  CUdeviceptr blocks[4];
  for (int i = 0; i < 4; ++i) {
    blocks[i] = Allocate(bytes);
    NEED(cuMemsetD8(blocks[i], static_cast<unsigned char>(11 + i), bytes));
  }
  NEED(cuCtxSynchronize());
  CUipcMemHandle handle{};
  Say("get", cuIpcGetMemHandle(&handle, blocks[1]));
  Say("get_inside", [&] {
    CUipcMemHandle h;
    return cuIpcGetMemHandle(&h, blocks[1] + 4096);
  }());
  Say("block_in_2_MiB", "%zu KiB", static_cast<size_t>(blocks[1] % (2 * kMiB)) / kKiB);
  Say("open_of_own", [&] {
    CUdeviceptr p;
    return cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }());
  const Exchange peer{from[0], to[1]};
  peer.Send(handle);
  peer.Send(static_cast<size_t>(blocks[1] % (2 * kMiB)));
  waitpid(child, nullptr, 0);
}

inline void IpcOfKinds() {
  CUmemGenericAllocationHandle mapped = 0;
  void* pinned = nullptr;
  NEED(cuMemHostAlloc(&pinned, kMiB, 0));
  const std::pair<const char*, CUdeviceptr> kinds[] = {{"alloc", Allocate(kMiB)},
                                                       {"managed", Managed(kMiB)},
                                                       {"pool", OfPool(nullptr, kMiB)},
                                                       {"made_pool", OfPool(MadePool(), kMiB)},
                                                       {"vmm", Mapped(2 * kMiB, 2 * kMiB, &mapped)},
                                                       {"pinned", reinterpret_cast<CUdeviceptr>(pinned)},
                                                       {"nothing", 0x10000},
                                                       {"null", 0}};
  for (const auto& [kind, p] : kinds) {
    CUipcMemHandle handle{};
    Say(kind, cuIpcGetMemHandle(&handle, p));
  }
  CUevent event = nullptr;
  CUipcEventHandle shared{};
  NEED(cuEventCreate(&event, 0));
  Say("event_with_times", cuIpcGetEventHandle(&shared, event));
  NEED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  Say("event_not_interprocess", cuIpcGetEventHandle(&shared, event));
  Say("event_interprocess_with_times", cuEventCreate(&event, CU_EVENT_INTERPROCESS));
}

inline void AskOfIpc() {
  Ask("ipc.kinds", IpcOfKinds);
  for (const size_t kib : {64, 512, 1024, 2048, 3072})
    Ask("ipc.blocks_of_" + std::to_string(kib) + "_KiB", [kib] { SmallBlocks(kib * kKiB); }, false);
}
