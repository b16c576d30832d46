// All connections of a server, and which of them is closed for another. Internal to common/http; for the loop's thread
// alone.
#ifndef SLUICE_COMMON_HTTP_CONNECTIONS_H_
#define SLUICE_COMMON_HTTP_CONNECTIONS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "common/http/http_connection.h"

namespace sluice::http {

class Connections {
 public:
  using Clock = std::chrono::steady_clock;

  // The first id of a connection; lower ones are free for other events.
  static constexpr uint64_t kFirstId = 2;

  // Takes over the accepted socket `fd`.
  Connection& Add(int fd, SSL_CTX* tls);
  void Close(Connection& c);
  Connection* Find(uint64_t id);  // nullptr: it is closed
  Connection& At(uint64_t id) { return all_.at(id); }
  bool empty() const { return all_.empty(); }
  size_t size() const { return count_; }  // any thread
  size_t CountOf(const ClientAddress& client) const;
  size_t WorkOf(const ClientAddress& client) const;  // its requests that are being answered
  // The state kWorking, and its end.
  void BeginWork(Connection& c);
  void EndWork(Connection& c, Connection::State next);

  // The one to close for a newcomer, of `client`: the oldest that waits for it (a handshake, a request, a reader), then
  // the oldest that is paused, then one that just came. None whose request is being answered.
  Connection* DisplaceableOf(const ClientAddress& client, Clock::time_point now);
  // The same, of the client that has most connections, so that one client's crowd displaces no other client.
  Connection* Displaceable(Clock::time_point now);
  // Where there are too many bytes, the client with most of them loses a connection, so that one client's bytes close
  // no other's. The oldest of its connections that are still sending a request; of the client of `newcomer` itself, one
  // that is older than `newcomer`. nullptr: that client has no other.
  Connection* SenderOfMost(const Connection& newcomer);
  // The oldest connection other than `newcomer` of the client with most bytes of replies that are not read.
  Connection* WriterOfMost(const Connection& newcomer);

  // Of the chosen ones, which may then be closed one by one.
  template <typename Chosen>
  std::vector<uint64_t> IdsOf(Chosen chosen) const {
    std::vector<uint64_t> out;
    for (const auto& [id, c] : all_) {
      if (chosen(c)) out.push_back(id);
    }
    return out;
  }
  // Of those that their client's pace or limit of work holds up, in their turn: a connection's first request before
  // another's hundredth.
  std::vector<uint64_t> PausedInTurn() const;

  size_t request_bytes = 0;  // received, or being answered
  size_t reply_bytes = 0;    // not read yet

 private:
  template <typename Bytes, typename Chosen>
  Connection* OldestOfMost(Bytes bytes, Chosen chosen);
  template <typename Rank>
  Connection* LowestOf(Rank rank, Clock::time_point now);

  std::unordered_map<uint64_t, Connection> all_;
  struct Client {
    size_t connections = 0, working = 0;
  };
  std::map<ClientAddress, Client> clients_;  // those with a connection
  uint64_t next_id_ = kFirstId;
  std::atomic<size_t> count_ = 0;
};

}  // namespace sluice::http

#endif  // SLUICE_COMMON_HTTP_CONNECTIONS_H_
