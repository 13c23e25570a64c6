#!/usr/bin/env bash
# Builds the Debian packages isthmus, isthmusd and isthmus-coordinator into build/packages/. Install them with
# apt install ./build/packages/*.deb, which brings the libraries they need.
#
#   deploy/package.sh [--torch DIR] [--no-build]
#
#   --torch DIR  a LibTorch of your own (the package isthmusd then runs only where it lies at the same place)
#   --no-build   package what build/ holds
set -euo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "$0")/lib.sh"

build=yes
torch=()
while [ $# -gt 0 ]; do
  case $1 in
    --torch) need_value "$1" $#; torch=(--torch "$2"); shift ;;
    --no-build) build= ;;
    -h | --help) print_help; exit ;;
    *) die $EXIT_USAGE "unknown option $1; --help lists them" ;;
  esac
  shift
done
for tool in dpkg-shlibdeps dpkg-deb; do
  command -v "$tool" > /dev/null || die $EXIT_MACHINE "$tool was not found: apt-get install dpkg-dev"
done
if [ -n "$build" ]; then "$ISTHMUS_ROOT/deploy/build.sh" "${torch[@]}"; fi
cd "$ISTHMUS_ROOT/build"
rm -rf packages/_CPack_Packages
# What other projects' packages say on the way is no news.
cpack -G DEB > cpack.log 2>&1 || { cat cpack.log >&2; die $EXIT_FAILURE "cpack could not make the packages, the reason is above"; }
rm -rf packages/_CPack_Packages
for package in "$PWD"/packages/*.deb; do shown "$package"; echo; done
