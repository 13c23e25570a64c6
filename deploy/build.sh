#!/usr/bin/env bash
# Configures and builds Isthmus into build/ (or the build folder of a preset).
#
#   deploy/build.sh [--torch DIR | --cuda DIR] [--preset NAME] [--tests] [-j N] [TARGET...]
#
#   --torch DIR    a LibTorch of your own instead of Debian's; remembered in the build folder
#   --cuda DIR     what deploy/setup.sh --cuda DIR fetched: LibTorch with CUDA, and kernels of Isthmus for this host's GPU;
#                  remembered in the build folder
#   --preset NAME  one of CMakePresets.json, `cmake --list-presets` names them [release]
#   --tests        build everything, tests and benchmarks too [the programs alone]
#   -j N           compilers at once [as many as cores and memory carry]
set -euo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "$0")/lib.sh"

preset=release
torch_args=()
jobs=$(build_jobs)
targets=()
everything=
while [ $# -gt 0 ]; do
  case $1 in
    --torch)
      need_value "$1" $#
      torch_lines=$(torch_cmake_args "$2")
      mapfile -t torch_args <<< "$torch_lines"
      shift
      ;;
    --cuda)
      need_value "$1" $#
      torch_lines=$(torch_cmake_args "$2/torch")
      mapfile -t torch_args <<< "$torch_lines"
      if [ ! -x "$2/nvidia/cu13/bin/nvcc" ]; then
        die $EXIT_USAGE "--cuda $2: no nvidia/cu13/bin/nvcc there; deploy/setup.sh --cuda $2 fetches it"
      fi
      cuda=$(cd "$2/nvidia/cu13" && pwd)
      torch_args+=(-DISTHMUS_CUDA=ON "-DCMAKE_CUDA_COMPILER=$cuda/bin/nvcc" "-DCUDAToolkit_ROOT=$cuda")
      shift
      ;;
    --preset) need_value "$1" $#; preset=$2; shift ;;
    --tests) everything=yes ;;
    -j) need_value "$1" $#; jobs=$2; shift ;;
    -h | --help) print_help; exit ;;
    -*) die $EXIT_USAGE "unknown option $1; --help lists them" ;;
    *) targets+=("$1") ;;
  esac
  shift
done
if [ ${#targets[@]} -eq 0 ] && [ -z "$everything" ]; then targets=(isthmus_programs); fi
command -v cmake > /dev/null || die $EXIT_MACHINE "cmake was not found; run deploy/setup.sh first"

# Sanitizers of GCC 12 lose their shadow memory where the kernel randomises addresses widely.
run=()
case $preset in asan | tsan) run=(setarch "$(uname -m)" -R) ;; esac

cd "$ISTHMUS_ROOT"
say "configuring preset $preset, then building with $jobs jobs"
cmake --preset "$preset" "${torch_args[@]}" > /tmp/isthmus-configure.$$ 2>&1 || {
  cat /tmp/isthmus-configure.$$ >&2
  rm -f /tmp/isthmus-configure.$$
  die $EXIT_FAILURE "cmake could not configure, the reason is above; deploy/setup.sh installs every package that may be missing"
}
rm -f /tmp/isthmus-configure.$$
build() { "${run[@]}" cmake --build --preset "$preset" -j "$1" ${targets[@]+--target "${targets[@]}"}; }
# What failed for want of memory passes with one compiler alone; what is wrong fails again.
build "$jobs" || {
  say "a step failed, its lines are above; once more with one job, in case the machine was short of memory"
  build 1
}
