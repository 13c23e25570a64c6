#!/usr/bin/env bash
# Builds and runs every fuzz target for SECONDS each (default 60): tests/fuzz/run.sh [BUILD_DIR] [SECONDS]
# Findings lie in BUILD_DIR/findings; new inputs that reach new code go to BUILD_DIR/corpus, not into the tree.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build-fuzz}
seconds=${2:-60}
clang=$(command -v clang++-14 || command -v clang++)
cmake -G Ninja -B "$build" -DCMAKE_CXX_COMPILER="$clang" -DCMAKE_C_COMPILER="${clang/++/}" -DISTHMUS_FUZZ=ON -DISTHMUS_NET=OFF -DISTHMUS_ENGINE=OFF \
  -DISTHMUS_BENCH=OFF -DISTHMUS_SANITIZE=address,undefined -DCMAKE_CXX_FLAGS="-fsanitize=fuzzer-no-link -fno-sanitize-recover=all" >/dev/null
targets=$(sed -n 's/^set(fuzz_targets \(.*\))/\1/p' tests/fuzz/CMakeLists.txt)
ninja -C "$build" -j2 $(for t in $targets; do echo "${t}_fuzz"; done)
mkdir -p "$build/findings"
for t in $targets; do
  mkdir -p "$build/corpus/$t"
  echo "== $t, $seconds s"
  "$build/bin/${t}_fuzz" -max_total_time="$seconds" -max_len=4096 -print_final_stats=1 -artifact_prefix="$build/findings/$t-" \
    "$build/corpus/$t" "tests/fuzz/corpus/$t" 2>&1 | grep -E 'ERROR|SUMMARY|stat::number_of|DONE|Assert' || true
done
[ -z "$(ls -A "$build/findings")" ] || { echo "findings: $(ls "$build/findings")"; exit 1; }
echo "no findings"
