// Runs a function when the configuration file changes. Lives on the agent's loop.
#ifndef SLUICE_AGENT_CONFIG_WATCH_H_
#define SLUICE_AGENT_CONFIG_WATCH_H_

#include <functional>
#include <string>

#include "agent/event_loop.h"

namespace sluice::agent {

class ConfigWatch {
 public:
  ConfigWatch(EventLoop* loop, std::function<void()> changed) : loop_(loop), changed_(std::move(changed)) {}
  // False, with the reason in `error`: changes of the file will not be noticed.
  bool Start(const std::string& path, std::string* error);

 private:
  void OnEvents();

  EventLoop* const loop_;
  const std::function<void()> changed_;
  int inotify_ = -1;
  bool pending_ = false;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_CONFIG_WATCH_H_
