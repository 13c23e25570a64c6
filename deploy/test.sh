#!/usr/bin/env bash
# Installs what the tests use, builds everything, and runs every test through ctest, whose closing lines end the output.
#
#   deploy/test.sh [--preset NAME] [-R REGEX] [--torch DIR] [--no-setup] [-j N] [-- CTEST OPTION...]
#
#   --preset NAME  asan, ubsan, tsan, ... of CMakePresets.json [release]
#   -R REGEX       only the tests whose name matches
#   --torch DIR    a LibTorch of your own instead of Debian's
#   --no-setup     install nothing
#   -j N           tests at once [one more than cores: end-to-end tests mostly wait]; compilers at once are chosen by deploy/build.sh
set -euo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "$0")/lib.sh"

preset=release
setup=yes
jobs=$(($(nproc) + 1))
torch=()
ctest_args=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) need_value "$1" $#; preset=$2; shift ;;
    -R) need_value "$1" $#; ctest_args+=(-R "$2"); shift ;;
    --torch) need_value "$1" $#; torch=(--torch "$2"); shift ;;
    --no-setup) setup= ;;
    -j) need_value "$1" $#; jobs=$2; shift ;;
    --) shift; ctest_args+=("$@"); break ;;
    -h | --help) print_help; exit ;;
    *) die $EXIT_USAGE "unknown option $1; --help lists them" ;;
  esac
  shift
done

cd "$ISTHMUS_ROOT"
here=$ISTHMUS_ROOT/deploy
if [ -n "$setup" ]; then
  "$here/setup.sh" --tests "${torch[@]}"
  # The independent readers of checkpoints are Python packages; they get a folder of their own.
  if ! .venv/bin/python -c 'import numpy, safetensors, tokenizers, transformers, yaml' 2> /dev/null; then
    say "python packages of tests/requirements.txt into .venv"
    rm -rf .venv
    /usr/bin/python3 -m venv --system-site-packages .venv
    .venv/bin/python -m pip install -q --disable-pip-version-check -r tests/requirements.txt
  fi
fi
"$here/build.sh" --tests --preset "$preset" "${torch[@]}"

run=()
case $preset in asan | tsan) run=(setarch "$(uname -m)" -R) ;; esac
say "ctest, $jobs at once"
"${run[@]}" ctest --preset "$preset" -j "$jobs" "${ctest_args[@]}"
