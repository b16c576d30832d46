# The simulated cards of the node.

# The device nodes' number belongs to no driver here. Opening one fails with "no such device" if the device cgroup allows
# it, else with "not permitted".
gpus() {
  local lib=${1:?gpus: a build folder is needed}/lib/simgpu profile=${2:-h200} major=240 cards i name
  [ -f "$lib/libcuda.so.1" ] || die "$lib/libcuda.so.1 is missing; build the simulated driver first"
  [ -f "$profile" ] || profile=$lib/profiles/$profile.profile
  [ -f "$profile" ] || die "no profile $profile; accepted: $(ls "$lib/profiles" | sed 's/[.]profile$//' | tr '\n' ' ')"
  while grep -q "^ *$major " /proc/devices; do major=$((major + 1)); done
  rm -rf "${GPU:?}/dev"
  mkdir -p $GPU/lib $GPU/dev
  for i in libcuda.so.1 libnvidia-ml.so.1; do cp -L "$lib/$i" $GPU/lib/.new && mv $GPU/lib/.new $GPU/lib/$i || exit 1; done
  cp "$profile" $GPU/profile
  # Made beforehand: otherwise the first user that opens it would own it, and pods have many users.
  rm -f $GPU/state
  install -m 666 /dev/null $GPU/state
  cards=$(sed -n 's/^gpus *= *//p' $GPU/profile)
  i=0
  for name in nvidiactl nvidia-uvm nvidia-uvm-tools $(seq -f 'nvidia%.0f' 0 $((${cards:-1} - 1))); do
    mknod -m 666 $GPU/dev/$name c $major $i || die "device nodes cannot be made here"
    i=$((i + 1))
  done
  tell "${cards:-1} simulated cards of profile $(basename "$profile" .profile) in $GPU"
}
