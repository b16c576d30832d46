// fork() copies the socket, which close-on-exec does not cover, and the shared page. The child gives both up at once:
// the agent must see the parent's end when the parent exits, and the child must not write into the parent's counters.
#include "client/agent_client.h"
#include "client/internals.h"

namespace sluice::client {
namespace {

// All clients of this process, with their next_. The mutex is taken before any client's own.
Mutex g_list_mutex;
AgentClient* g_list SLUICE_GUARDED_BY(g_list_mutex) = nullptr;
bool g_fork_handlers SLUICE_GUARDED_BY(g_list_mutex) = false;

}  // namespace

void AgentClient::BeforeFork() {
  g_list_mutex.Lock();
  for (AgentClient* c = g_list; c != nullptr; c = c->next_) c->mutex_.Lock();
}

void AgentClient::AfterForkInParent() {
  for (AgentClient* c = g_list; c != nullptr; c = c->next_) c->mutex_.Unlock();
  g_list_mutex.Unlock();
}

void AgentClient::AfterForkInChild() {
  for (AgentClient* c = g_list; c != nullptr; c = c->next_) {
    c->socket_.Close();
    c->running_ = c->served_ = false;
    c->state_.store(State::kStopped);
    if (c->page_ != nullptr && MapPage(c->page_, -1) != nullptr) InitPage(c->page_);
    c->EndLeases();
    c->mutex_.Unlock();
  }
  g_list_mutex.Unlock();
}

void AgentClient::Register(AgentClient* client) {
  MutexLock lock(g_list_mutex);
  if (!g_fork_handlers) g_fork_handlers = pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild) == 0;
  client->next_ = g_list;
  g_list = client;
}

void AgentClient::Unregister(AgentClient* client) {
  MutexLock lock(g_list_mutex);
  for (AgentClient** p = &g_list; *p != nullptr; p = &(*p)->next_) {
    if (*p != client) continue;
    *p = client->next_;
    return;
  }
}

}  // namespace sluice::client
