#include "common/selinux/container_label.h"

#include <sys/xattr.h>

#include <cerrno>
#include <cstring>

#include "common/read_file.h"

namespace sluice {
namespace {

constexpr const char* kAttribute = "security.selinux";

}  // namespace

std::string ContainerLabel() {
  // selinuxfs is registered only if SELinux is on; /sys/fs/selinux is not mounted in every container.
  std::string ignored;
  const std::string known = ReadWholeFile("/proc/filesystems", ignored).value_or("");
  return known.find("\tselinuxfs\n") != std::string::npos ? "system_u:object_r:container_file_t:s0" : "";
}

bool SetContainerLabel(const std::string& path, const std::string& label, std::string* error) {
  // lsetxattr: never through a link that someone else has put there.
  if (label.empty() || lsetxattr(path.c_str(), kAttribute, label.c_str(), label.size() + 1, 0) == 0) return true;
  const int why = errno;
  *error = "label for containers (SELinux) " + path + ": " + std::strerror(why) +
           "; accepted: a pod that may relabel files (the chart's node.seLinuxType: spc_t)";
  return false;
}

std::string LabelOf(const std::string& path) {
  char value[512] = {};
  const ssize_t size = lgetxattr(path.c_str(), kAttribute, value, sizeof value - 1);
  return size > 0 ? value : "";
}

}  // namespace sluice
