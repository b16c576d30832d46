#include "common/http/connections.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace sluice::http {
namespace {

using State = Connection::State;

// A request that came in the same packet as the handshake or right behind it is not read yet.
constexpr std::chrono::milliseconds kJustCame{100};

// Which is closed first: a low one.
int DisplacementRank(const Connection& c, Connections::Clock::time_point now) {
  if (c.is_paused) return 1;
  return now - c.since < kJustCame && c.state != State::kWriting ? 2 : 0;
}

}  // namespace

Connection& Connections::Add(int fd, SSL_CTX* tls) {
  Connection& c = all_[next_id_];
  c.id = next_id_++;
  c.Open(fd, tls);
  c.client = ClientOf(fd);
  ++clients_[c.client].connections;
  count_ = all_.size();
  return c;
}

void Connections::Close(Connection& c) {
  request_bytes -= c.in.size();
  reply_bytes -= c.out.size();
  const auto owner = clients_.find(c.client);
  if (c.state == State::kWorking) --owner->second.working;
  if (--owner->second.connections == 0) clients_.erase(owner);
  all_.erase(uint64_t{c.id});
  count_ = all_.size();
}

Connection* Connections::Find(uint64_t id) {
  const auto it = all_.find(id);
  return it != all_.end() ? &it->second : nullptr;
}

size_t Connections::CountOf(const ClientAddress& client) const {
  const auto it = clients_.find(client);
  return it != clients_.end() ? it->second.connections : 0;
}

size_t Connections::WorkOf(const ClientAddress& client) const {
  const auto it = clients_.find(client);
  return it != clients_.end() ? it->second.working : 0;
}

void Connections::BeginWork(Connection& c) {
  c.state = State::kWorking;
  ++clients_.at(c.client).working;
}

void Connections::EndWork(Connection& c, State next) {
  if (c.state == State::kWorking) --clients_.at(c.client).working;
  c.state = next;
}

// bytes(Connection): those that count; chosen(Connection): whether it may be closed. Clients without one do not count.
template <typename Bytes, typename Chosen>
Connection* Connections::OldestOfMost(Bytes bytes, Chosen chosen) {
  struct Candidate {
    size_t bytes = 0;
    Connection* oldest = nullptr;
  };
  std::map<ClientAddress, Candidate> candidates;
  for (auto& [id, c] : all_) {
    Candidate& of_client = candidates[c.client];
    of_client.bytes += bytes(c);
    if (chosen(c) && (of_client.oldest == nullptr || c.since < of_client.oldest->since)) of_client.oldest = &c;
  }
  const Candidate* most = nullptr;
  for (const auto& [client, candidate] : candidates) {
    if (candidate.oldest != nullptr && (most == nullptr || candidate.bytes > most->bytes)) most = &candidate;
  }
  return most != nullptr ? most->oldest : nullptr;
}

// `rank` is compared first; nullopt: the connection stays.
template <typename Rank>
Connection* Connections::LowestOf(Rank rank, Clock::time_point now) {
  Connection* lowest = nullptr;
  std::tuple<int64_t, int, Clock::time_point> least;
  for (auto& [id, c] : all_) {
    const std::optional<int64_t> first = c.state == State::kWorking ? std::nullopt : rank(c);
    if (!first) continue;
    const std::tuple key(*first, DisplacementRank(c, now), c.since);
    if (lowest != nullptr && key >= least) continue;
    lowest = &c;
    least = key;
  }
  return lowest;
}

Connection* Connections::DisplaceableOf(const ClientAddress& client, Clock::time_point now) {
  return LowestOf([&](const Connection& c) { return c.client == client ? std::optional<int64_t>(0) : std::nullopt; },
                  now);
}

Connection* Connections::Displaceable(Clock::time_point now) {
  return LowestOf([&](const Connection& c) { return std::optional(-static_cast<int64_t>(CountOf(c.client))); }, now);
}

Connection* Connections::SenderOfMost(const Connection& newcomer) {
  Connection* const found = OldestOfMost(
      [](const Connection& c) { return c.in.size(); },
      [&](const Connection& c) { return c.id == newcomer.id || (c.state == State::kReading && !c.in.empty()); });
  const bool is_older = found != nullptr && found->id != newcomer.id &&
                        (found->client != newcomer.client || found->since < newcomer.since);
  return is_older ? found : nullptr;
}

Connection* Connections::WriterOfMost(const Connection& newcomer) {
  return OldestOfMost([](const Connection& c) { return c.out.size(); },
                      [&](const Connection& c) { return c.state == State::kWriting && c.id != newcomer.id; });
}

std::vector<uint64_t> Connections::PausedInTurn() const {
  std::vector<uint64_t> out = IdsOf([](const Connection& c) { return c.is_paused; });
  std::ranges::sort(out, {}, [this](uint64_t id) {
    const Connection& c = all_.at(id);
    return std::pair(c.answered, c.since);
  });
  return out;
}

}  // namespace sluice::http
