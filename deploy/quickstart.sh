#!/usr/bin/env bash
# From a bare machine to a trained model: installs, builds, fetches a text, then trains a GPT on it with a coordinator and
# daemons as separate processes on an emulated wide-area network. Ends with a table and the path of summary.json.
#
#   deploy/quickstart.sh [--nodes N] [--links TABLE] [--steps N] [--torch DIR] [--no-setup] [--json]
#
#   --nodes N      daemons, at least the four stages of the job [4]
#   --links TABLE  a link table: a preset of `isthmus-wan presets`, or a CSV file [regions]
#   --steps N      optimiser steps instead of the job's own (deploy/jobs/quickstart.yaml)
#   --torch DIR    a LibTorch of your own instead of Debian's
#   --no-setup     install nothing
#   --json         the figures as JSON on stdout, everything else on stderr
#
# The emulator needs root and /dev/net/tun: without root, sudo is used, and asked first.
set -euo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "$0")/lib.sh"

nodes=4
links=regions
steps=
torch=()
setup=yes
json=
while [ $# -gt 0 ]; do
  case $1 in
    --nodes) need_value "$1" $#; nodes=$2; shift ;;
    --links) need_value "$1" $#; links=$2; shift ;;
    --steps) need_value "$1" $#; steps=$2; shift ;;
    --torch) need_value "$1" $#; torch=(--torch "$2"); shift ;;
    --no-setup) setup= ;;
    --json) json=yes ;;
    -h | --help) print_help; exit ;;
    *) die $EXIT_USAGE "unknown option $1; --help lists them" ;;
  esac
  shift
done
for number in "$nodes" "${steps:-1}"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] || die $EXIT_USAGE "$number: --nodes and --steps take whole numbers from 1"
done

# What the emulator needs, asked before minutes are spent on building.
[ -c /dev/net/tun ] || die $EXIT_MACHINE "/dev/net/tun is not there, and the emulated network needs it: run 'modprobe tun', or start this container with --device /dev/net/tun --cap-add NET_ADMIN --cap-add SYS_ADMIN"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo > /dev/null || die $EXIT_MACHINE "network namespaces need root; run this script as root, or install sudo"
  say "not root: the emulated network is started through sudo, which may ask for your password"
  sudo -v
  as_root=(sudo)
fi

cd "$ISTHMUS_ROOT"
exec 3>&1
if [ -n "$json" ]; then exec 1>&2; fi

if [ -n "$setup" ]; then deploy/setup.sh "${torch[@]}"; fi
deploy/build.sh "${torch[@]}"
deploy/fetch-data.sh data --only bible

run_dir=$ISTHMUS_ROOT/build/quickstart
"${as_root[@]}" rm -rf "$run_dir"
mkdir -p "$run_dir"
job=$ISTHMUS_ROOT/deploy/jobs/quickstart.yaml
if [ -n "$steps" ]; then
  sed -E "s/^( *)steps:.*/\1steps: $steps/; s/([{,] *)steps: *[0-9]+/\1steps: $steps/" "$job" > "$run_dir/job.yaml"
  job=$run_dir/job.yaml
fi

# From here on where the user stands, so that what is printed are paths that they can use.
cd "$ISTHMUS_CALLER"
run_dir=$(shown "$run_dir")
say "training across $nodes hosts of link table $links, logs in $run_dir"
testnet=("${as_root[@]}" "$(shown "$ISTHMUS_ROOT/build/bin/isthmus")" testnet --nodes "$nodes" --links "$links"
  --data-dir "$(shown "$ISTHMUS_ROOT/data")" --run-dir "$run_dir" --summary "$run_dir/summary.json" "$(shown "$job")")
if [ -n "$json" ]; then
  "${testnet[@]}" --json >&3
else
  "${testnet[@]}"  # its last line names summary.json
fi
