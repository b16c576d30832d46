// Runs the built sluice-device-plugin as a child process, on a folder of the test and with a fake NVML.
#ifndef SLUICE_TEST_DEVICEPLUGIN_PLUGIN_PROCESS_H_
#define SLUICE_TEST_DEVICEPLUGIN_PLUGIN_PROCESS_H_

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "test/deviceplugin/cards_for_tests.h"

namespace sluice::deviceplugin {

class PluginProcess {
 public:
  // `root` holds everything: kubelet/device-plugins, alloc, lib, cdi, nvml (the fake's file), config.yaml, plugin.log.
  explicit PluginProcess(std::string root);
  ~PluginProcess();

  // YAML lines, besides the usual ones of other keys, which set every path below root.
  void Configure(const std::string& yaml);
  // Another program with the same files, and further arguments.
  void RunAs(std::string program, std::vector<std::string> arguments) {
    program_ = std::move(program);
    arguments_ = std::move(arguments);
  }
  // For a container runtime that reads only one folder.
  void UseCdiDir(const std::string& path) { cdi_dir_ = path; }
  // A variable of its environment, besides this process's own ones.
  void SetVariable(const std::string& name, const std::string& value) { variables_.push_back(name + "=" + value); }
  // `in_child` runs between fork and exec beside locks that other threads of this process held: async-signal-safe calls
  // alone (fork(2)). It must not allocate: AddressSanitizer's allocator would wait for ever.
  void Start(const std::function<void()>& in_child = {});
  int CheckConfig();  // runs --check-config; its exit status
  void Kill();        // SIGKILL
  int Terminate();    // SIGTERM; its exit status
  // Its exit status, or 128 + signal. After a minute it is killed, and stderr shows where its threads hang.
  int Wait();
  bool Running();
  pid_t pid() const { return pid_; }
  // Resident bytes of files that are mapped: its code, mostly.
  long ResidentFileKiB() const;

  // Replaces the fake NVML's file, atomically.
  void WriteCards(const std::string& lines);
  static std::string Cards(int count, const std::string& flag = "");

  std::string Log() const;
  std::string Path(const std::string& name) const { return root_ + "/" + name; }

 private:
  void Spawn(const std::vector<std::string>& arguments, const std::function<void()>& in_child);

  std::string root_, cdi_dir_ = Path("cdi");
  std::string program_;                 // empty: sluice-device-plugin
  std::vector<std::string> arguments_;  // of another program
  std::vector<std::string> variables_;  // NAME=VALUE
  pid_t pid_ = -1;
};

// Stands in for the node agent: binds agent.sock in one allocation's directory.
class FakeAgent {
 public:
  explicit FakeAgent(const std::string& run_dir);
  ~FakeAgent();
  FakeAgent(const FakeAgent&) = delete;
  FakeAgent& operator=(const FakeAgent&) = delete;

 private:
  int fd_;
};

// Does the same for every allocation below a folder, including later ones.
class FakeAgents {
 public:
  explicit FakeAgents(std::string alloc_dir);
  ~FakeAgents();

 private:
  const std::string alloc_dir_;
  std::map<std::string, std::unique_ptr<FakeAgent>> agents_;  // by directory; used by the thread only
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_TEST_DEVICEPLUGIN_PLUGIN_PROCESS_H_
