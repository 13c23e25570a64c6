# Helpers of the scripts in deploy/; sourced, never run. Sets ISTHMUS_ROOT, the top of the source tree.
# shellcheck shell=bash disable=SC2034

# A command that fails inside $(...) ends that too: without this, `set -e` does not hold in there.
shopt -s inherit_errexit

ISTHMUS_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Exit codes are those of the programs: 1 failure, 2 bad usage, 3 the machine lacks something.
readonly EXIT_FAILURE=1 EXIT_USAGE=2 EXIT_MACHINE=3

# Where the user stands, also in a script that another one calls.
export ISTHMUS_CALLER=${ISTHMUS_CALLER:-$PWD}

# A path as the user would write it: relative where it lies below where they stand.
shown() { printf '%s' "${1#"${ISTHMUS_CALLER%/}"/}"; }

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }

# die CODE WHAT...
die() {
  local code=$1
  shift
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit "$code"
}

# need_value OPTION COUNT: an option that takes a value was given one.
need_value() { [ "$2" -ge 2 ] || die $EXIT_USAGE "$1 needs a value; --help lists the options"; }

# The comment at the top of the calling script is its --help.
print_help() { sed -n '2,/^[^#]/{/^#/!q;s/^# \{0,1\}//;p}' "$0"; }

# Compilers at once: no more than cores, and no more than memory carries (a LibTorch unit takes 1.2 GB).
build_jobs() {
  local cores memory_mib fit
  cores=$(nproc)
  memory_mib=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
  fit=$((memory_mib / 1200))
  if [ "$fit" -lt 1 ]; then fit=1; fi
  if [ "$fit" -lt "$cores" ]; then echo "$fit"; else echo "$cores"; fi
}

# torch_dir DIR: the folder with TorchConfig.cmake, from an unpacked LibTorch, a Python torch package or that folder itself.
torch_dir() {
  local candidate
  for candidate in "$1" "$1/share/cmake/Torch" "$1/torch/share/cmake/Torch"; do
    if [ -f "$candidate/TorchConfig.cmake" ]; then
      (cd "$candidate" && pwd)
      return
    fi
  done
  die $EXIT_USAGE "--torch $1: no TorchConfig.cmake there, nor in share/cmake/Torch below it; give the folder that a LibTorch archive unpacks to"
}

# torch_cmake_args DIR: what CMake needs to use that LibTorch.
torch_cmake_args() {
  local dir
  dir=$(torch_dir "$1") || exit $?  # also where the caller's `if` or `||` switches `set -e` off
  if grep -q '_GLIBCXX_USE_CXX11_ABI=0' "$dir/TorchConfig.cmake"; then
    die $EXIT_MACHINE "$dir is built with the old C++ ABI and can't be linked with this system's gRPC; take the LibTorch archive named cxx11-abi"
  fi
  printf '%s\n' "-DTorch_DIR=$dir"
  # Debian's own LibTorch (1.13) wants C++17; from 2.0 on both work, and recent ones insist on C++20.
  if ! grep -qs '^1\.' "$dir/../../../build-version"; then printf '%s\n' "-DCMAKE_CXX_STANDARD=20"; fi
}
