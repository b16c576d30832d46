#include "common/http/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <thread>
#include <utility>

#include "common/http/client_pace.h"
#include "common/http/connections.h"
#include "common/http/http_connection.h"
#include "common/http/http_dispatch.h"
#include "common/http/http_frame.h"
#include "common/http/worker_pool.h"

namespace sluice {

using Clock = std::chrono::steady_clock;
using http::Connection;
using http::Step;

namespace {

constexpr int kListenBacklog = 1024;

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(const HttpOptions& options)
      : dispatch(options.idle_timeout),
        o_(options),
        workers_(o_, dispatch, [this] { Wake(); }),
        pace_(options.requests_per_s),
        probe_pace_(options.requests_per_s) {}
  ~Impl() { Stop(std::chrono::milliseconds(0)); }

  http::HttpDispatch dispatch;

  std::string Start() {
    std::string error;
    listener_ = OpenListener(o_.address, kListenBacklog, &error);
    if (listener_ < 0) return "the server cannot listen at " + error;
    port_ = PortOf(listener_);
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    Watch(listener_, kListenerId);
    Watch(wake_, kWakeId);
    loop_ = std::thread([this] { RunLoop(); });
    workers_.Start();
    return {};
  }

  void Stop(std::chrono::milliseconds grace) {
    if (!loop_.joinable()) return;
    drain_until_ = (Clock::now() + grace).time_since_epoch().count();
    is_draining_ = true;
    Wake();
    loop_.join();
    workers_.Stop();
    for (const uint64_t id : connections_.IdsOf([](const Connection&) { return true; }))
      connections_.Close(connections_.At(id));
    for (int* fd : {&listener_, &epoll_, &wake_}) {
      if (*fd >= 0) ::close(*fd);
      *fd = -1;
    }
  }

  uint16_t port() const { return port_; }
  size_t connections() const { return connections_.size(); }

 private:
  // Ids of the epoll events.
  static constexpr uint64_t kListenerId = 0, kWakeId = 1;
  static constexpr int kMaxEventsPerWait = 64;
  static constexpr int kPollMs = 50;
  // Then the requests of those that came are read, before later ones may displace them.
  static constexpr int kMaxAcceptsPerTurn = 16;
  static constexpr std::chrono::milliseconds kDeadlineScanInterval{100};
  static constexpr size_t kReadChunkBytes = 16384;  // a TLS record: none of it is left behind in OpenSSL
  static constexpr int kMaxChunksPerTurn = 16;      // then other clients' turn

  void Watch(int fd, uint64_t id) {
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u64 = id;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &e);
  }

  void Wake() const {
    const uint64_t one = 1;
    (void)!write(wake_, &one, sizeof(one));
  }

  void CountRefusal(const char* reason) const {
    if (o_.on_refused) o_.on_refused(reason);
  }

  // ---- Everything below runs on the loop's thread.

  void RunLoop() {
    http::SetNice(o_.nice);
    epoll_event events[kMaxEventsPerWait];
    auto next_scan = Clock::now();
    while (true) {
      const int n = epoll_wait(epoll_, events, kMaxEventsPerWait, kPollMs);
      const auto now = Clock::now();
      for (int i = 0; i < n; ++i) {
        const uint64_t id = events[i].data.u64;
        if (id == kListenerId) {
          if (!is_draining_) Accept(now);
        } else if (id == kWakeId) {
          uint64_t count = 0;
          (void)!read(wake_, &count, sizeof(count));
        } else if (Connection* const c = connections_.Find(id); c != nullptr) {
          c->is_paused ? connections_.Close(*c) : Advance(*c, now);  // of a paused one only the end comes
        }
      }
      DeliverReplies(now);
      if (is_draining_) {
        CloseListener();
        CloseIdle();
        if (connections_.empty() || now.time_since_epoch().count() >= drain_until_) return;
      }
      Resume(now);
      if (now >= next_scan) {
        CloseExpired(now);
        next_scan = now + kDeadlineScanInterval;
      }
    }
  }

  void CloseListener() {
    if (listener_ < 0) return;
    epoll_ctl(epoll_, EPOLL_CTL_DEL, listener_, nullptr);
    ::close(listener_);
    listener_ = -1;
  }

  void Accept(Clock::time_point now) {
    for (int i = 0; i < kMaxAcceptsPerTurn; ++i) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        // Without a free descriptor, epoll would report this connection for ever.
        if ((errno == EMFILE || errno == ENFILE) && Displace(connections_.Displaceable(now))) continue;
        return;
      }
      if (!MakeRoom(http::ClientOf(fd), now)) {
        ::close(fd);
        CountRefusal("connections");
        continue;
      }
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      Connection& c = connections_.Add(fd, o_.tls);
      c.since = now;
      c.deadline = now + o_.handshake_timeout;
      Watch(fd, c.id);
      c.events = EPOLLIN;
    }
  }

  // False: every connection that could be closed for one of `client` is being answered.
  bool MakeRoom(const http::ClientAddress& client, Clock::time_point now) {
    const size_t own = o_.max_connections_per_client;
    if (own != 0 && connections_.CountOf(client) >= own && !Displace(connections_.DisplaceableOf(client, now)))
      return false;
    return connections_.size() < o_.max_connections || Displace(connections_.Displaceable(now));
  }

  // Closes a connection for another's sake. False: there is none.
  bool Displace(Connection* c) {
    if (c == nullptr) return false;
    CountRefusal("displaced");
    connections_.Close(*c);
    return true;
  }

  void Advance(Connection& c, Clock::time_point now) {
    if (c.state == Connection::State::kHandshake && !Handshake(c, now)) return;
    if (c.state == Connection::State::kReading && !Read(c, now)) return;
    if (c.state == Connection::State::kWriting) Write(c, now);
  }

  // False: the connection must wait, or is closed.
  bool Handshake(Connection& c, Clock::time_point now) {
    uint32_t interest = 0;
    switch (c.Handshake(interest)) {
      case Step::kProgress:
        c.state = Connection::State::kReading;
        c.since = now;
        c.deadline = now + o_.idle_timeout;
        return true;
      case Step::kWait:
        SetInterest(c, interest);
        return false;
      case Step::kEnd:
        break;
    }
    CountRefusal("handshake");
    connections_.Close(c);
    return false;
  }

  // Reads until a request is whole. False: the connection must wait, or is closed.
  bool Read(Connection& c, Clock::time_point now) {
    char chunk[kReadChunkBytes];
    for (int turn = 0;; ++turn) {
      if (DispatchRequest(c, now)) return c.state == Connection::State::kWriting;
      size_t received = 0;
      const Step step = turn < kMaxChunksPerTurn ? c.Receive(chunk, sizeof(chunk), received) : Step::kWait;
      if (step == Step::kWait) break;
      if (step == Step::kEnd) {
        connections_.Close(c);
        return false;
      }
      if (c.in.empty()) {
        c.since = now;
        c.deadline = now + o_.request_timeout;
      }
      while (connections_.request_bytes + received > o_.max_buffered_bytes && Displace(connections_.SenderOfMost(c))) {
      }
      if (connections_.request_bytes + received > o_.max_buffered_bytes) {
        Refuse(c, 503, "the server is receiving too many bytes at once", true, now);
        return true;
      }
      connections_.request_bytes += c.Keep(chunk, received);
    }
    SetInterest(c, EPOLLIN);
    return false;
  }

  // Submits a whole request of the received bytes, or refuses it. True: the connection left the state kReading.
  bool DispatchRequest(Connection& c, Clock::time_point now) {
    if (c.in.empty()) return false;
    const http::FrameLimits limits{o_.max_header_bytes, o_.max_body_bytes, o_.max_cut_body_bytes};
    const http::Frame frame = c.NextRequest(limits, connections_.request_bytes);
    if (frame.state == http::Frame::State::kRefused) {
      Refuse(c, frame.status, frame.reason, true, now);
      return true;
    }
    if (frame.state == http::Frame::State::kIncomplete) {
      if (frame.wants_continue && !c.is_continue_sent) {
        c.is_continue_sent = true;
        size_t sent = 0;  // the empty socket buffer holds these 25 bytes; otherwise the client continues by itself
        c.Send("HTTP/1.1 100 Continue\r\n\r\n", sent);
      }
      if (frame.total > c.in.capacity()) c.in.reserve(frame.total);
      return false;
    }
    const bool is_probe = std::ranges::find(o_.probe_paths, frame.target) != o_.probe_paths.end();
    const bool has_turn =
        is_probe || o_.max_work_per_client == 0 || connections_.WorkOf(c.client) < o_.max_work_per_client;
    if (!has_turn || !(is_probe ? probe_pace_ : pace_).Take(c.client, now)) {
      c.is_paused = true;
      c.deadline = Clock::time_point::max();
      SetInterest(c, EPOLLET);  // a client's end is told once
      return true;
    }
    c.is_continue_sent = false;
    c.close = frame.close || is_draining_;
    http::Job job{c.id, {}, c.close, now, is_probe, std::exchange(c.is_cut, false)};
    if (frame.total == c.in.size()) {
      job.request = std::move(c.in);
      c.in = {};
    } else {
      job.request = c.in.substr(0, frame.total);
      c.in.erase(0, frame.total);
    }
    if (workers_.Submit(job)) {
      connections_.BeginWork(c);
      c.deadline = Clock::time_point::max();
      SetInterest(c, EPOLLET);
      return true;
    }
    connections_.request_bytes -= frame.total;
    Refuse(c, 503, "too many requests are waiting", c.close, now);
    return true;
  }

  // Connections whose clients may go on.
  void Resume(Clock::time_point now) {
    if (o_.requests_per_s <= 0 && o_.max_work_per_client == 0) return;
    for (const uint64_t id : connections_.PausedInTurn()) {
      Connection* const c = connections_.Find(id);
      if (c == nullptr) continue;  // displaced by one before it
      c->is_paused = false;
      c->deadline = now + o_.request_timeout;
      if (Read(*c, now)) Write(*c, now);
    }
  }

  void Refuse(Connection& c, int status, const char* reason, bool close, Clock::time_point now) {
    CountRefusal(status == 503 ? "overload" : "request");
    if (close) {
      connections_.request_bytes -= c.in.size();
      c.in = {};
    }
    StartReply(c, http::ErrorReply(status, reason, close), close, now);
  }

  void StartReply(Connection& c, std::string reply, bool close, Clock::time_point now) {
    c.out = std::move(reply);
    c.written = 0;
    c.close = close || is_draining_;
    connections_.EndWork(c, Connection::State::kWriting);
    c.since = now;
    c.deadline = now + o_.reply_timeout;
    connections_.reply_bytes += c.out.size();
    while (connections_.reply_bytes > o_.max_unread_bytes && Displace(connections_.WriterOfMost(c))) {
    }
  }

  void Write(Connection& c, Clock::time_point now) {
    do {  // once for each pipelined request that is refused at once: a loop, because there can be hundreds
      while (c.written < c.out.size()) {
        size_t sent = 0;
        const Step step = c.Send(std::string_view(c.out).substr(c.written), sent);
        if (step == Step::kEnd) return connections_.Close(c);
        if (step == Step::kWait) return SetInterest(c, EPOLLOUT);
        c.written += sent;
      }
      if (c.close) {
        c.ShutdownWrites();
        return connections_.Close(c);
      }
      connections_.reply_bytes -= c.out.size();
      c.out = {};
      ++c.answered;
      c.state = Connection::State::kReading;
      c.since = now;
      c.deadline = now + (c.in.empty() ? o_.idle_timeout : o_.request_timeout);
    } while (Read(c, now));
  }

  void DeliverReplies(Clock::time_point now) {
    size_t freed_bytes = 0;
    std::deque<http::FinishedJob> finished = workers_.TakeFinished(freed_bytes);
    connections_.request_bytes -= freed_bytes;
    for (http::FinishedJob& f : finished) {
      Connection* const c = connections_.Find(f.id);
      if (c == nullptr) continue;
      StartReply(*c, std::move(f.reply), f.close, now);
      Write(*c, now);
    }
  }

  void SetInterest(Connection& c, uint32_t events) {
    if (c.events == events) return;
    epoll_event e{};
    e.events = events;
    e.data.u64 = c.id;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, c.fd, &e);
    c.events = events;
  }

  void CloseExpired(Clock::time_point now) {
    for (const uint64_t id : connections_.IdsOf([now](const Connection& c) { return c.deadline < now; })) {
      Connection& c = connections_.At(id);
      if (!c.IsIdle()) CountRefusal("deadline");
      connections_.Close(c);
    }
  }

  void CloseIdle() {
    for (const uint64_t id : connections_.IdsOf([](const Connection& c) { return c.IsIdle(); }))
      connections_.Close(connections_.At(id));
  }

  const HttpOptions o_;
  http::WorkerPool workers_;
  http::ClientPace pace_, probe_pace_;
  int listener_ = -1, epoll_ = -1, wake_ = -1;
  uint16_t port_ = 0;
  std::thread loop_;
  std::atomic<bool> is_draining_ = false;
  std::atomic<Clock::rep> drain_until_ = 0;
  http::Connections connections_;  // of the loop's thread
};

HttpServer::HttpServer(const HttpOptions& options) : impl_(std::make_unique<Impl>(options)) {}
HttpServer::~HttpServer() = default;

void HttpServer::Get(const std::string& path, HttpHandler handler) { impl_->dispatch.Get(path, std::move(handler)); }
void HttpServer::Post(const std::string& path, HttpHandler handler) { impl_->dispatch.Post(path, std::move(handler)); }
std::string HttpServer::Start() { return impl_->Start(); }
uint16_t HttpServer::port() const { return impl_->port(); }
size_t HttpServer::connections() const { return impl_->connections(); }
void HttpServer::Drain(std::chrono::milliseconds grace) { impl_->Stop(grace); }

}  // namespace sluice
