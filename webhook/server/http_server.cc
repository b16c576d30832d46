#include "webhook/server/http_server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "webhook/server/http_connection.h"
#include "webhook/server/http_dispatch.h"
#include "webhook/server/http_frame.h"

namespace sluice::webhook {
namespace {

using Clock = std::chrono::steady_clock;

struct Job {
  uint64_t id;
  std::string request;
  bool close;
  Clock::time_point since;
};

struct Done {
  uint64_t id;
  std::string reply;
  bool close;
};

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(const HttpOptions& options) : dispatch(options.idle), o_(options) {}
  ~Impl() { Stop(std::chrono::milliseconds(0)); }

  HttpDispatch dispatch;

  std::string Start() {
    if (std::string error = Listen(); !error.empty()) return error;
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    Watch(listener_, kListener);
    Watch(wake_, kWake);
    loop_ = std::thread([this] { Loop(); });
    for (int i = 0; i < o_.workers; ++i) workers_.emplace_back([this] { Work(); });
    return {};
  }

  void Stop(std::chrono::milliseconds grace) {
    if (!loop_.joinable()) return;
    drain_until_ = (Clock::now() + grace).time_since_epoch().count();
    draining_ = true;
    Wake();
    loop_.join();
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& t : workers_) t.join();
    workers_.clear();
    connections_.clear();
    for (int* fd : {&listener_, &epoll_, &wake_}) {
      if (*fd >= 0) ::close(*fd);
      *fd = -1;
    }
  }

  uint16_t port() const { return port_; }
  size_t connections() const { return count_; }

 private:
  static constexpr uint64_t kListener = 0, kWake = 1, kFirst = 2;

  std::string Listen() {
    addrinfo hints{};
    hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const std::string where = o_.address + ":" + std::to_string(o_.port);
    if (getaddrinfo(o_.address.c_str(), std::to_string(o_.port).c_str(), &hints, &found) != 0) {
      return where + ": this is no numeric address; accepted: as 0.0.0.0:8443 or [::]:8443";
    }
    listener_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    const bool good = bind(listener_, found->ai_addr, found->ai_addrlen) == 0 && listen(listener_, 1024) == 0;
    const std::string why = std::strerror(errno);
    freeaddrinfo(found);
    if (!good) return where + ": cannot listen: " + why;
    sockaddr_storage bound{};
    socklen_t size = sizeof(bound);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size);
    port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                              : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
    return {};
  }

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

  void Refused(const char* reason) const {
    if (o_.on_refused) o_.on_refused(reason);
  }

  // ---- the moving thread

  void Loop() {
    epoll_event events[64];
    auto next_scan = Clock::now();
    bool closed_listener = false;
    while (true) {
      const int n = epoll_wait(epoll_, events, 64, 50);
      const auto now = Clock::now();
      for (int i = 0; i < n; ++i) {
        const uint64_t id = events[i].data.u64;
        if (id == kListener) {
          if (!draining_) Accept(now);
        } else if (id == kWake) {
          uint64_t count = 0;
          (void)!read(wake_, &count, sizeof(count));
        } else if (const auto it = connections_.find(id); it != connections_.end()) {
          Move(it->second, now);
        }
      }
      Finish(now);
      if (draining_) {
        if (!closed_listener) {
          epoll_ctl(epoll_, EPOLL_CTL_DEL, listener_, nullptr);
          ::close(listener_);
          listener_ = -1;
          closed_listener = true;
        }
        CloseIdle();
        if (connections_.empty() || now.time_since_epoch().count() >= drain_until_) return;
      }
      if (now >= next_scan) {
        Expire(now);
        next_scan = now + std::chrono::milliseconds(100);
      }
    }
  }

  void Accept(Clock::time_point now) {
    while (true) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        // No descriptor is left: the listener would report this connection again and again.
        if ((errno == EMFILE || errno == ENFILE) && MakeRoom()) continue;
        return;
      }
      if (connections_.size() >= o_.connections && !MakeRoom()) {
        ::close(fd);
        Refused("connections");
        continue;
      }
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      Connection& c = connections_[next_id_];
      c.id = next_id_++;
      c.Take(fd, o_.tls);
      c.since = now;
      c.deadline = now + o_.handshake;
      Watch(fd, c.id);
      c.events = EPOLLIN;
      count_ = connections_.size();
    }
  }

  // Those who keep the server waiting go first; one that is being answered never goes.
  bool MakeRoom() {
    Connection* oldest = nullptr;
    for (auto& [id, c] : connections_) {
      if (c.state == Connection::State::kWorking || c.state == Connection::State::kWriting) continue;
      if (oldest == nullptr || c.since < oldest->since) oldest = &c;
    }
    if (oldest == nullptr) return false;
    Refused("room");
    Close(*oldest);
    return true;
  }

  // The same for memory: whoever has been sending longest without coming to an end goes before a newcomer is refused.
  bool PushOut(const Connection& newcomer) {
    Connection* oldest = nullptr;
    for (auto& [id, c] : connections_) {
      if (c.state != Connection::State::kReading || c.in.empty() || c.id == newcomer.id) continue;
      if (c.since < newcomer.since && (oldest == nullptr || c.since < oldest->since)) oldest = &c;
    }
    if (oldest == nullptr) return false;
    Refused("room");
    Close(*oldest);
    return true;
  }

  void Move(Connection& c, Clock::time_point now) {
    if (c.state == Connection::State::kHandshake && !Handshake(c, now)) return;
    if (c.state == Connection::State::kReading && !Read(c, now)) return;
    if (c.state == Connection::State::kWriting) Write(c, now);
  }

  // False: no more can be done now (or the connection is gone).
  bool Handshake(Connection& c, Clock::time_point now) {
    uint32_t interest = 0;
    switch (c.Handshake(interest)) {
      case Step::kProgress:
        c.state = Connection::State::kReading;
        c.since = now;
        c.deadline = now + o_.idle;
        return true;
      case Step::kWait:
        Interest(c, interest);
        return false;
      case Step::kEnd:
        break;
    }
    Refused("handshake");
    Close(c);
    return false;
  }

  // Reads until a request is whole. False: wait, or gone.
  bool Read(Connection& c, Clock::time_point now) {
    char chunk[16384];
    while (true) {
      if (Framed(c, now)) return c.state == Connection::State::kWriting;
      size_t got = 0;
      const Step step = c.Receive(chunk, sizeof(chunk), got);
      if (step == Step::kWait) {
        Interest(c, EPOLLIN);
        return false;
      }
      if (step == Step::kEnd) {
        Close(c);
        return false;
      }
      if (c.in.empty()) {
        c.since = now;
        c.deadline = now + o_.request;
      }
      while (buffered_ + got > o_.buffered_bytes && PushOut(c)) {
      }
      if (buffered_ + got > o_.buffered_bytes) {
        Refuse(c, 503, "too much is being received at once", true, now);
        return true;
      }
      c.in.append(chunk, got);
      buffered_ += got;
    }
  }

  // Looks for a whole request in what was read. True: the connection left the state kReading.
  bool Framed(Connection& c, Clock::time_point now) {
    if (c.in.empty()) return false;
    const Frame frame = ReadFrame(c.in, {o_.header_bytes, o_.body_bytes});
    if (frame.state == Frame::State::kRefused) {
      Refuse(c, frame.status, frame.reason, true, now);
      return true;
    }
    if (frame.state == Frame::State::kIncomplete) {
      if (frame.wants_continue && !c.continued) {
        c.continued = true;
        size_t sent = 0;  // 25 bytes into an empty socket buffer: it takes them, or the client goes on by itself
        c.Send("HTTP/1.1 100 Continue\r\n\r\n", sent);
      }
      if (frame.total > c.in.capacity()) c.in.reserve(frame.total);
      return false;
    }
    c.continued = false;
    c.close = frame.close || draining_;
    Job job{c.id, {}, c.close, now};
    if (frame.total == c.in.size()) {
      job.request = std::move(c.in);
      c.in = {};
    } else {
      job.request = c.in.substr(0, frame.total);
      c.in.erase(0, frame.total);
    }
    {
      const std::lock_guard lock(mutex_);
      if (jobs_.size() < o_.queue) {
        c.state = Connection::State::kWorking;
        c.deadline = Clock::time_point::max();
        jobs_.push_back(std::move(job));
      }
    }
    if (c.state == Connection::State::kWorking) {
      work_.notify_one();
      Interest(c, 0);
      return true;
    }
    buffered_ -= frame.total;
    Refuse(c, 503, "too many requests are waiting", c.close, now);
    return true;
  }

  void Refuse(Connection& c, int status, const char* reason, bool close, Clock::time_point now) {
    Refused(status == 503 ? "overload" : "request");
    if (close) {
      buffered_ -= c.in.size();
      c.in = {};
    }
    Answer(c, ErrorReply(status, reason, close), close, now);
  }

  void Answer(Connection& c, std::string reply, bool close, Clock::time_point now) {
    c.out = std::move(reply);
    c.written = 0;
    c.close = close || draining_;
    c.state = Connection::State::kWriting;
    c.deadline = now + o_.reply;
  }

  void Write(Connection& c, Clock::time_point now) {
    do {  // again for each request that was sent ahead and is refused at once: a loop, since there may be hundreds
      while (c.written < c.out.size()) {
        size_t sent = 0;
        const Step step = c.Send(std::string_view(c.out).substr(c.written), sent);
        if (step == Step::kEnd) return Close(c);
        if (step == Step::kWait) return Interest(c, EPOLLOUT);
        c.written += sent;
      }
      if (c.close) {
        c.SayEnd();
        return Close(c);
      }
      c.out = {};
      c.state = Connection::State::kReading;
      c.since = now;
      c.deadline = now + (c.in.empty() ? o_.idle : o_.request);
    } while (Read(c, now));
  }

  // What the workers have finished.
  void Finish(Clock::time_point now) {
    std::deque<Done> done;
    {
      const std::lock_guard lock(mutex_);
      done.swap(done_);
      buffered_ -= freed_;
      freed_ = 0;
    }
    for (Done& d : done) {
      const auto it = connections_.find(d.id);
      if (it == connections_.end()) continue;
      Answer(it->second, std::move(d.reply), d.close, now);
      Write(it->second, now);
    }
  }

  void Interest(Connection& c, uint32_t events) {
    if (c.events == events) return;
    epoll_event e{};
    e.events = events;
    e.data.u64 = c.id;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, c.fd, &e);
    c.events = events;
  }

  void Expire(Clock::time_point now) {
    std::vector<uint64_t> late;
    for (const auto& [id, c] : connections_) {
      if (c.deadline < now) late.push_back(id);
    }
    for (const uint64_t id : late) {
      Connection& c = connections_.at(id);
      if (c.state != Connection::State::kReading || !c.in.empty()) Refused("deadline");
      Close(c);
    }
  }

  void CloseIdle() {
    std::vector<uint64_t> idle;
    for (const auto& [id, c] : connections_) {
      if (c.state == Connection::State::kReading && c.in.empty()) idle.push_back(id);
    }
    for (const uint64_t id : idle) Close(connections_.at(id));
  }

  void Close(Connection& c) {
    const uint64_t id = c.id;
    buffered_ -= c.in.size();
    connections_.erase(id);
    count_ = connections_.size();
  }

  // ---- the workers

  void Work() {
    while (true) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        work_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      Done done{job.id, {}, job.close};
      if (Clock::now() - job.since > o_.waiting) {
        done.reply = ErrorReply(503, "the request waited too long", job.close);
        Refused("waited");
      } else {
        done.reply = dispatch.Handle(job.request, job.close, done.close);
      }
      {
        const std::lock_guard lock(mutex_);
        done_.push_back(std::move(done));
        freed_ += job.request.size();
      }
      Wake();
    }
  }

  HttpOptions o_;
  int listener_ = -1, epoll_ = -1, wake_ = -1;
  uint16_t port_ = 0;
  std::thread loop_;
  std::vector<std::thread> workers_;
  std::atomic<bool> draining_ = false;
  std::atomic<Clock::rep> drain_until_ = 0;
  std::atomic<size_t> count_ = 0;

  // The moving thread's own.
  std::unordered_map<uint64_t, Connection> connections_;
  uint64_t next_id_ = kFirst;
  size_t buffered_ = 0;  // bytes of requests, received or in work

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Job> jobs_;
  std::deque<Done> done_;
  size_t freed_ = 0;  // bytes that the workers are done with
  bool stopping_ = false;
};

HttpServer::HttpServer(const HttpOptions& options) : impl_(std::make_unique<Impl>(options)) {}
HttpServer::~HttpServer() = default;

void HttpServer::Get(const std::string& path, HttpHandler handler) { impl_->dispatch.Get(path, std::move(handler)); }
void HttpServer::Post(const std::string& path, HttpHandler handler) { impl_->dispatch.Post(path, std::move(handler)); }
std::string HttpServer::Start() { return impl_->Start(); }
uint16_t HttpServer::port() const { return impl_->port(); }
size_t HttpServer::connections() const { return impl_->connections(); }
void HttpServer::Drain(std::chrono::milliseconds grace) { impl_->Stop(grace); }

}  // namespace sluice::webhook
