// fork() copies the socket, which close-on-exec does not cover, and the shared page. The child gives both up at once:
// the agent must see the parent's end when the parent exits, and the child must not write into the parent's counters.
#include "client/agent_client.h"
#include "client/internals.h"

namespace sluice::client {
namespace {

// All clients of this process. The mutex is taken before any client's own.
pthread_mutex_t g_list_mutex = PTHREAD_MUTEX_INITIALIZER;
AgentClient* g_list = nullptr;
bool g_fork_handlers = false;

}  // namespace

void AgentClient::BeforeFork() {
  pthread_mutex_lock(&g_list_mutex);
  for (AgentClient* c = g_list; c != nullptr; c = c->next_) pthread_mutex_lock(&c->mutex_);
}

void AgentClient::AfterForkInParent() {
  for (AgentClient* c = g_list; c != nullptr; c = c->next_) pthread_mutex_unlock(&c->mutex_);
  pthread_mutex_unlock(&g_list_mutex);
}

void AgentClient::AfterForkInChild() {
  for (AgentClient* c = g_list; c != nullptr; c = c->next_) {
    c->socket_.Close();
    c->running_ = c->served_ = false;
    c->state_.store(State::kStopped);
    if (c->page_ != nullptr && MapPage(c->page_, -1) != nullptr) InitPage(c->page_);
    c->EndLeases();
    pthread_mutex_unlock(&c->mutex_);
  }
  pthread_mutex_unlock(&g_list_mutex);
}

void AgentClient::Register(AgentClient* client) {
  Lock lock(g_list_mutex);
  if (!g_fork_handlers) g_fork_handlers = pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild) == 0;
  client->next_ = g_list;
  g_list = client;
}

void AgentClient::Unregister(AgentClient* client) {
  Lock lock(g_list_mutex);
  for (AgentClient** p = &g_list; *p != nullptr; p = &(*p)->next_) {
    if (*p != client) continue;
    *p = client->next_;
    return;
  }
}

}  // namespace sluice::client
