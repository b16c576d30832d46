# The cluster's programs: how each is started, and how all end.

# A process is recognized by its program: another process may have its number by now, and kill -0 finds zombies too. Only
# the program's name counts: a process of an older build, or with a removed file, uses the same ports.
pid_of() { cat $RUN/$1.pid 2>/dev/null; }
alive() { local p; p=$(pid_of "$1") && [ -n "$p" ] && case $(readlink /proc/$p/exe) in */"$1" | */"$1 (deleted)") ;; *) return 1 ;; esac; }

# Starts a program in the node's network namespace unless it runs. nsenter becomes the program, so $! is its number.
start() {
  local name=$1
  shift
  alive "$name" && return
  # Shares through DRA; since Kubernetes 1.34, on by default since 1.36.
  [ "${KUBERNETES#1.}" -lt 34 ] || case $name in kube-apiserver | kube-controller-manager | kube-scheduler | kubelet) set -- "$@" --feature-gates=DRAConsumableCapacity=true ;; esac
  # Only etcd keeps the lock (9); no program keeps the busy mark (8) or the caller's descriptors.
  if [ "$name" = etcd ]; then
    setsid "${IN_NODE[@]}" "$BIN/$name" "$@" >>$STATE/log/$name.log 2>&1 </dev/null 8>&- &
  else
    setsid "${IN_NODE[@]}" "$BIN/$name" "$@" >>$STATE/log/$name.log 2>&1 </dev/null 8>&- 9>&- &
  fi
  echo $! >$RUN/$name.pid
}

# Waits for a start-up condition, and fails at once when the program that should fulfil it has ended.
await() {  # PROGRAM SECONDS WHAT COMMAND...
  local name=$1 limit=$2 what=$3
  shift 3
  ready_or_dead() { "$@" || [ ! -d "/proc/$(pid_of "$name")" ]; }
  until_true "$limit" "$what" ready_or_dead "$@" && "$@" >/dev/null 2>&1 && return 0
  echo "$name did not get there; the end of $STATE/log/$name.log:" >&2
  tail -8 $STATE/log/$name.log >&2
  return 1
}

stop() {  # PROGRAM [SIGNAL [SECONDS]]
  local p i
  if alive "$1"; then
    p=$(pid_of "$1")
    kill -"${2:-TERM}" "$p"
    for ((i = 0; i < ${3:-15} * 10; i++)); do [ -n "$(readlink /proc/$p/exe)" ] || break; sleep 0.1; done
    [ -z "$(readlink /proc/$p/exe)" ] || { tell "$1 did not end in ${3:-15} s: killed"; kill -KILL "$p"; }
  fi
  rm -f $RUN/$1.pid
}

start_control_plane() {
  local p=$STATE/pki
  start etcd --name cluster --data-dir $STATE/etcd --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 \
    --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster cluster=http://127.0.0.1:2380 \
    --logger zap --log-level warn --unsafe-no-fsync
  start kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --advertise-address=$NODE_IP \
    --secure-port=$API_PORT --service-cluster-ip-range=$SERVICE_NET --client-ca-file=$p/ca.crt --tls-cert-file=$p/apiserver.crt \
    --tls-private-key-file=$p/apiserver.key --authorization-mode=Node,RBAC --anonymous-auth=true \
    --kubelet-client-certificate=$p/apiserver-kubelet.crt --kubelet-client-key=$p/apiserver-kubelet.key \
    --kubelet-certificate-authority=$p/ca.crt --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local --service-account-key-file=$p/sa.pub \
    --service-account-signing-key-file=$p/sa.key --requestheader-client-ca-file=$p/front-proxy-ca.crt \
    --requestheader-allowed-names=front-proxy-client --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --requestheader-group-headers=X-Remote-Group --requestheader-username-headers=X-Remote-User \
    --proxy-client-cert-file=$p/front-proxy.crt --proxy-client-key-file=$p/front-proxy.key --allow-privileged=true \
    --enable-admission-plugins=NodeRestriction --profiling=false "${API_MORE[@]}"
  await kube-apiserver 120 "the API server" kubectl get --raw /readyz --request-timeout=2s || return 1
  tell "API server ready"
  # The rates: with the defaults 400 pods on simulated nodes take 44 s instead of 20.
  start kube-controller-manager --kubeconfig=$p/controller-manager.kubeconfig \
    --authentication-kubeconfig=$p/controller-manager.kubeconfig --authorization-kubeconfig=$p/controller-manager.kubeconfig \
    --bind-address=127.0.0.1 --leader-elect=false --kube-api-qps=200 --kube-api-burst=400 \
    --flex-volume-plugin-dir=$STATE/volume-plugins --use-service-account-credentials=true \
    --service-account-private-key-file=$p/sa.key --root-ca-file=$p/ca.crt --cluster-signing-cert-file=$p/ca.crt \
    --cluster-signing-key-file=$p/ca.key --client-ca-file=$p/ca.crt --requestheader-client-ca-file=$p/front-proxy-ca.crt
  start kube-scheduler --kubeconfig=$p/scheduler.kubeconfig --authentication-kubeconfig=$p/scheduler.kubeconfig \
    --authorization-kubeconfig=$p/scheduler.kubeconfig --bind-address=127.0.0.1 --leader-elect=false \
    --kube-api-qps=200 --kube-api-burst=400
  await kube-controller-manager 60 "the default service account" kubectl -n default get serviceaccount default || return 1
}

start_kubelet() {
  start kubelet --config=$STATE/config/kubelet.yaml --kubeconfig=$STATE/pki/kubelet.kubeconfig --hostname-override=$NODE \
    --node-ip=$NODE_IP --root-dir=$KUBELET_ROOT --v=2
}

start_node() {
  start containerd -c $STATE/config/containerd.toml
  await containerd 60 containerd ctr version || return 1
  import_image "$PAUSE_ARCHIVE" || return 1
  start_kubelet
  [ -z "$PROXY" ] || start kube-proxy --config=$STATE/config/kube-proxy.yaml
  await kubelet 60 "the kubelet to register its node" kubectl get node $NODE || return 1
  await kubelet 90 "the node to become Ready" kubectl wait --for=condition=Ready node/$NODE --timeout=1s || return 1
  [ -z "$PROXY" ] || await kube-proxy 10 "kube-proxy" alive kube-proxy || return 1
}

# Written only when changed: kube-proxy ends itself when its configuration file is written.
write_config() {
  local f new gates='{}'
  # On by default, and later without a gate, since Kubernetes 1.31.
  [ "${KUBERNETES#1.}" -ge 31 ] || gates='{NFTablesProxyMode: true}'
  new=$(mktemp)
  (cd "$HERE/config" && find . -type f -printf '%P\n') | while read -r f; do
    mkdir -p "$(dirname $STATE/config/$f)"
    sed "s|@STATE@|$STATE|g; s|@RUN@|$RUN|g; s|@NODE_IP@|$NODE_IP|g; s|@NODE@|$NODE|g; s|@POD_NET@|$POD_NET|g
      s|@CNI_NAME@|$CNI_NAME|g; s|@CNI@|$(cni_folder)|g; s|@RUNC@|$RUNC|g; s|@PAUSE@|$PAUSE|g; s|@CGROUP@|$CGROUP|g
      s|@SNAPSHOTTER@|$(snapshotter)|g; s|@PROXY_GATES@|$gates|g" "$HERE/config/$f" >"$new"
    cmp -s "$new" $STATE/config/$f || cp "$new" $STATE/config/$f
  done
  rm -f "$new"
}

# A real driver is in the kernel, the same for every container. The simulated driver keeps its cards' state in a file, so
# every container of the node gets that folder and its path. An empty GPU: the real driver.
write_base_spec() {
  "$BIN/ctr" oci spec | python3 -c '
import json, sys
gpu = sys.argv[1]
spec = json.load(sys.stdin)
if gpu:
    spec["process"]["env"] = ["SIMGPU_STATE=%s/state" % gpu, "SIMGPU_PROFILE=%s/profile" % gpu]
    spec["mounts"].append({"destination": gpu, "source": gpu, "type": "bind", "options": ["rbind", "rw", "nosuid"]})
json.dump(spec, sys.stdout, indent=1)' "$GPU" >$STATE/config/base-spec.json
}

# The key covers all inputs: the cache folder outlives this version of the tree.
pause_image() {
  local dir
  PAUSE_ARCHIVE=$IMAGES/pause-$( (cat "$HERE/pause.c" "$HERE/oci_archive"; echo $PAUSE) | sha256sum | cut -c1-12).tar
  [ ! -f "$PAUSE_ARCHIVE" ] || return 0
  mkdir -p "$IMAGES"
  dir=$(mktemp -d)
  gcc -Os -static -s -o "$dir/pause" "$HERE/pause.c" && "$HERE/oci_archive" $PAUSE "$dir" "$PAUSE_ARCHIVE" /pause
  rm -rf "$dir"
  [ -f "$PAUSE_ARCHIVE" ]
}

# No list names a shim that was starting when kubelet or containerd was killed. Call this only once containerd has ended.
shims() {
  local f
  for f in $(grep -lsaF -e "$RUN/containerd.sock" /proc/[0-9]*/cmdline); do
    # Not grep itself: a shim's first word is its program.
    [[ $(tr '\0' ' ' 2>/dev/null <"$f") != */containerd-shim-runc-v2\ * ]] || basename "${f%/cmdline}"
  done
}

# The processes in the node's cgroups. A node that began with an empty kubelet folder is the machine's only one. A machine
# that is itself a pod sees its own processes there.
in_pods() {
  kubelet_is_ours && ! grep -q kubepods /proc/self/cgroup || return 0
  find /sys/fs/cgroup/kubepods /sys/fs/cgroup/*/kubepods -name cgroup.procs -exec cat {} + 2>/dev/null | grep -vx 0
}

# Ends the remaining processes of a cluster, also of a killed one or of another build: those in its network and in its
# pods, and shims that no list names.
end_all() {
  local i left
  for ((i = 0; i < 50; i++)); do
    left=$(ip netns pids $NETNS 2>/dev/null; shims; in_pods)
    [ -n "$left" ] || return 0
    kill -KILL $left 2>/dev/null
    sleep 0.1
  done
}

# Pods are deleted through the API first, so that the kubelet ends them and CNI takes its links away. A crash leaves them in etcd.
end_pods() {
  local i
  stop kube-controller-manager
  stop kube-scheduler
  if [ "$1" != crash ] && alive kubelet && kubectl delete pods -A --all --force --grace-period=0 --timeout=20s >/dev/null 2>&1; then
    for ((i = 0; i < 75; i++)); do
      [ -z "$(ctr tasks ls -q 2>/dev/null)" ] && ! grep -q "^nsfs $RUN/" /proc/mounts && break
      sleep 0.2
    done
  fi
  stop kubelet
  stop kube-proxy
  alive containerd || return 0
  for i in $(ctr tasks ls -q); do
    ctr tasks kill -s SIGKILL "$i"
    ctr tasks rm -f "$i"
  done >/dev/null 2>&1
  [ "$1" = crash ] || for i in $(ctr containers ls -q); do ctr containers rm "$i"; done >/dev/null 2>&1
}
