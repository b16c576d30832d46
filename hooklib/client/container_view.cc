#include "client/container_view.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "client/connect.h"
#include "client/hello.h"
#include "client/internals.h"

namespace sluice::client {
namespace {

constexpr int kMaxConnectMs = 200;
constexpr uint64_t kMaxCallNs = 300'000'000, kRetryNs = 1'000'000'000, kOldTotalsNs = 60 * kRetryNs;

ContainerView* g_view = nullptr;  // the process has one

}  // namespace

ContainerView::ContainerView(const char* socket_path, const char* version) {
  CopyText(path_, sizeof(path_), socket_path);
  CopyText(version_, sizeof(version_), version);
  if (g_view == nullptr && pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild) == 0) g_view = this;
}

void ContainerView::BeforeFork() { g_view->mutex_.Lock(); }
void ContainerView::AfterForkInParent() { g_view->mutex_.Unlock(); }
void ContainerView::AfterForkInChild() {
  g_view->Disconnect();
  g_view->failed_ns_ = 0;
  g_view->mutex_.Unlock();
}

bool ContainerView::Memory(const char* uuid, sluice_memory* memory, bool* knows_use) {
  MutexLock lock(mutex_);
  *memory = {};
  CopyText(memory->uuid, sizeof(memory->uuid), uuid);
  for (int attempt = 0; attempt < 2; ++attempt) {  // the agent may have been restarted since the last call
    const bool was_connected = socket_.IsOurs();
    if (!Connected()) return false;
    if (totals_ns_ != 0) {
      *knows_use = false;
      for (int i = 0; i < totals_count_; ++i) {
        if (strncmp(totals_[i].uuid, memory->uuid, sizeof(memory->uuid)) == 0) memory->total_bytes = totals_[i].bytes;
      }
      return true;
    }
    sluice_memory request{};
    memcpy(request.uuid, memory->uuid, sizeof(request.uuid));
    request.id = ++next_id_;
    const uint64_t until = NowNs() + kMaxCallNs;
    sluice_frame frame;
    if (Send(SLUICE_MEMORY_REQUEST, &request, sizeof(request))) {
      while (Receive(SLUICE_MEMORY, until, &frame)) {
        if (frame.u.memory.id != request.id) continue;
        *memory = frame.u.memory;
        *knows_use = true;
        return true;
      }
    }
    Disconnect();
    failed_ns_ = was_connected ? 0 : NowNs();
  }
  return false;
}

int ContainerView::Processes(const char* uuid, sluice_process* list, int max) {
  MutexLock lock(mutex_);
  if (!Connected() || totals_ns_ != 0) return -1;
  sluice_processes request{};
  CopyText(request.uuid, sizeof(request.uuid), uuid);
  int got = 0;
  const uint64_t until = NowNs() + kMaxCallNs;
  for (;;) {
    request.id = ++next_id_;
    request.first = static_cast<uint32_t>(got);
    sluice_frame frame;
    bool answered = Send(SLUICE_PROCESSES_REQUEST, &request, sizeof(request));
    do {
      answered = answered && Receive(SLUICE_PROCESSES, until, &frame);
    } while (answered && frame.u.processes.id != request.id);
    if (!answered) {
      Disconnect();
      return -1;
    }
    const sluice_processes& answer = frame.u.processes;
    for (int i = 0; i < SLUICE_PROCESSES_A_FRAME && got < max && static_cast<uint32_t>(got) < answer.count; ++i)
      list[got++] = answer.list[i];
    if (got == max || static_cast<uint32_t>(got) >= answer.count) return got;
  }
}

void ContainerView::Close() {
  MutexLock lock(mutex_);
  Disconnect();
}

bool ContainerView::Connected() {
  const uint64_t now = NowNs();
  if (totals_ns_ != 0 && now - totals_ns_ < kOldTotalsNs) return true;
  totals_ns_ = 0;
  if (socket_.IsOurs()) return true;
  if (failed_ns_ != 0 && now - failed_ns_ < kRetryNs) return false;
  const bool ok = Connect();
  failed_ns_ = ok ? 0 : now;
  if (!ok) Disconnect();
  return ok;
}

bool ContainerView::Connect() {
  const uint64_t until = NowNs() + kMaxCallNs;
  socket_ = Descriptor(ConnectTo(path_, kMaxConnectMs));
  seq_ = 0;
  sluice_hello hello{};
  FillHello(hello);
  CopyText(hello.version, sizeof(hello.version), version_);
  hello.flags = SLUICE_HELLO_OBSERVER;
  sluice_frame frame;
  if (!socket_.IsOurs() || !Send(SLUICE_HELLO, &hello, sizeof(hello)) || !Receive(SLUICE_WELCOME, until, &frame))
    return false;
  if (frame.h.minor >= SLUICE_MINOR_LEASES) return true;
  // This agent takes the process for one that uses the GPU, so the connection must not last.
  const bool all = ReceiveBudgets(frame.u.welcome.gpus, until);
  Disconnect();
  if (all) totals_ns_ = NowNs();
  return all;
}

bool ContainerView::ReceiveBudgets(uint32_t count, uint64_t until_ns) {
  totals_count_ = 0;
  while (static_cast<uint32_t>(totals_count_) < count && totals_count_ < SLUICE_MAX_GPUS) {
    sluice_frame frame;
    if (!Receive(SLUICE_BUDGET, until_ns, &frame)) return false;
    const sluice_budget& budget = frame.u.budget;
    const bool by_limit = budget.visible == SLUICE_VISIBLE_LIMIT && budget.limit_bytes != 0;
    CopyText(totals_[totals_count_].uuid, sizeof(totals_[0].uuid), budget.uuid);
    totals_[totals_count_++].bytes = by_limit ? budget.limit_bytes : budget.guaranteed_bytes;
  }
  return true;
}

void ContainerView::Disconnect() {
  socket_.Close();
  totals_ns_ = 0;
}

bool ContainerView::Send(uint16_t type, const void* body, size_t bytes) {
  sluice_frame frame{};
  frame.h = {SLUICE_WIRE_MAGIC, SLUICE_WIRE_MAJOR, SLUICE_WIRE_MINOR, type, ++seq_};
  memcpy(frame.u.bytes, body, bytes);
  return socket_.IsOurs() &&
         send(socket_.fd(), &frame, sizeof(frame), MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(frame));
}

// The next frame of this type; others are passed over. No control space: the kernel drops the page's descriptor.
bool ContainerView::Receive(uint16_t type, uint64_t until_ns, sluice_frame* frame) {
  for (uint64_t now = NowNs(); now < until_ns && socket_.IsOurs(); now = NowNs()) {
    pollfd p{socket_.fd(), POLLIN, 0};
    const int ms = static_cast<int>((until_ns - now) / 1'000'000) + 1;
    if (poll(&p, 1, ms) < 0 && errno != EINTR) return false;
    if (p.revents == 0) continue;
    // NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): the lock is this connection's, and the wait ends
    const ssize_t n = recv(socket_.fd(), frame, sizeof(*frame), MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n != static_cast<ssize_t>(sizeof(*frame)) || frame->h.magic != SLUICE_WIRE_MAGIC ||
        frame->h.major != SLUICE_WIRE_MAJOR || frame->h.type == SLUICE_REFUSE)
      return false;
    if (frame->h.type == type) return true;
  }
  return false;
}

}  // namespace sluice::client
