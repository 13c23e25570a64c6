#!/usr/bin/env bash
# Builds the codecs with CUDA, tests them against the CPU's, and measures them: tests/gpu/run.sh [BUILD_DIR] [-D...]
# Needs nvcc, a device, and the packages of the codecs; neither gRPC nor LibTorch. On Debian or Ubuntu:
#   apt-get install cmake ninja-build g++ pkg-config libprotobuf-dev protobuf-compiler libabsl-dev libzstd-dev libxxhash-dev libhwy-dev \
#     libspdlog-dev nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev
# A host that has no such packages: unpack them into a folder (apt-get download; dpkg -x PACKAGE FOLDER) and set PREFIX=FOLDER.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# //p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
build=build-cuda
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then build=$1; shift; fi
nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[ -x "$nvcc" ] || { echo "tests/gpu/run.sh: no nvcc on the PATH nor in /usr/local/cuda/bin; set CUDACXX" >&2; exit 1; }
nvidia-smi -L > /dev/null 2>&1 || { echo "tests/gpu/run.sh: nvidia-smi lists no device on this host, and all that is here needs one" >&2; exit 1; }
options=(-DCMAKE_CUDA_COMPILER="$nvcc" -DISTHMUS_ENGINE=OFF)
if [ -n "${PREFIX:-}" ]; then
  PREFIX=$(cd "$PREFIX" && pwd)
  libraries=$PREFIX/usr/lib/$(uname -m)-linux-gnu
  export PKG_CONFIG_SYSROOT_DIR=$PREFIX PKG_CONFIG_PATH=$libraries/pkgconfig:$PREFIX/usr/share/pkgconfig
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$PREFIX/usr/bin:$PATH
  options+=(-DCMAKE_PREFIX_PATH="$PREFIX/usr" -DCMAKE_INCLUDE_PATH="$PREFIX/usr/include" -DCMAKE_LIBRARY_PATH="$libraries"
    -DCMAKE_CXX_FLAGS="-isystem $PREFIX/usr/include" -DCMAKE_EXE_LINKER_FLAGS="-L$libraries -Wl,-rpath-link,$libraries")
fi
echo "configures and builds in $build: some minutes on few cores"
mkdir -p "$build"
cmake --preset cuda -B "$build" "${options[@]}" "$@" >"$build/configure.log" 2>&1 || { cat "$build/configure.log" >&2; exit 1; }
cmake --build "$build" -j "$(nproc)" --target gpu_test gpu_bench -- --quiet
"$build/bin/gpu_test" --gtest_brief=1
"$build/bin/gpu_bench" 1 4 8 32
