# Sourced by every script of this folder. Everything that one machine can have only once is named here, and nowhere else:
# there is one cluster a machine.
# shellcheck disable=SC2034  # the scripts that source this file use the variables
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
. "$ROOT/scripts/env.sh" ''             # without the arguments: these scripts answer --help themselves

STATE=/var/lib/sluice-cluster          # gone after `down`
RUN=/run/sluice-cluster                # sockets: short paths, a Unix socket's name holds 107 characters
LOCK=/run/lock/sluice-cluster.lock     # held by etcd: the kernel frees it when the cluster is gone, however it went
BUSY=/run/lock/sluice-cluster.busy     # held while a command changes the cluster
QUEUE=/run/lock/sluice-cluster.queue   # held by the owner that is next
GPU_LOCK=/run/lock/sluice-gpu-cluster  # of test/gpu/cluster, which has a node of its own at the same time
GPU=$RUN/gpu                           # the simulated cards: libraries, device nodes, profile, state
NETNS=sluice-cluster
LINK=sluice-cl0                        # the machine's end of the pair of links
NODE=sluice-node
HOST_IP=10.201.0.1
NODE_IP=10.201.0.2
POD_NET=10.244.0.0/24
SERVICE_NET=10.96.0.0/16
API_PORT=6443
API=https://$NODE_IP:$API_PORT
API_MORE=()                            # further flags of the API server
PROXY=yes                              # empty: no kube-proxy
CNI_NAME=sluicecluster
PAUSE=sluice.test/pause:1
BASE=sluice.test/base:1                # a Debian, for pods and as base of our own image
KUBELET_DIR=/var/lib/kubelet           # compiled into the kubelet's device-plugin interface
# The kubelet's --root-dir. SLUICE_CLUSTER_KUBELET_ROOT=apart: another folder, as k0s and MicroK8s have.
KUBELET_ROOT=$KUBELET_DIR
[ "${SLUICE_CLUSTER_KUBELET_ROOT:-}" != apart ] || KUBELET_ROOT=$STATE/kubelet
CGROUP=/                               # the kubelet's --cgroup-root: pods are below its kubepods
IMAGES=$SLUICE_CACHE/images
OWNER=${SLUICE_CLUSTER_USER:-$ROOT}    # another owner's `up` waits until this one's cluster is down
FOR=${SLUICE_CLUSTER_FOR:-}            # the process for which the cluster is started: once it has ended, any `up` ends the cluster
SKIP=4                                 # exit status: the machine cannot, see lacks()

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
# The minor version, SLUICE_CLUSTER_KUBERNETES or the default.
KUBERNETES=${SLUICE_CLUSTER_KUBERNETES:-$("$HERE/tools/build" --versions | cut -d' ' -f1)}
# Missing is an empty folder name, so that no program is taken from elsewhere in silence.
BIN=$("$HERE/tools/build" --where 2>/dev/null || true)
RUNC=$(command -v runc || true)
export KUBECONFIG=$STATE/pki/admin.kubeconfig

kubectl() { "$BIN/kubectl" "$@"; }
ctr() { "$BIN/ctr" -a "$RUN/containerd.sock" -n k8s.io "$@"; }
IN_NODE=(nsenter "--net=/run/netns/$NETNS")
in_node() { "${IN_NODE[@]}" "$@"; }

# containerd's words (a warning about cgroup v1 at every call) are shown only when it fails.
import_image() { local said; said=$(ctr images import "$1" 2>&1) || { echo "$said" >&2; return 1; }; }

STARTED=$(date +%s%N)
tell() {  # a line with the time since the command began
  local ms=$((($(date +%s%N) - STARTED) / 1000000))
  printf '%3d.%d s  %s\n' $((ms / 1000)) $((ms % 1000 / 100)) "$*" >&2
}

# until_true SECONDS SUBJECT COMMAND...: names the awaited subject if that takes longer than five seconds.
until_true() {
  local limit=$1 what=$2 start=$SECONDS told=
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $((SECONDS - start)) -lt "$limit" ] || { tell "gave up after $limit s of waiting for $what"; return 1; }
    if [ -z "$told" ] && [ $((SECONDS - start)) -ge 5 ]; then told=1; tell "waiting for $what (at most $limit s)"; fi
    sleep 0.2
  done
}
