// Whose a process is: cgroups, mounts, ancestors.
#include "agent/identity.h"

#include <catch2/catch_test_macros.hpp>

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

namespace {

const std::string kId(64, 'a'), kOther(64, 'b');
constexpr const char* kUid = "0f3a2b4c-1111-2222-3333-444455556666";
constexpr const char* kUidUnderscored = "0f3a2b4c_1111_2222_3333_444455556666";

ContainerKey Pod(const std::string& id) { return {kUid, id}; }

}  // namespace

TEST_CASE("containers are known by every runtime's and driver's form of cgroup") {
  const std::string slice = std::string("kubepods-burstable-pod") + kUidUnderscored + ".slice";
  // systemd: containerd, CRI-O with a container's own cgroups below, cri-dockerd
  CHECK(ContainerOf("0::/kubepods.slice/kubepods-burstable.slice/" + slice + "/cri-containerd-" + kId + ".scope\n") ==
        Pod(kId));
  CHECK(ContainerOf("0::/kubepods.slice/" + slice + "/crio-" + kId + ".scope/container/init.scope\n") == Pod(kId));
  // kubelet's --cgroup-root with systemd, as kind has it
  CHECK(ContainerOf("0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-" + slice +
                    "/cri-containerd-" + kId + ".scope\n") == Pod(kId));
  CHECK(ContainerOf("0::/../../a-b-kubepods-pod" + std::string(kUidUnderscored) + ".slice/docker-" + kId +
                    ".scope\n") == Pod(kId));
  // cgroupfs, version 1 with several hierarchies
  CHECK(ContainerOf("9:name=systemd:/\n8:pids:/kubepods/besteffort/pod" + std::string(kUid) + "/" + kId + "\n0::/\n") ==
        Pod(kId));
  // A reader in a cgroup namespace of its own sees relative paths.
  CHECK(ContainerOf("0::/../../" + slice + "/cri-containerd-" + kId + ".scope\n") == Pod(kId));
  CHECK(ContainerOf("0::/../../pod" + std::string(kUid) + "/" + kId) == Pod(kId));
  // no Kubernetes
  CHECK(ContainerOf("0::/system.slice/docker-" + kId + ".scope\n") == ContainerKey{"", kId});
  CHECK(ContainerOf("0::/docker/" + kId + "\n") == ContainerKey{"", kId});
  CHECK(ContainerOf("0::/machine.slice/libpod-" + kId + ".scope/container\n") == ContainerKey{"", kId});
  // the pod's own cgroup, and a container by no runtime that is known
  CHECK(ContainerOf("0::/kubepods/pod" + std::string(kUid) + "\n") == Pod(""));
  CHECK(ContainerOf("0::/kubepods/pod" + std::string(kUid) + "/strange/" + kId + "\n") == Pod(""));
}

TEST_CASE("the path of a container's cgroup ends with the container") {
  const std::string own = std::string("/kubepods/pod") + kUid + "/" + kId;
  CHECK(ContainerPathOf("0::" + own + "\n") == own);
  CHECK(ContainerPathOf("0::" + own + "/mine/docker/" + kOther + "\n") == own);
  CHECK(ContainerPathOf("0::/system.slice/docker-" + kId + ".scope/x\n") == "/system.slice/docker-" + kId + ".scope");
  CHECK(ContainerPathOf("9:pids:/\n8:memory:" + own + "\n0::/\n") == own);
  CHECK(ContainerPathOf("0::/../../pod" + std::string(kUid) + "/" + kId) ==
        "/../../pod" + std::string(kUid) + "/" + kId);
  CHECK(ContainerPathOf("0::/kubepods/pod" + std::string(kUid) + "\n").empty());
  CHECK(ContainerPathOf("0::/init.scope\n").empty());
}

TEST_CASE("processes of the node are in no container") {
  for (const char* text : {"", "0::/\n", "0::/init.scope\n", "0::/system.slice/sshd.service\n", "garbage",
                           "0::/podman\n/pod/\n", "::", "1:a:/docker/short\n", "0::/poduser!/x\n",
                           "0::/mykubepods-pod0f3a2b4c_1111_2222_3333_444455556666.slice/x\n"}) {
    CAPTURE(text);
    CHECK(ContainerOf(text).empty());
  }
}

TEST_CASE("a cgroup that a process makes below its own changes nothing") {
  const std::string own = std::string("/kubepods/pod") + kUid + "/" + kId;
  CHECK(ContainerOf("0::" + own + "/kubepods/pod11111111-0000-0000-0000-000000000000/" + kOther + "\n") == Pod(kId));
  CHECK(ContainerOf("0::" + own + "/docker-" + kOther + ".scope\n") == Pod(kId));
  CHECK(ContainerOf("0::/docker/" + kOther + "/kubepods/pod" + kUid + "/" + kId + "\n") == ContainerKey{"", kOther});
  // systemd gives users a part of the tree of their own.
  CHECK(ContainerOf(std::string("0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod") + kUid + "/" + kId)
            .empty());
}

TEST_CASE("a folder has the device and root that its bind mounts show") {
  const auto own = ReadMounts(
      "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
      "23 22 8:2 /@data /var/lib rw - btrfs /dev/sda2 rw\n"
      "24 22 8:3 / /mnt/with\\040space rw - ext4 /dev/sda3 rw\n"
      "25 22 8:4 / /var/lib/sluice rw - ext4 /dev/sda4 rw\n"
      "26 22 8:5 / /var/lib/sluice rw - ext4 /dev/sda5 rw\n");
  CHECK(RootOf(own, "/etc/x") == MountRoot{"8:1", "/etc/x"});
  CHECK(RootOf(own, "/var/lib/kubelet") == MountRoot{"8:2", "/@data/kubelet"});
  CHECK(RootOf(own, "/var/library") == MountRoot{"8:1", "/var/library"});
  CHECK(RootOf(own, "/mnt/with space/a") == MountRoot{"8:3", "/a"});
  CHECK(RootOf(own, "/var/lib/sluice/alloc") == MountRoot{"8:5", "/alloc"});  // the last mount hides earlier ones
  CHECK(RootOf(own, "/var/lib/sluice") == MountRoot{"8:5", "/"});
  CHECK_FALSE(RootOf({}, "/a"));
  CHECK(ReadMounts("garbage\n\n1 2 3\n").empty());
}

namespace {

struct Node {
  Node() {
    all.Add("victim", {.pod_uid = "pod-v", .container = "main"}, MountRoot{"8:1", "/alloc/victim"});
    all.Add("attacker", {.pod_uid = "pod-a", .container = "main"}, MountRoot{"8:1", "/alloc/attacker"});
    all.Add("two-x", {.pod_uid = "pod-two", .container = "x", .container_ids = {"x1"}},
            MountRoot{"8:1", "/alloc/two-x"});
    all.Add("two-y", {.pod_uid = "pod-two", .container = "y"}, MountRoot{"8:1", "/alloc/two-y"});
    all.Add("run", {.runner = 50, .pids = {60}}, MountRoot{"8:1", "/alloc/run"});
    all.Add("plain", {}, MountRoot{"8:1", "/alloc/plain"});
  }
  Identities all;
};

constexpr const char* kPoint = "/opt/sluice/run";

}  // namespace

TEST_CASE("a mount that is called as another's allocation forges, and the victim is not named") {
  const Node node;
  const MountRoot fake{"0:99", "/tmp/victim"}, same_path{"0:99", "/alloc/victim"};
  for (const MountRoot& root : {fake, same_path}) {
    // by cgroup, with or without its own mount below
    for (const std::vector<Mount>& mounts :
         {std::vector<Mount>{{root, kPoint}},
          std::vector<Mount>{{{"8:1", "/alloc/attacker"}, kPoint}, {root, kPoint}}}) {
      const auto found = node.all.Of({true, {"pod-a", "1"}, mounts, {}});
      CHECK(found.allocation == "attacker");
      CHECK_FALSE(found.forged.empty());
      CHECK(found.forged.find("victim") == std::string::npos);
    }
    // without a cgroup the mount below it tells
    const auto found = node.all.Of({true, {}, {{{"8:1", "/alloc/plain"}, kPoint}, {root, kPoint}}, {}});
    CHECK(found.allocation == "plain");
    CHECK_FALSE(found.forged.empty());
    // and where there is nothing of its own, it belongs to no allocation
    const auto none = node.all.Of({true, {}, {{root, kPoint}}, {}});
    CHECK(none.allocation.empty());
    CHECK_FALSE(none.forged.empty());
  }
}

TEST_CASE("a mount that is called as no allocation's hides nothing") {
  const Node node;
  const auto found = node.all.Of({true, {"pod-a", "1"}, {{{"0:99", "/tmp/stranger"}, kPoint}}, {}});
  CHECK(found.allocation == "attacker");
  CHECK_FALSE(found.forged.empty());
  CHECK(node.all.Of({true, {"pod-a", "1"}, {}, {}}).allocation == "attacker");  // all mounts left behind
  CHECK(node.all.Of({true, {"pod-a", "1"}, {}, {}}).forged.empty());
  // a folder of the same name in a container that has nothing to do with sluice
  CHECK(node.all.Of({true, {"pod-z", "1"}, {{{"0:99", "/tmp/x"}, kPoint}}, {}}).forged.empty());
}

TEST_CASE("the real folder of another pod's allocation gives no right to it") {
  const Node node;
  const auto found = node.all.Of({true, {"pod-a", "1"}, {{{"8:1", "/alloc/victim"}, "/host/x"}}, {}});
  CHECK(found.allocation == "attacker");
  CHECK_FALSE(found.forged.empty());
}

TEST_CASE("containers of one pod are told apart by their runtime's ids and by their mounts") {
  const Node node;
  CHECK(node.all.Of({true, {"pod-two", "x1"}, {}, {}}).allocation == "two-x");
  CHECK(node.all.Of({true, {"pod-two", "9"}, {{{"8:1", "/alloc/two-y"}, kPoint}}, {}}).allocation == "two-y");
  CHECK(node.all.Of({true, {"pod-two", "9"}, {}, {}}).allocation.empty());  // either: no guess
}

TEST_CASE("programs of sluice run are known by their ancestors") {
  const Node node;
  CHECK(node.all.Of({true, {}, {}, {55, 50, 2}}).allocation == "run");
  CHECK(node.all.Of({true, {}, {}, {60}}).allocation == "run");  // a child of a hooked process
  CHECK(node.all.Of({true, {}, {}, {51, 2}}).allocation.empty());
}
