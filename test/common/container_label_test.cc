// SELinux labels of folders, files and sockets. Attributes can be set without SELinux too, by root.
#include "common/selinux/container_label.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace sluice {
namespace {

TEST_CASE("folders, files and sockets get the label; a link's target does not") {
  char name[] = "/tmp/label-XXXXXX";
  REQUIRE(mkdtemp(name) != nullptr);
  const std::string dir = name;
  const std::string label = "system_u:object_r:container_file_t:s0";
  std::string error;
  if (!SetContainerLabel(dir, label, &error)) {
    std::filesystem::remove_all(dir);
    SKIP("this user may not set security.selinux: " + error);
  }
  std::ofstream(dir + "/file") << "x";
  std::ofstream(dir + "/other") << "x";
  std::filesystem::create_symlink(dir + "/other", dir + "/link");
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  REQUIRE(fd >= 0);
  sockaddr_un address{AF_UNIX, {}};
  (dir + "/socket").copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  for (const char* entry : {"/file", "/socket", "/link"}) CHECK(SetContainerLabel(dir + entry, label, &error));
  CHECK(LabelOf(dir) == label);
  CHECK(LabelOf(dir + "/file") == label);
  CHECK(LabelOf(dir + "/socket") == label);
  CHECK(LabelOf(dir + "/other").empty());
  CHECK(SetContainerLabel(dir + "/missing", "", &error));
  CHECK_FALSE(SetContainerLabel(dir + "/missing", label, &error));
  CHECK(error.find(dir + "/missing: No such file or directory; accepted: ") != std::string::npos);
  close(fd);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace sluice
