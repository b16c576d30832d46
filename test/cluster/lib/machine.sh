# Requirements of the machine, and the changes to it.

# lacks MODE: one line for each thing that is missing; none: the cluster can run. Every check does the thing itself.
lacks() {
  local c missing=
  [ "$(id -u)" = 0 ] || { echo "root (this is uid $(id -u))"; return; }
  for c in curl ip nsenter openssl unshare; do command -v $c >/dev/null || missing+=" $c"; done
  if [ "$1" = full ]; then for c in gcc nft runc; do command -v $c >/dev/null || missing+=" $c"; done; fi
  [ -z "$missing" ] || { echo "programs:$missing (scripts/setup cluster installs them)"; return; }
  "$HERE/tools/build" --where >/dev/null 2>&1 || echo "a Go toolchain (scripts/setup cluster fetches it)"
  unshare -n true 2>/dev/null || echo "the right to make a network namespace (CAP_SYS_ADMIN)"
  unshare -n sh -c 'ip link add name probe0 type veth peer name probe1' 2>/dev/null || echo "veth links (kernel, CAP_NET_ADMIN)"
  [ "$1" = full ] || return 0
  unshare -n sh -c 'ip link add name probe0 type bridge' 2>/dev/null || echo "bridge links (kernel)"
  unshare -n sh -c 'nft add table ip t && nft list ruleset' >/dev/null 2>&1 || echo "nftables (kernel)"
  cni_folder >/dev/null || echo "CNI plug-ins (package containernetworking-plugins)"
  local probe
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    for c in cpu memory pids; do grep -qw $c /sys/fs/cgroup/cgroup.controllers || echo "cgroup controller $c"; done
    probe=/sys/fs/cgroup/sluice-probe-$$
  else
    for c in cpu cpuacct cpuset memory devices pids; do [ -d /sys/fs/cgroup/$c ] || echo "cgroup controller $c"; done
    probe=/sys/fs/cgroup/memory/sluice-probe-$$
  fi
  { mkdir "$probe" && rmdir "$probe"; } 2>/dev/null || echo "the right to make cgroups (${probe%/*} is not writable)"
  if [ -d $KUBELET_DIR ] && ! kubelet_is_ours && [ -n "$(ls -A $KUBELET_DIR)" ]; then
    echo "an empty $KUBELET_DIR: it has the data of another kubelet"
  fi
}

# Marked, since it was empty when the node was started there; or not there at all before.
kubelet_is_ours() { [ -e $KUBELET_DIR/.sluice-cluster ] || grep -qsx $KUBELET_DIR $STATE/absent; }

cni_folder() {
  local d
  for d in /usr/lib/cni /opt/cni/bin; do [ -x $d/bridge ] && [ -x $d/host-local ] && { echo $d; return; }; done
  return 1
}

# Overlay on overlay does not work (a machine that is itself a container).
snapshotter() { case $(stat -f -c %T "$STATE") in overlayfs) echo native ;; *) echo overlayfs ;; esac; }

SYSCTLS="vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes"
# Paths that kubelet, CNI and ip make with names of their own. `down` removes the paths that `up` did not find.
# /run/containerd: a shim that cleans up after another does not know the cluster's own root for runc.
PATHS="/etc/cni /run/containerd /run/mount /run/netns /usr/libexec/kubernetes /var/lib/cni $KUBELET_DIR /var/log/containers /var/log/pods /var/run/cdi"

remember_machine() {  # MODE
  local p before=
  [ -f $STATE/footprint ] || before=$("$HERE/footprint")
  mkdir -p $STATE/log $RUN
  [ -z "$before" ] || echo "$before" >$STATE/footprint
  [ -f $STATE/sysctls ] || for p in $SYSCTLS; do printf '%s=%s\n' $p "$(sysctl -n $p)"; done >$STATE/sysctls 2>/dev/null
  [ -f $STATE/absent ] || for p in $PATHS; do [ -e $p ] || echo $p; done >$STATE/absent
  [ "$1" != full ] || { mkdir -p $KUBELET_DIR && touch $KUBELET_DIR/.sluice-cluster; }
}

# Folders without a file, made since FOOTPRINT in folders that were there before: a shim that cleans up after another
# makes /run/containerd/runc/k8s.io, CNI plug-ins make /var/lib/cni/results.
remove_empty_folders() {  # FOOTPRINT
  local p
  [ -f "$1" ] || return 0
  for p in $PATHS; do find "$p" -mindepth 1 -maxdepth 1 -type d 2>/dev/null; done | while read -r p; do
    grep -qxF "path: $p" "$1" || find "$p" -xdev -depth -type d -empty -delete
  done
}

restore_machine() {
  local p
  [ ! -f $STATE/sysctls ] || sysctl -q -p $STATE/sysctls
  grep -E "^[^ ]+ ($KUBELET_DIR|$RUN|$STATE)[/ ]" /proc/mounts | cut -d' ' -f2 | sort -r | while read -r p; do umount "$p" || umount -l "$p"; done
  ip netns del $NETNS 2>/dev/null
  ip link del $LINK 2>/dev/null
  if [ -z "$(ls /run/netns 2>/dev/null)" ] && grep -q ' /run/netns ' /proc/mounts && grep -qx /run/netns $STATE/absent; then
    umount /run/netns
  fi
  if kubelet_is_ours; then
    for p in /sys/fs/cgroup/kubepods /sys/fs/cgroup/*/kubepods; do
      [ ! -d "$p" ] || find "$p" -depth -type d -exec rmdir {} \; 2>/dev/null
    done
    rm -f /var/lib/cni/results/$CNI_NAME-* /var/lib/cni/results/cni-loopback-*
    # Links to logs: kubelet removes them now and then, and may have been stopped before. Their targets may still exist.
    find /var/log/containers -maxdepth 1 -type l \( -xtype l -o -lname "$STATE/*" \) -delete 2>/dev/null
    # The mark is removed last: without it, remaining files would count as another kubelet's.
    find $KUBELET_DIR -xdev -mindepth 1 -depth ! -path $KUBELET_DIR/.sluice-cluster -delete 2>/dev/null
    rm -f $KUBELET_DIR/.sluice-cluster
  fi
  remove_empty_folders $STATE/footprint
  # A plugin that was not uninstalled leaves specs of the simulated cards, also in a folder that was there before.
  grep -lsF "\"$RUN/" /var/run/cdi/sluice.dev-*.json | xargs -r rm -f
  [ ! -f $STATE/absent ] || while read -r p; do rm -rf --one-file-system "$p"; done <$STATE/absent
}

# A namespace of its own for the node, reachable from the machine: API, pods and Services answer under their own addresses.
network() {
  [ ! -e /run/netns/$NETNS ] || return 0
  ip netns add $NETNS
  ip link add $LINK type veth peer name uplink netns $NETNS
  ip addr add $HOST_IP/30 dev $LINK
  ip link set $LINK up
  ip -n $NETNS addr add $NODE_IP/30 dev uplink
  ip -n $NETNS link set lo up
  ip -n $NETNS link set uplink up
  ip -n $NETNS route add default via $HOST_IP
  ip route add $POD_NET via $NODE_IP dev $LINK
  ip route add $SERVICE_NET via $NODE_IP dev $LINK
  in_node sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.route_localnet=1
}
