// Sockets, pages, folders and processes around Node: binds a socket in each allocation's folder, accepts, reads frames,
// sends them, watches that the processes live, and keeps the folders and the node's books equal. One thread (the
// loop's).
#ifndef SLUICE_AGENT_SERVER_H_
#define SLUICE_AGENT_SERVER_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/event_loop.h"
#include "agent/node.h"

namespace sluice::agent {

class Server : public Port {
 public:
  Server(EventLoop* loop, const std::string& alloc_dir);
  ~Server() override;
  void Attach(Node* node) { node_ = node; }

  // Makes and watches the folder, takes up what is in it. False with a sentence.
  bool Start(std::string* error);
  // Compares the folder with the books; called on changes, and now and then.
  void Scan();
  // Ends the folders of `sluice run`s that ended while no agent ran. After the time in which processes return.
  void DropOrphans();

  // A folder with allocation.json, served on return.
  bool Create(const AllocationSpec& spec, std::string* directory, std::string* error);
  void Release(const std::string& id);  // of Create(): the folder goes
  // Writes the live settings beside the allocation, so that they survive the agent.
  bool SaveLive(const std::string& id, const std::map<std::string, std::string>& live, std::string* error);
  std::string Directory(const std::string& id) const { return alloc_dir_ + "/" + id; }
  // Sends the budgets that are due (Node::Settle) and books what attaching has cost those who got their first one.
  void Settle();
  const AttachTimes& attach_times() const { return attach_times_; }
  bool found_allocations() const { return !places_.empty(); }

  void Send(SessionId session, const sluice_frame& frame) override;
  void Close(SessionId session) override;

 private:
  struct Place {  // one allocation's folder
    int listener = -1;
    int64_t mtime_ns = 0;
    ino_t inode = 0;
    ino_t socket = 0;  // under its name in the folder, while nobody has removed it
    std::string said;  // the last complaint, said once
  };
  struct Connection {
    int fd = -1, pidfd = -1, page_fd = -1;
    sluice_page* page = nullptr;
    // What the socket could not take. At most one BUDGET and one token frame per GPU wait: a newer replaces an older,
    // so that a client that never reads costs a bounded few frames.
    std::deque<sluice_frame> waiting;
    bool blocked = false;    // the socket took no more: it is polled for room
    bool closing = false;    // after the last waiting frame
    bool attached = false;   // had its first budget
    uint64_t attach_ns = 0;  // of processor time, so far
  };

  bool Serve(const std::string& id, Place* place, std::string* error);
  bool Listen(const std::string& id, Place* place, std::string* error);
  bool InPlace(const std::string& id, const Place& place) const;
  void Unserve(const std::string& id);
  void Accept(const std::string& id);
  void Readable(SessionId session, uint32_t events);
  bool TrySend(Connection& c, const sluice_frame& frame);
  void SendWaiting(Connection& c);
  void Flush(SessionId session);
  void SettleSoon();
  void BookAttached(uint64_t plan_ns);
  void Destroy(SessionId session);
  void Watch(const std::string& folder);
  std::map<std::string, std::string> LoadLive(const std::string& id) const;

  EventLoop* const loop_;
  const std::string alloc_dir_;
  Node* node_ = nullptr;
  int inotify_ = -1;
  int spare_fd_ = -1;  // given up for a moment to turn a connection away when descriptors run out
  bool settle_posted_ = false, hurry_planned_ = false;
  uint64_t paid_until_ns_ = 0;  // for the plans so far; no further one before then
  SessionId next_session_ = 1;
  std::vector<SessionId> fresh_;  // had their first budget, and are not booked yet
  uint64_t budgets_sent_ = 0;
  AttachTimes attach_times_;
  std::string creating_;                // its folder is ours, and new
  std::map<std::string, int> orphans_;  // found at the start: who asked for them, as a pidfd; -1: has ended
  bool drop_orphans_ = false;
  std::map<std::string, Place> places_;
  std::map<SessionId, Connection> connections_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_SERVER_H_
