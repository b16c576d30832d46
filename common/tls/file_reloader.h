// Follows a certificate's file and a key's file.
#ifndef SLUICE_COMMON_TLS_FILE_RELOADER_H_
#define SLUICE_COMMON_TLS_FILE_RELOADER_H_

#include <chrono>
#include <string>

#include "common/tls/key_pair.h"

namespace sluice {

// Compares contents, so it notices a projected volume's symlink swap, a rename and a rewrite in place. For one thread.
class FileReloader {
 public:
  FileReloader(std::string certificate, std::string key, CertificateStore& store);
  enum class Result { kUnchanged, kLoaded, kInvalid };
  // Reads both files and stores a changed pair. An invalid pair, or an expired one while the current pair is valid,
  // changes nothing; the next call tries again. `message`: set once for each change or error.
  Result Poll(std::chrono::system_clock::time_point now, std::string& message);

 private:
  const std::string certificate_path_, key_path_;
  CertificateStore& store_;
  std::string certificate_, key_;  // the loaded contents
  std::string last_error_;
};

}  // namespace sluice

#endif  // SLUICE_COMMON_TLS_FILE_RELOADER_H_
