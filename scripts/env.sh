# Sourced by the scripts: where downloads and compiled objects are kept. One folder a user, shared by all clones.
SLUICE_CACHE=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}
export SLUICE_CACHE
export CCACHE_DIR=${CCACHE_DIR:-$SLUICE_CACHE/ccache} CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1
export ZIG_GLOBAL_CACHE_DIR=${ZIG_GLOBAL_CACHE_DIR:-$SLUICE_CACHE/zig}
SLUICE_ZIG=$SLUICE_CACHE/python-build/bin/zig
export SLUICE_ZIG
say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# A script answers --help with its head: the comment in front of its first command.
case ${1:-} in
  -h | --help)
    for head in "$0" "${OLDPWD:-.}/$0"; do
      [ ! -f "$head" ] || [[ $(head -c 2 "$head") != '#!' ]] || { sed -n '2,/^[^#]/ { /^#/! q; s/^# \{0,1\}//; p }' "$head"; exit 0; }
    done ;;
esac
