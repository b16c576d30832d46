// The shim in other images: musl, static, setuid, an older glibc. Also engines that cannot be loaded.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "sluice/names.h"
#include "sluice/wire.h"
#include "test/hook/run_program.h"

namespace fs = std::filesystem;
using sluice::test::Outcome;
using sluice::test::Run;

namespace {

const std::string kShim = SLUICE_SHIM_FILE;
const std::string kEngine = SLUICE_MARKING_ENGINE;
const std::string kDriver = SLUICE_FAKE_DRIVER;
const std::string kProbes = SLUICE_PROBES;

std::vector<std::string> Hooked(std::vector<std::string> more = {}, const std::string& engine = kEngine) {
  more.push_back("LD_PRELOAD=" + kShim);
  more.push_back("SLUICE_ENGINE=" + engine);
  return more;
}

// A folder of this test's own, readable by every user.
class Folder {
 public:
  Folder() {
    std::string pattern = "/tmp/sluice-hook-XXXXXX";
    path_ = mkdtemp(pattern.data());
    fs::permissions(path_, fs::perms(0755));
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

void CheckQuiet(const Outcome& outcome, const std::string& begins) {
  INFO("stdout: " << outcome.out << "stderr: " << outcome.err);
  CHECK(outcome.status == 0);
  CHECK(outcome.out.starts_with(begins));
  CHECK(outcome.err.empty());
}

// The same as without the shim, but for its mapping.
void CheckInert(const std::vector<std::string>& command, bool mapped) {
  auto plain = Run(command, {});
  REQUIRE(plain.status == 0);
  REQUIRE(plain.out.starts_with("threads 1 "));
  if (mapped) plain.out.replace(plain.out.find("shim 0"), 6, "shim 1");
  CheckQuiet(Run(command, Hooked()), plain.out);
}

Outcome Linked(const std::vector<std::string>& env) { return Run({kProbes + "/linked"}, env); }

}  // namespace

TEST_CASE("a musl program runs with the shim inert") {
#ifdef SLUICE_HAVE_MUSL
  CheckInert({kProbes + "/quiet_musl"}, true);
#else
  SKIP("musl-gcc was not found when this was configured");
#endif
}

TEST_CASE("static programs ignore the preload") {
  CheckInert({kProbes + "/quiet_static"}, false);
#ifdef SLUICE_HAVE_MUSL
  CheckInert({kProbes + "/quiet_musl_static"}, false);
#endif
}

TEST_CASE("a setuid program runs unhooked") {
  if (geteuid() != 0) SKIP("only root can make a setuid program");
  const Folder folder;
  const auto program = folder / "quiet";
  fs::copy_file(kProbes + "/quiet", program);
  REQUIRE(chmod(program.c_str(), 04755) == 0);
  CheckInert({"/usr/bin/setpriv", "--reuid=65534", "--clear-groups", program.string()}, false);
}

TEST_CASE("programs run hooked under an older glibc") {
  const std::string root = SLUICE_OLD_GLIBC;
  const auto fetched = Run({SLUICE_OLD_GLIBC_SCRIPT, root}, {});
  const auto loader = root + "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
  if (!fs::exists(loader)) SKIP("no older glibc in " << root << ": " << fetched.err);
  const auto libraries = root + "/lib/x86_64-linux-gnu:" + kDriver;
  const auto under = [&](std::vector<std::string> command, bool hooked) {
    command.insert(command.begin(), {loader, "--library-path", libraries});
    return Run(command, hooked ? Hooked() : std::vector<std::string>{});
  };
  CheckInert({loader, "--library-path", libraries, kProbes + "/quiet_2_17"}, true);
  CheckQuiet(under({root + "/bin/dash", "-c", "echo here"}, true), "here\n");
  const auto plain = under({kProbes + "/linked_2_17"}, false);
  REQUIRE(plain.status == 0);
  CheckQuiet(under({kProbes + "/linked_2_17"}, true), "100000 10");
  CheckQuiet(under({kProbes + "/opener_2_17", "libcuda.so.1", "2", "self"}, true), "100007\n");
  // libdl is a library of its own there, and may not be loaded at all.
  CheckQuiet(under({kProbes + "/opener_2_17", "libcuda.so.1", "2", "dlsym-of-dlsym"}, true), "100007\n");
}

TEST_CASE("an engine that cannot be loaded is logged once, and the program runs unhooked") {
  const Folder folder;
  const auto plain = Linked({"LD_LIBRARY_PATH=" + kDriver});
  std::ofstream(folder / "garbage.so") << "not a library";
  for (const std::string& engine :
       {(folder / "missing.so").string(), (folder / "garbage.so").string(), std::string(SLUICE_FOREIGN_ENGINE),
        std::string(SLUICE_NEWER_ENGINE), std::string(SLUICE_MUTE_ENGINE)}) {
    INFO(engine);
    const auto outcome = Linked(Hooked({"LD_LIBRARY_PATH=" + kDriver}, engine));
    CHECK(outcome.status == 0);
    CHECK(outcome.out == plain.out);
    CHECK(outcome.err.starts_with("sluice: ERROR engine not loaded from " + engine + ": "));
    CHECK(outcome.err.find("runs without limits\n") != std::string::npos);
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  }
  SECTION("an engine of another build is named as such") {
    const auto newer = Linked(Hooked({"LD_LIBRARY_PATH=" + kDriver}, SLUICE_NEWER_ENGINE));
    CHECK(newer.err.find("it is of another build than the shim (engine ") != std::string::npos);
    const auto mute = Linked(Hooked({"LD_LIBRARY_PATH=" + kDriver}, SLUICE_MUTE_ENGINE));
    CHECK(mute.err.find("it is no engine for this shim") != std::string::npos);
    const auto stopped = Linked(Hooked({"LD_LIBRARY_PATH=" + kDriver, "SLUICE_ON_ERROR=stop"}, SLUICE_MUTE_ENGINE));
    CHECK(stopped.out.starts_with("802 802 "));
  }
  SECTION("a wrong policy is named with the accepted ones") {
    const auto outcome = Linked(
        Hooked({"LD_LIBRARY_PATH=" + kDriver, "SLUICE_ON_ERROR=maybe", "SLUICE_DISABLE=yes"}, folder / "missing.so"));
    CHECK(outcome.out == plain.out);
    CHECK(outcome.err.find("SLUICE_ON_ERROR accepts: run, stop") != std::string::npos);
    CHECK(outcome.err.find("SLUICE_DISABLE accepts: 0, 1") != std::string::npos);
  }
}

TEST_CASE("with SLUICE_ON_ERROR=stop, hooked calls fail if the engine cannot be loaded") {
  const auto env = Hooked({"LD_LIBRARY_PATH=" + kDriver, "SLUICE_ON_ERROR=stop"}, "/nowhere/engine.so");
  const auto linked = Linked(env);
  CHECK(linked.status == 0);
  CHECK(linked.out.starts_with("802 802 "));
  CHECK(std::count(linked.err.begin(), linked.err.end(), '\n') == 1);
  CHECK(Run({kProbes + "/opener", "libcuda.so.1", "2", "dlsym"}, env).out == "802\n");
}

// libcuda.so.1 itself needs libpthread.so.0 and libdl.so.2, so an image in which a real one loads has both. With
// libc.so.6 alone, the engine cannot be loaded; that is logged, and SLUICE_ON_ERROR applies.
TEST_CASE("in an image with libc.so.6 alone, the engine is not loaded and SLUICE_ON_ERROR applies") {
  if (geteuid() != 0) SKIP("only root can chroot");
  const Folder image;
#ifdef __aarch64__
  const fs::path libraries = "lib/aarch64-linux-gnu", loader = "lib/ld-linux-aarch64.so.1";
#else
  const fs::path libraries = "lib/x86_64-linux-gnu", loader = "lib64/ld-linux-x86-64.so.2";
#endif
  if (!fs::exists("/" / loader)) SKIP("no /" << loader.string());
  for (const auto& folder : {loader.parent_path(), libraries, fs::path("opt")}) fs::create_directories(image / folder);
  fs::copy_file(fs::canonical("/" / loader), image / loader);
  fs::copy_file(fs::canonical("/" / libraries / "libc.so.6"), image / libraries / "libc.so.6");
  fs::copy_file(kProbes + "/linked", image / "opt/linked");
  fs::copy_file(fs::canonical(kDriver + "/libcuda.so.1"), image / "opt/libcuda.so.1");
  fs::copy_file(kShim, image / "opt/libsluice.so");
  fs::copy_file(kEngine, image / "opt/libsluice_engine.so");
  const auto inside = [&](std::vector<std::string> env) {
    env.emplace_back("LD_LIBRARY_PATH=/opt");
    // chroot has libraries of its own, so the preload names a path inside the image.
    std::vector<std::string> command{"/usr/sbin/chroot", (image / "").string(), "/opt/linked"};
    env.emplace_back("LD_PRELOAD=/opt/libsluice.so");
    return Run(command, env);
  };
  const auto outcome = inside({});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.status == 0);
  CHECK(outcome.err.find("engine not loaded from /opt/libsluice_engine.so: lib") != std::string::npos);
  CHECK(outcome.err.find("runs without limits") != std::string::npos);
  CHECK(inside({"SLUICE_ON_ERROR=stop"}).out.starts_with("802 802 "));
}

TEST_CASE("the agent is notified of an engine that cannot be loaded") {
  const Folder folder;
  const auto path = (folder / "agent.sock").string();
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (listener < 0) return;
  REQUIRE(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(listener, 4) == 0);
  const auto outcome = Linked(Hooked({"LD_LIBRARY_PATH=" + kDriver, "SLUICE_SOCKET=" + path}, "/nowhere/engine.so"));
  CHECK(outcome.status == 0);
  const int peer = accept(listener, nullptr, nullptr);
  REQUIRE(peer >= 0);
  sluice_frame frame{};
  REQUIRE(recv(peer, &frame, sizeof frame, 0) == SLUICE_FRAME_BYTES);
  CHECK(frame.h.magic == SLUICE_WIRE_MAGIC);
  CHECK(frame.h.type == SLUICE_HELLO);
  CHECK(frame.h.seq == 1);
  CHECK(frame.u.hello.pid > 1);
  REQUIRE(recv(peer, &frame, sizeof frame, 0) == SLUICE_FRAME_BYTES);
  CHECK(frame.h.type == SLUICE_NOTICE);
  CHECK(frame.u.notice.kind == SLUICE_NOTICE_ENGINE_FAILED);
  CHECK(std::string(frame.u.notice.text).starts_with("engine not loaded from /nowhere/engine.so: "));
  close(peer);
  close(listener);
}
