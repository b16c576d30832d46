// Certificate files that change, break or expire while a server runs.
#include "common/tls/file_reloader.h"

#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <fstream>

#include "common/tls/rotation.h"

namespace {

using namespace sluice;  // NOLINT(google-build-using-namespace): the library under test
using std::chrono::system_clock;

SecretData MakeCertificate(system_clock::time_point now = system_clock::now()) {
  RotationOptions options;
  options.names = {"localhost"};
  return Rotate({}, now, {}, options).data;
}

void Write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

}  // namespace

TEST_CASE("a truncated, mismatched, expired or removed pair changes nothing; a symlink swap loads a valid one") {
  std::string folder = (std::filesystem::temp_directory_path() / "sluice-tls-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const auto now = system_clock::now();
  const SecretData one = MakeCertificate(), two = MakeCertificate();
  CertificateStore store;
  FileReloader reloader(folder + "/..data/tls.crt", folder + "/..data/tls.key", store);
  std::string message;
  using Result = FileReloader::Result;
  CHECK(reloader.Poll(now, message) == Result::kInvalid);  // the files do not exist yet

  const auto place = [&](const std::string& version, const std::string& certificate, const std::string& key) {
    std::filesystem::create_directory(folder + "/" + version);
    Write(folder + "/" + version + "/tls.crt", certificate);
    Write(folder + "/" + version + "/tls.key", key);
    std::filesystem::create_symlink(version, folder + "/..tmp");
    std::filesystem::rename(folder + "/..tmp", folder + "/..data");  // as the kubelet does
  };
  place("1", one.at("tls.crt"), one.at("tls.key"));
  CHECK(reloader.Poll(now, message) == Result::kLoaded);
  CHECK(reloader.Poll(now, message) == Result::kUnchanged);
  const auto first = store.Current();
  place("2", two.at("tls.crt"), one.at("tls.key"));
  CHECK(reloader.Poll(now, message) == Result::kInvalid);
  CHECK(message.find("does not belong") != std::string::npos);
  place("3", two.at("tls.crt").substr(0, 200), two.at("tls.key"));
  CHECK(reloader.Poll(now, message) == Result::kInvalid);
  const SecretData old = MakeCertificate(now - std::chrono::hours(24 * 200));
  place("4", old.at("tls.crt"), old.at("tls.key"));
  CHECK(reloader.Poll(now, message) == Result::kInvalid);
  CHECK(message.find("expired") != std::string::npos);
  std::filesystem::remove(folder + "/..data");
  CHECK(reloader.Poll(now, message) == Result::kInvalid);
  CHECK(store.Current() == first);
  place("5", two.at("tls.crt"), two.at("tls.key"));
  CHECK(reloader.Poll(now, message) == Result::kLoaded);
  CHECK(store.Current() != first);
  std::filesystem::remove_all(folder);
}
