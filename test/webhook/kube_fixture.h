// Access to the API server of apiserver.py, for the tests of kube/. It reads KUBECONFIG and SLUICE_APISERVER.
#ifndef SLUICE_TEST_WEBHOOK_KUBE_FIXTURE_H_
#define SLUICE_TEST_WEBHOOK_KUBE_FIXTURE_H_

#include <chrono>
#include <functional>
#include <string>

#include "kube/client.h"

namespace sluice::kube::test {

inline constexpr char kConfigMaps[] = "/api/v1/namespaces/default/configmaps";

// The folder of the API server's files.
std::string Folder();

ClientConfig ByCertificate();
ClientConfig ByToken(const std::string& token_file);

// A ConfigMap with the label suite=kube.
Json ConfigMap(const std::string& name);

// Replaces the file by a rename.
void Write(const std::string& path, const std::string& text);

// Whether the condition becomes true within `limit`.
bool Wait(const std::function<bool()>& condition, std::chrono::seconds limit = std::chrono::seconds(60));

}  // namespace sluice::kube::test

#endif  // SLUICE_TEST_WEBHOOK_KUBE_FIXTURE_H_
