// A hooked process without a GPU, for tests of the agent. It uses the real client library, follows commands on standard
// input and prints the agent's frames: `fake_hook SOCKET [WAIT_MS]`. Commands: see Command().
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include "client/agent_client.h"

namespace {

using sluice::client::AgentClient;

std::mutex g_print;

void Print(const std::string& line) {
  const std::lock_guard<std::mutex> lock(g_print);
  std::string text = line + "\n";
  (void)!write(STDOUT_FILENO, text.data(), text.size());
}

class Hook : public sluice::client::Observer {
 public:
  void OnAttached(const sluice_welcome& w) noexcept override { Print(std::string("welcome ") + w.allocation); }
  void OnBudget(const sluice_budget& b) noexcept override {
    std::ostringstream out;
    out << "budget " << b.uuid << " " << b.budget_bytes << " " << b.guaranteed_bytes << " " << b.limit_bytes << " "
        << b.host_bytes << " " << b.compute_request << " " << b.compute_limit << " " << int{b.memory_factor} << " "
        << int{b.prefetch} << " " << int{b.log_level} << " " << b.generation << " " << int{b.tokens};
    Follow(b);
    Print(out.str());
  }
  void OnGrant(const sluice_token& t) noexcept override {
    Print("grant " + std::to_string(t.id) + " " + std::to_string(t.quantum_ns));
  }
  void OnRevoke(const sluice_token& t) noexcept override { Print("revoke " + std::to_string(t.id)); }
  void OnLost() noexcept override { Print("lost"); }
  void OnRefused(const char* reason) noexcept override { Print(std::string("refused ") + reason); }

  // The last budget that it followed.
  sluice_budget Last() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_;
  }
  void FollowAgain() {
    const std::lock_guard<std::mutex> lock(mutex_);
    FollowLocked(last_);
  }
  void SetFollow(bool follow) {
    const std::lock_guard<std::mutex> lock(mutex_);
    follow_ = follow;
  }
  // The client's thread is not in the child: it must hold no lock there.
  pid_t Fork() {
    const std::scoped_lock lock(mutex_, g_print);
    return fork();
  }
  static void Store(uint64_t& to, uint64_t value) { __atomic_store_n(&to, value, __ATOMIC_RELAXED); }

  AgentClient* client = nullptr;

 private:
  void Follow(const sluice_budget& b) {
    const std::lock_guard<std::mutex> lock(mutex_);
    FollowLocked(b);
  }
  // Holds its live bytes as far as the budget allows.
  void FollowLocked(const sluice_budget& b) {
    sluice_gpu_slot* c = client->Slot(b.uuid);
    if (c == nullptr || !follow_) return;
    const uint64_t live = __atomic_load_n(&c->live_bytes, __ATOMIC_RELAXED);
    Store(c->budget_bytes, b.budget_bytes);
    Store(c->resident_bytes, live < b.budget_bytes ? live : b.budget_bytes);
    Store(c->generation, b.generation);
    last_ = b;
  }

  std::mutex mutex_;  // the client's thread and the commands
  bool follow_ = true;
  sluice_budget last_{};
};

//   live N            live bytes of the last GPU, and one launch
//   launch            one more launch
//   plain N           plain (unmanaged) bytes of the last GPU
//   touched N         bytes used within the last minute
//   newer N           driver functions that its table lacks
//   follow 0|1        whether it follows budgets
//   fork              a child that stays and does nothing
//   attach-child      a forked child that attaches by itself
//   notice, thrash-began, thrash-ended TEXT
//   request 0 BURST, release ID USED    a compute token
//   state, end
bool Command(const std::string& line, Hook& hook, AgentClient& client) {
  std::istringstream in(line);
  std::string word;
  in >> word;
  const sluice_budget last = hook.Last();
  sluice_gpu_slot* c = last.uuid[0] != '\0' ? client.Slot(last.uuid) : nullptr;
  if (word == "live" && c != nullptr) {
    uint64_t n = 0;
    in >> n;
    Hook::Store(c->live_bytes, n);
    Hook::Store(c->launches, c->launches + 1);
    hook.FollowAgain();
  } else if (word == "touched" && c != nullptr) {
    uint64_t n = 0;
    in >> n;
    Hook::Store(c->touched_bytes, n);
  } else if (word == "newer" && c != nullptr) {
    uint64_t n = 0;
    in >> n;
    Hook::Store(c->newer_entries, n);
  } else if (word == "launch" && c != nullptr) {
    Hook::Store(c->launches, c->launches + 1);
  } else if (word == "plain" && c != nullptr) {
    uint64_t n = 0;
    in >> n;
    Hook::Store(c->unmanaged_bytes, n);
  } else if (word == "follow") {
    bool follow = true;
    in >> follow;
    hook.SetFollow(follow);
  } else if (word == "fork") {
    const pid_t child = hook.Fork();
    if (child == 0) {
      close(STDOUT_FILENO);
      sleep(60);
      _exit(0);
    }
    Print("child " + std::to_string(child));
  } else if (word == "attach-child") {
    const pid_t child = hook.Fork();
    if (child == 0) {
      client.Start(3000);
      Print(std::string("child ") + (client.attached() ? "attached" : "not attached"));
      sleep(60);
      _exit(0);
    }
    Print("child " + std::to_string(child));
  } else if (word == "notice" || word == "thrash-began" || word == "thrash-ended") {
    std::string text;
    std::getline(in, text);
    client.SendNotice(word == "notice"         ? SLUICE_NOTICE_LIMIT_REACHED
                      : word == "thrash-began" ? SLUICE_NOTICE_THRASH_BEGAN
                                               : SLUICE_NOTICE_THRASH_ENDED,
                      text.c_str());
  } else if (word == "request" || word == "release") {
    sluice_token t{};
    std::memcpy(t.uuid, last.uuid, sizeof(t.uuid));
    in >> t.id >> t.used_ns;
    t.burst_ns = t.used_ns;
    word == "request" ? client.SendTokenRequest(t) : client.SendTokenRelease(t);
  } else if (word == "state") {
    Print("state " + std::to_string(static_cast<int>(client.state())));
  } else if (word == "end") {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  Hook hook;
  AgentClient client(argv[1], "0.0.0-fake", &hook);
  hook.client = &client;
  client.Start(argc > 2 ? std::stoi(argv[2]) : 3000);
  Print("started " + std::to_string(static_cast<int>(client.state())));
  std::string line;
  while (std::getline(std::cin, line) && Command(line, hook, client)) {
  }
  return 0;
}
