#!/usr/bin/env bash
# Builds the codecs and the engine with CUDA, tests them against the CPU's, and measures them: tests/gpu/run.sh [BUILD_DIR] [-D...]
# PARTS="tests engine codecs": what runs; engine and codecs are the two benchmarks, `xl48` the engine's with GPT2-XL at its full depth, `daemons` two
# daemons on the card, or on two where they are there, through the command line, and `loopback` their benchmark (gpu_daemons_bench.py); these two need
# gRPC and all that deploy/setup.sh brings. ENGINE=0 leaves out all that needs LibTorch.
# Needs nvcc, a device, the packages of the codecs, and for the engine python3 with torch (its LibTorch is built against, and PyTorch is the
# yardstick of the benchmark) or -DTorch_DIR=<torch>/share/cmake/Torch; no gRPC but for `daemons`. On Debian or Ubuntu:
#   apt-get install cmake ninja-build g++ pkg-config libprotobuf-dev protobuf-compiler libabsl-dev libzstd-dev libxxhash-dev libhwy-dev \
#     libspdlog-dev nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev
# A host that has no such packages: unpack them into a folder (apt-get download; dpkg -x PACKAGE FOLDER) and set PREFIX=FOLDER.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# //p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
build=build-cuda
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then build=$1; shift; fi
parts=" ${PARTS:-tests engine codecs} "
nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[ -x "$nvcc" ] || { echo "tests/gpu/run.sh: no nvcc on the PATH nor in /usr/local/cuda/bin; set CUDACXX" >&2; exit 1; }
nvidia-smi -L > /dev/null 2>&1 || { echo "tests/gpu/run.sh: nvidia-smi lists no device on this host, and all that is here needs one" >&2; exit 1; }
options=(-DCMAKE_CUDA_COMPILER="$nvcc" -DISTHMUS_ENGINE_JOBS="$(nproc)")
targets=(gpu_test gpu_bench)
if [ "${ENGINE:-1}" = 1 ]; then
  targets+=(engine_test gpt_rank_test gpu_engine_bench gpu_session_bench)
  case "$*" in *Torch_DIR*) ;; *)
    torch=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)') || { echo "tests/gpu/run.sh: python3 has no torch; give -DTorch_DIR=..., or ENGINE=0" >&2; exit 1; }
    options+=(-DTorch_DIR="$torch/Torch") ;;
  esac
else
  options+=(-DISTHMUS_ENGINE=OFF)
fi
case $parts in *" daemons "* | *" loopback "*)
  options+=(-DISTHMUS_NET=ON)
  targets+=(isthmus_programs) ;;
esac
if [ -n "${PREFIX:-}" ]; then
  PREFIX=$(cd "$PREFIX" && pwd)
  libraries=$PREFIX/usr/lib/$(uname -m)-linux-gnu
  export PKG_CONFIG_SYSROOT_DIR=$PREFIX PKG_CONFIG_PATH=$libraries/pkgconfig:$PREFIX/usr/share/pkgconfig
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$PREFIX/usr/bin:$PATH
  options+=(-DCMAKE_PREFIX_PATH="$PREFIX/usr" -DCMAKE_INCLUDE_PATH="$PREFIX/usr/include" -DCMAKE_LIBRARY_PATH="$libraries"
    -DCMAKE_CXX_FLAGS="-isystem $PREFIX/usr/include" -DCMAKE_EXE_LINKER_FLAGS="-L$libraries -Wl,-rpath-link,$libraries")
fi
engine_head() {
  echo "| program | shape | precision | stages | ms a step | tokens/s | share of 989 TFLOP/s | GiB at most | where | loss |"
  echo "|---|---|---|---|---|---|---|---|---|---|"
}
echo "configures and builds in $build: some minutes on few cores"
mkdir -p "$build"
cmake --preset cuda -B "$build" "${options[@]}" "$@" >"$build/configure.log" 2>&1 || { cat "$build/configure.log" >&2; exit 1; }
cmake --build "$build" -j "$(nproc)" --target "${targets[@]}" -- --quiet
case $parts in *" tests "*)
  "$build/bin/gpu_test" --gtest_brief=1
  if [ "${ENGINE:-1}" = 1 ]; then "$build/bin/engine_test" --gtest_brief=1; "$build/bin/gpt_rank_test" --gtest_brief=1 --gtest_filter='*Device*'; fi ;;
esac
case $parts in *" engine "*)
  if [ "${ENGINE:-1}" = 1 ]; then
    engine_head
    start=$(mktemp)
    for shape in 124m xl; do
      "$build/bin/gpu_engine_bench" $shape start "$start"
      for precision in bf16 tf32 fp32; do
        "$build/bin/gpu_engine_bench" $shape $precision
        ISTHMUS_START=$start python3 tests/bench/gpu_engine_torch.py $shape $precision
      done
      ISTHMUS_START=$start python3 tests/bench/gpu_engine_torch.py $shape bf16 compile
      "$build/bin/gpu_engine_bench" $shape bf16 2
      "$build/bin/gpu_engine_bench" $shape bf16 1 recompute
    done
    echo "| forward, backward, tied | samples a step | stage | ms a step | tokens/s | compute | waits to receive | to send | exchange and vote | encode | decode |"
    echo "|---|---|---|---|---|---|---|---|---|---|---|"
    rm -f "$start"
    "$build/bin/gpu_session_bench" none none none
    "$build/bin/gpu_session_bench" bf16 bf16 bf16
    "$build/bin/gpu_session_bench" 'delta(quant(4))' 'quant(6)' bf16
    "$build/bin/gpu_session_bench" 'delta(quant(4))' 'quant(6)' bf16 512
  fi ;;
esac
case $parts in *" xl48 "*)
  engine_head
  for mode in "" recompute; do
    "$build/bin/gpu_engine_bench" xl48 bf16 1 $mode
    python3 tests/bench/gpu_engine_torch.py xl48 bf16 $mode
  done ;;
esac
case $parts in *" daemons "*) ISTHMUS_BIN="$build/bin" python3 tests/gpu/daemons_test.py ;; esac
case $parts in *" loopback "*) ISTHMUS_BIN="$build/bin" python3 tests/bench/gpu_daemons_bench.py ;; esac
case $parts in *" codecs "*) "$build/bin/gpu_bench" 1 4 8 32 ;; esac
