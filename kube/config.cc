#include "kube/config.h"

#include <openssl/evp.h>
#include <sys/mman.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "common/read_file.h"

namespace sluice::kube {
namespace {

constexpr char kServiceAccount[] = "/var/run/secrets/kubernetes.io/serviceaccount";

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// Holds inline keys in anonymous memory that has a path, so that they never touch a disk.
class MemoryFiles {
 public:
  ~MemoryFiles() {
    for (const int fd : fds_) close(fd);
  }
  std::string Put(std::string_view content) {
    const int fd = memfd_create("kube", MFD_CLOEXEC);
    if (fd < 0 || write(fd, content.data(), content.size()) != static_cast<ssize_t>(content.size())) return {};
    fds_.push_back(fd);
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd);
  }

 private:
  std::vector<int> fds_;
};

std::string Decode(const std::string& base64) {
  std::string out(base64.size() / 4 * 3 + 3, '\0');
  const int n = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                reinterpret_cast<const unsigned char*>(base64.data()), static_cast<int>(base64.size()));
  if (n < 0) return {};
  size_t size = static_cast<size_t>(n);
  if (base64.ends_with("==")) {
    size -= 2;
  } else if (base64.ends_with('=')) {
    size -= 1;
  }
  out.resize(size);
  return out;
}

YAML::Node Named(const YAML::Node& list, const std::string& name, const char* what) {
  for (const YAML::Node& entry : list) {
    if (entry["name"].as<std::string>("") == name) return entry[what];
  }
  return {};
}

}  // namespace

absl::StatusOr<ClientConfig> InCluster(const std::string& root) {
  const char* host = std::getenv("KUBERNETES_SERVICE_HOST");
  const char* port = std::getenv("KUBERNETES_SERVICE_PORT");
  const std::string folder = root + kServiceAccount;
  if (host == nullptr || port == nullptr || !std::filesystem::exists(folder + "/token")) {
    return absl::UnavailableError("not in a pod: KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT and " + folder +
                                  "/token are needed");
  }
  ClientConfig c;
  const bool v6 = std::string_view(host).find(':') != std::string_view::npos;
  c.server = std::string("https://") + (v6 ? "[" : "") + host + (v6 ? "]" : "") + ":" + port;
  c.ca_file = folder + "/ca.crt";
  c.token_file = folder + "/token";
  c.name_space = ReadAll(folder + "/namespace");
  return c;
}

absl::StatusOr<ClientConfig> FromKubeconfig(const std::string& path) {
  std::string error;
  const auto text = ReadWholeFile(path, error);
  if (!text) return absl::NotFoundError(error);
  try {  // yaml-cpp throws
    const YAML::Node root = YAML::Load(*text);
    const YAML::Node context = Named(root["contexts"], root["current-context"].as<std::string>(""), "context");
    if (!context) return absl::InvalidArgumentError(path + ": current-context names no context");
    const YAML::Node cluster = Named(root["clusters"], context["cluster"].as<std::string>(""), "cluster");
    const YAML::Node user = Named(root["users"], context["user"].as<std::string>(""), "user");
    if (!cluster || !user) return absl::InvalidArgumentError(path + ": the context's cluster or user is missing");
    const auto memory = std::make_shared<MemoryFiles>();
    const std::filesystem::path base = std::filesystem::path(path).parent_path();
    const auto file = [&](const YAML::Node& node, const std::string& key) -> std::string {
      if (node[key + "-data"]) return memory->Put(Decode(node[key + "-data"].as<std::string>()));
      if (!node[key]) return {};
      return (base / node[key].as<std::string>()).string();
    };
    ClientConfig c;
    c.server = cluster["server"].as<std::string>("");
    c.ca_file = file(cluster, "certificate-authority");
    c.cert_file = file(user, "client-certificate");
    c.key_file = file(user, "client-key");
    if (user["token"]) {
      c.token_file = memory->Put(user["token"].as<std::string>());
    } else if (user["tokenFile"]) {
      c.token_file = user["tokenFile"].as<std::string>();
    }
    c.name_space = context["namespace"].as<std::string>("default");
    c.kept = memory;
    if (c.server.empty()) return absl::InvalidArgumentError(path + ": the cluster has no server");
    return c;
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(path + ": " + e.what());
  }
}

}  // namespace sluice::kube
