#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that Isthmus is built with. Only what is missing; safe to run again.
#
#   deploy/setup.sh [--tests] [--torch DIR | --cuda DIR] [--dry-run]
#
#   --tests      also what the tests use (deploy/packages-tests.txt)
#   --torch DIR  you bring LibTorch yourself (the folder its archive unpacks to): libtorch-dev is left out
#   --cuda DIR   for an NVIDIA GPU: LibTorch with CUDA and the compiler of its version, from PyPI's torch wheel and
#                nvidia-* wheels into DIR (5 GB; 2.5 GB are fetched), then the packages but libtorch-dev. No CUDA toolkit
#                is needed, the driver is. Build with deploy/build.sh --cuda DIR
#   --dry-run    say what would be installed, install nothing
#
# Needs root, or sudo, when something is missing. For Debian 12 and Ubuntu 24.04.
set -euo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "$0")/lib.sh"

lists=("$ISTHMUS_ROOT/deploy/packages.txt")
torch=
cuda=
dry_run=
while [ $# -gt 0 ]; do
  case $1 in
    --tests) lists+=("$ISTHMUS_ROOT/deploy/packages-tests.txt") ;;
    --torch) need_value "$1" $#; torch=$(torch_dir "$2"); shift ;;
    --cuda) need_value "$1" $#; cuda=$2; torch=by-cuda; shift ;;
    --dry-run) dry_run=yes ;;
    -h | --help) print_help; exit ;;
    *) die $EXIT_USAGE "unknown option $1; --help lists them" ;;
  esac
  shift
done

command -v apt-get > /dev/null ||
  die $EXIT_MACHINE "this system has no apt-get; install what deploy/packages.txt names by its own means, then run deploy/build.sh"

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null)" = installed ]; }
offered() { [[ $(apt-cache policy "$1" 2> /dev/null) == *"Candidate: "[!\(]* ]]; }

# parse LINE: a line of the lists without comment and markers; sets names (a list) and optional.
parse() {
  local line=${1%%#*}
  optional=
  case $line in *@torch*) if [ -n "$torch" ]; then line=; fi; line=${line//@torch/} ;; esac
  case $line in *\?*) optional=yes; line=${line//\?/} ;; esac
  read -r -a names <<< "${line//|/ }"
}

any_installed() {
  local name
  for name in "$@"; do
    if installed "$name"; then return 0; fi
  done
  return 1
}

# Fills missing (one name for each line that nothing installed satisfies) and absent (required, offered by no archive).
find_missing() {
  local line name found
  missing=() absent=() passed_over=()
  while IFS= read -r line; do
    parse "$line"
    if [ ${#names[@]} -eq 0 ] || any_installed "${names[@]}"; then continue; fi
    found=
    for name in "${names[@]}"; do
      if offered "$name"; then found=$name; break; fi
    done
    if [ -n "$found" ]; then missing+=("$found")
    elif [ -n "$optional" ]; then passed_over+=("${names[*]}")
    else absent+=("${names[*]}"); fi
  done < <(cat "${lists[@]}")
}

# The wheels of one CUDA version; what a compiler of a toolkit links by (lib*.so) is missing in them.
cuda_wheels=(torch==2.11.0 nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85)
fetch_cuda() {
  local library
  if [ -f "$cuda/torch/share/cmake/Torch/TorchConfig.cmake" ] && [ -x "$cuda/nvidia/cu13/bin/nvcc" ]; then
    say "LibTorch with CUDA is in $cuda"
    return
  fi
  if [ -n "$dry_run" ]; then say "would fetch ${cuda_wheels[*]} into $cuda"; return; fi
  python3 -m pip --version > /dev/null 2>&1 ||
    die $EXIT_MACHINE "--cuda fetches wheels and python3 has no pip here: apt-get install python3-pip, then run this again"
  say "fetching ${cuda_wheels[*]} into $cuda"
  python3 -m pip install --quiet --no-compile --no-cache-dir --target "$cuda" "${cuda_wheels[@]}" ||
    die $EXIT_FAILURE "pip could not fetch them, its reason is above; with wheels of another CUDA version in a folder, build with --torch and a toolkit of your own"
  for library in cublas cublasLt cudart; do
    ln -sf "lib$library.so.13" "$cuda/nvidia/cu13/lib/lib$library.so"
  done
}
if [ -n "$cuda" ]; then
  fetch_cuda
  nvidia-smi -L > /dev/null 2>&1 || say "nvidia-smi lists no GPU on this host: what is built will run on hosts that have one"
fi

find_missing
if [ ${#missing[@]} -eq 0 ] && [ ${#absent[@]} -eq 0 ]; then
  say "every package is there"
  exit
fi

as_root=()
if [ "$(id -u)" -ne 0 ] && [ -z "$dry_run" ]; then
  command -v sudo > /dev/null ||
    die $EXIT_MACHINE "installing ${missing[*]} ${absent[*]} needs root; run this script as root, or install sudo"
  say "not root: apt-get runs through sudo"
  as_root=(sudo)
fi

# Lists that are empty or a day old lead to packages that are no longer there.
lists_are_fresh() { [ -n "$(find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' -mtime -1 -print -quit 2> /dev/null)" ]; }
if [ -z "$dry_run" ] && { [ ${#absent[@]} -gt 0 ] || ! lists_are_fresh; }; then
  say "apt-get update"
  "${as_root[@]}" apt-get update -q
  find_missing
fi

if [ ${#passed_over[@]} -gt 0 ]; then say "not offered here, done without: ${passed_over[*]}"; fi
for name in "${absent[@]}"; do
  if [ "$name" = libtorch-dev ]; then
    die $EXIT_MACHINE "this system offers no libtorch-dev. Unpack a LibTorch archive (the cxx11-abi one, CPU or CUDA) or take the torch folder of a Python installation, and give it: --torch DIR"
  fi
  die $EXIT_MACHINE "this system offers no package $name; Debian 12 and Ubuntu 24.04 (with universe) do. Add the archive and run this again"
done
if [ ${#missing[@]} -eq 0 ]; then exit; fi
if [ -n "$dry_run" ]; then
  say "would install: ${missing[*]}"
  exit
fi

# A package with a service (prometheus) starts it at once; here it is a tool of the tests, so that is held back.
policy=/usr/sbin/policy-rc.d
policy_is_ours=
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy > /dev/null
  "${as_root[@]}" chmod 755 $policy
  policy_is_ours=yes
fi
remove_policy() { if [ -n "$policy_is_ours" ]; then "${as_root[@]}" rm -f $policy; fi; }
trap remove_policy EXIT

say "apt-get install ${missing[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l \
  apt-get install -y -q --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}"
say "installed ${#missing[@]} packages"
