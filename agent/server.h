// The sockets, pages, folders and processes around Node. Binds a socket in each allocation's folder, accepts
// connections, receives and sends frames, watches for the ends of processes, and keeps the node's allocations equal to
// the folders. Used by the loop's thread only.
#ifndef SLUICE_AGENT_SERVER_H_
#define SLUICE_AGENT_SERVER_H_

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/event_loop.h"
#include "agent/fair_queue.h"
#include "agent/node.h"

namespace sluice::agent {

class Server : public Port {
 public:
  Server(EventLoop* loop, const std::string& alloc_dir);
  ~Server() override;
  void Attach(Node* node) { node_ = node; }

  // Makes and watches the folder of allocations, and serves those in it. False with a sentence.
  bool Start(std::string* error);
  // Compares the folder with the node's allocations. Called on changes, and periodically.
  void Scan();
  // Removes the folders of `sluice run`s that ended while no agent ran. Call it once processes had time to return.
  void DropOrphans();

  // Makes a folder with allocation.json. It is served on return.
  bool Create(const AllocationSpec& spec, std::string* directory, std::string* error);
  void Release(const std::string& id);  // removes a folder of Create()
  // Writes the live settings beside the allocation: they survive the agent.
  bool SaveLive(const std::string& id, const std::map<std::string, std::string>& live, std::string* error);
  std::string Directory(const std::string& id) const { return alloc_dir_ + "/" + id; }
  // Sends the budgets that are due (Node::Settle), and records the attach times of processes with a first budget.
  void Settle();
  const AttachTimes& attach_times() const { return attach_times_; }
  // Adds the queues' counts of delays to the allocations of `status`.
  void AddDelayed(NodeStatus* status) const;
  bool found_allocations() const { return !places_.empty(); }

  void Send(SessionId session, const sluice_frame& frame) override;
  void Close(SessionId session) override;
  void SendSoon() override;

 private:
  struct Place {  // one allocation's folder
    std::shared_ptr<FairQueue> queue;
    int listener = -1;
    int64_t mtime_ns = 0;
    ino_t inode = 0;
    ino_t socket = 0;        // as it was bound, to see that it was not replaced
    std::string logged;      // the last error: each is recorded once
    uint64_t failed_ns = 0;  // of the last attempt to listen; 0: it succeeded
  };
  struct Connection {
    std::shared_ptr<FairQueue> queue;  // of its allocation, whose folder may be gone
    int fd = -1, pidfd = -1, page_fd = -1;
    sluice_page* page = nullptr;
    // Frames that the socket could not take. At most one BUDGET and one token frame per GPU wait, since a newer frame
    // replaces an older one: a client that never reads costs a few frames.
    std::vector<sluice_frame> waiting;  // the first one first; without a block of memory until it is used
    bool blocked = false;               // the socket is full, and polled until it is writable
    bool starved = false;               // its page cannot be passed now: the user's descriptors in flight are used up
    bool closing = false;               // after the last waiting frame
    bool attached = false;              // had its first budget
    uint64_t attach_ns = 0;             // CPU time so far
  };

  bool Serve(const std::string& id, Place* place, std::string* error);
  bool Listen(const std::string& id, Place* place, std::string* error);
  bool HasSocket(const std::string& id, const Place& place) const;
  void StopListening(Place& place);
  void Unserve(const std::string& id);
  void Accept(const std::string& id);
  // Whether an allocation may hold one more connection: at most half of the descriptors that others leave.
  bool HasRoom(const FairQueue& queue) const;
  bool GivePage(SessionId session, Connection& c, const char* frame, size_t bytes);  // false: there is no memory
  void Hold(FairQueue& queue, int more);                                             // counts descriptors
  void Reject(const std::string& id, int fd, const std::string& reason);
  void Readable(SessionId session, uint32_t events);
  bool TrySend(Connection& c, const sluice_frame& frame);
  void WaitToSend(SessionId session, Connection& c);
  void SendWaiting(Connection& c);
  void Flush(SessionId session);
  void SettleSoon();
  void RecordAttached(uint64_t plan_ns);
  void Destroy(SessionId session);
  void Watch(const std::string& folder);
  std::map<std::string, std::string> LoadLive(const std::string& id) const;

  EventLoop* const loop_;
  const std::string alloc_dir_;
  Node* node_ = nullptr;
  int inotify_ = -1;
  size_t max_descriptors_ = 0, descriptors_ = 0;  // the limit; held by all connections
  int spare_fd_ = -1;                             // closed for a moment to refuse a connection when descriptors run out
  bool send_posted_ = false;
  uint64_t starved_reported_ns_ = 0;
  bool settle_posted_ = false, tick_planned_ = false;
  uint64_t next_plan_ns_ = 0;  // no plan before then
  SessionId next_session_ = 1;
  std::vector<SessionId> fresh_;  // had their first budget; their attach times are not recorded yet
  uint64_t budgets_sent_ = 0;
  AttachTimes attach_times_;
  std::string creating_;                // id of the folder that Create() is making
  std::map<std::string, int> orphans_;  // tied folders found at the start, with the owner's pidfd; -1: it ended
  bool drop_orphans_ = false;
  std::map<std::string, Place> places_;
  std::unordered_map<SessionId, Connection> connections_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_SERVER_H_
