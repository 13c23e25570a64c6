#!/usr/bin/env bash
# Builds every fuzz target and runs each for SECONDS, as many at once as there are cores; .ci/run gives them 10 s.
#
#   tests/fuzz/run.sh [BUILD_DIR [SECONDS [TARGET...]]]      [build-fuzz 60 all]
#
# Findings lie in BUILD_DIR/findings, logs in BUILD_DIR/logs; inputs that reach new code go to BUILD_DIR/corpus, not into the tree.
# Exit code 1: a finding, a target that ended early, or one that ran nothing.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^#\( \|$\)//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
build=${1:-build-fuzz}
seconds=${2:-60}
shift $(($# < 2 ? $# : 2))
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  read -ra targets < <(sed -n 's/^set(fuzz_targets \(.*\))/\1/p' tests/fuzz/CMakeLists.txt)
fi
clang=$(command -v clang++-14 || command -v clang++)
cmake -G Ninja -B "$build" -DCMAKE_CXX_COMPILER="$clang" -DCMAKE_C_COMPILER="${clang/++/}" -DISTHMUS_FUZZ=ON -DISTHMUS_NET=OFF -DISTHMUS_ENGINE=OFF \
  -DISTHMUS_BENCH=OFF -DISTHMUS_SANITIZE=address,undefined -DCMAKE_CXX_FLAGS="-fsanitize=fuzzer-no-link -fno-sanitize-recover=all" > /dev/null
ninja -C "$build" -j "$(nproc)" "${targets[@]/%/_fuzz}"
mkdir -p "$build/findings" "$build/logs"

run_one() { # BUILD SECONDS TARGET
  local log=$1/logs/$3.log executions
  mkdir -p "$1/corpus/$3"
  if ! "$1/bin/$3_fuzz" -max_total_time="$2" -max_len=4096 -print_final_stats=1 -artifact_prefix="$1/findings/$3-" \
    "$1/corpus/$3" "tests/fuzz/corpus/$3" > "$log" 2>&1; then
    grep -E 'ERROR|SUMMARY|Assert|runtime error' "$log" || tail -n 5 "$log"
    echo "$3: FAILED, see $log and $1/findings"
    return 1
  fi
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  echo "$3: ${executions:-0} inputs in $2 s"
  [ "${executions:-0}" -gt 0 ]
}
export -f run_one
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'run_one "$@"' run_one "$build" "$seconds" {} ||
  { echo "fuzzing failed"; exit 1; }
[ -z "$(ls -A "$build/findings")" ] || { echo "findings: $(ls "$build/findings")"; exit 1; }
echo "no findings"
