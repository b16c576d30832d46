#include "cli/kubectl.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/agent_connection.h"

namespace sluice::cli {
namespace {

// Reads both at once: a child that fills one pipe while the other is read would wait for ever.
void ReadBoth(int out, int error, Kubectl::Answer* answer) {
  pollfd fds[2] = {{out, POLLIN, 0}, {error, POLLIN, 0}};
  std::string* texts[2] = {&answer->out, &answer->error};
  for (int open = 2; open > 0;) {
    if (poll(fds, 2, -1) < 0 && errno != EINTR) break;
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      char buffer[16384];
      const ssize_t n = read(fds[i].fd, buffer, sizeof(buffer));
      if (n > 0) texts[i]->append(buffer, static_cast<size_t>(n));
      if (n == 0 || (n < 0 && errno != EINTR)) {
        fds[i].fd = -1;
        --open;
      }
    }
  }
}

}  // namespace

Kubectl::Answer Kubectl::Run(std::vector<std::string> arguments) const {
  Answer answer;
  std::vector<std::string> words = {"kubectl"};
  words.insert(words.end(), global_.begin(), global_.end());
  words.insert(words.end(), std::make_move_iterator(arguments.begin()), std::make_move_iterator(arguments.end()));
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  int out[2], error[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(error, O_CLOEXEC) != 0) Fail(1, std::string("pipe: ") + std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error[1], STDERR_FILENO);
  pid_t pid = 0;
  const int spawned = posix_spawnp(&pid, "kubectl", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(error[1]);
  if (spawned == 0) {
    ReadBoth(out[0], error[0], &answer);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    answer.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  } else {
    answer.status = 127;
    answer.error = std::string("kubectl: ") + std::strerror(spawned) + "\n";
  }
  close(out[0]);
  close(error[0]);
  return answer;
}

std::string Kubectl::Answer::Reason() const {
  std::istringstream lines(error);
  std::string line, first;
  while (std::getline(lines, line)) {
    if (first.empty()) first = line;
    // klog: E1122 20:26:09.151259 ...
    const bool log = line.size() > 5 && std::strchr("EWI", line[0]) != nullptr && line[5] == ' ' &&
                     std::all_of(&line[1], &line[5], [](unsigned char c) { return std::isdigit(c) != 0; });
    if (!log) return line;
  }
  return first;
}

nlohmann::json Kubectl::Get(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), "get");
  arguments.insert(arguments.end(), {"-o", "json"});
  const Answer answer = Run(std::move(arguments));
  if (!answer.ok()) Fail(1, answer.Reason());
  auto json = nlohmann::json::parse(answer.out, nullptr, false);
  if (!json.is_object()) Fail(1, "kubectl: its answer is not JSON");
  return json;
}

}  // namespace sluice::cli
