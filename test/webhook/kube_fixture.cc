#include "kube_fixture.h"

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace sluice::kube::test {

std::string Folder() {
  const char* const folder = std::getenv("SLUICE_APISERVER");
  REQUIRE(folder != nullptr);
  return folder;
}

ClientConfig ByCertificate() {
  const char* const file = std::getenv("KUBECONFIG");
  REQUIRE(file != nullptr);
  auto config = FromKubeconfig(file);
  REQUIRE(config.ok());
  return *config;
}

ClientConfig ByToken(const std::string& token_file) {
  ClientConfig c;
  c.server = ByCertificate().server;
  c.ca_file = Folder() + "/ca.crt";
  c.token_file = token_file;
  return c;
}

Json ConfigMap(const std::string& name) {
  return {{"apiVersion", "v1"}, {"kind", "ConfigMap"}, {"metadata", {{"name", name}, {"labels", {{"suite", "kube"}}}}}};
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  std::filesystem::rename(path + ".new", path);
}

bool Wait(const std::function<bool()>& condition, std::chrono::seconds limit) {
  for (const auto end = std::chrono::steady_clock::now() + limit; std::chrono::steady_clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

}  // namespace sluice::kube::test
