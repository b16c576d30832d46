#include "agent/pseudonym.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace sluice::agent {
namespace {

constexpr size_t kKeyBytes = 32;
constexpr size_t kShownBytes = 6;

}  // namespace

std::string PseudonymKey(const std::string& path, std::string* error) {
  char key[kKeyBytes];
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  const bool read_whole = fd >= 0 && read(fd, key, sizeof(key)) == static_cast<ssize_t>(sizeof(key));
  if (fd >= 0) close(fd);
  if (read_whole) return {key, sizeof(key)};
  if (getrandom(key, sizeof(key), 0) != static_cast<ssize_t>(sizeof(key))) std::memset(key, 0, sizeof(key));
  unlink(path.c_str());  // a truncated one
  fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, key, sizeof(key)) != static_cast<ssize_t>(sizeof(key))) {
    *error = path + ": " + std::strerror(errno) + "; labels of allocations in metrics change with this agent";
  }
  if (fd >= 0) close(fd);
  return {key, sizeof(key)};
}

std::string Pseudonym(const std::string& key, const std::string& id) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(id.data()),
       id.size(), digest, nullptr);
  std::string out;
  for (size_t i = 0; i < kShownBytes; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[digest[i] >> 4];
    out += kDigits[digest[i] & 15];
  }
  return out;
}

void HideIds(const std::string& key, NodeStatus* status) {
  for (AllocationStatus& a : status->allocations) a.id = Pseudonym(key, a.id);
  for (ForeignProcess& f : status->foreign) {
    if (!f.allocation.empty()) f.allocation = Pseudonym(key, f.allocation);
  }
}

}  // namespace sluice::agent
