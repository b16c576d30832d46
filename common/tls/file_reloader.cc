#include "common/tls/file_reloader.h"

#include "common/read_file.h"

namespace sluice {

FileReloader::FileReloader(std::string certificate, std::string key, CertificateStore& store)
    : certificate_path_(std::move(certificate)), key_path_(std::move(key)), store_(store) {}

FileReloader::Result FileReloader::Poll(std::chrono::system_clock::time_point now, std::string& message) {
  const auto fail = [&](const std::string& error) {
    if (error != last_error_) message = error;
    last_error_ = error;
    return Result::kInvalid;
  };
  std::string error;
  std::string certificate = ReadReloadedFile(certificate_path_, error).value_or("");
  std::string key = ReadReloadedFile(key_path_, error).value_or("");
  if (!error.empty()) return fail(error);
  if (certificate.empty() || key.empty()) {
    return fail((certificate.empty() ? certificate_path_ : key_path_) + ": the file is empty");
  }
  if (certificate == certificate_ && key == key_) {
    last_error_.clear();
    return Result::kUnchanged;
  }
  auto pair = KeyPair::Parse(certificate, key, error);
  if (pair == nullptr) return fail(certificate_path_ + ", " + key_path_ + ": " + error);
  const auto current = store_.Current();
  if (pair->not_after() < now && current != nullptr && current->not_after() >= now) {
    return fail(certificate_path_ + ": this certificate has expired and is not loaded; the one in use is still valid");
  }
  store_.Set(std::move(pair));
  certificate_ = std::move(certificate);
  key_ = std::move(key);
  last_error_.clear();
  message = certificate_path_ + ": loaded";
  return Result::kLoaded;
}

}  // namespace sluice
