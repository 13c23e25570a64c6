#!/usr/bin/env python3
"""Runs clang-tidy with the checks of .clang-tidy over files of ours, each with its own flags.

  tests/tidy/clang_tidy.py BUILD_DIR [--since REVISION | --part] [FILE...]

  FILE...           these; none: every .cc of the tree that BUILD_DIR compiles (about half an hour on two cores)
  --since REVISION  those .cc that differ from REVISION, committed or not, themselves or in their header
  --part            those that differ from what was landed last, then others, which each commit draws anew: a twentieth of the
                    tree in all, under three minutes on two cores. Tests are looked at when they are
                    touched. Findings in the others are printed and fail nothing: they are not this change's. This is what CI and the test of
                    -DISTHMUS_CLANG_TIDY=ON run

Findings are printed as they come. Exit code 1: there are some; 2: clang-tidy-14 is not installed, or nothing was configured in BUILD_DIR.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PARTS = 20  # --part takes one of so many
GCC_ONLY = re.compile(r"--param=|-fpch-preprocess$|-Winvalid-pch$")


def git(*arguments):
    """What git says; "" where it knows nothing, as in an archive without history."""
    done = subprocess.run(["git", "-c", f"safe.directory={ROOT}", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def changed_since(revision):
    return set(git("diff", "--name-only", revision).splitlines() + git("ls-files", "-o", "--exclude-standard").splitlines())


def last_landed():
    """The revision that the newest work was added to: where it left origin/main, or else the commit before it. "" if not known."""
    head = git("rev-parse", "HEAD").strip()
    for words in (("merge-base", "origin/main", "HEAD"), ("rev-parse", "--quiet", "--verify", "HEAD^")):
        revision = git(*words).strip()
        if revision and revision != head:
            return revision
    return ""


def touched(ours, changed):
    """Those of `ours` that changed, or whose header of the same name did."""
    return {path for path in ours if path in changed or path[:-len("cc")] + "h" in changed}


def choose_part(ours, changed, draw):
    """A twentieth of `ours` at most: what was touched first, then others that are no tests, as the text `draw` says."""
    first = touched(ours, changed)
    others = {path for path in ours - first if not path.startswith("tests/")}
    order = sorted(first | others, key=lambda path: (path not in first, hashlib.sha256(f"{draw} {path}".encode()).digest()))
    return set(order[:-(-len(ours) // PARTS)])


def without_gcc_options(command):
    """The command without what clang does not know: GCC's own options, and its precompiled headers."""
    words = shlex.split(command)
    pch = {i + k for i, word in enumerate(words[:-1]) if word == "-include" and "cmake_pch" in words[i + 1] for k in (0, 1)}
    return shlex.join(word for i, word in enumerate(words) if i not in pch and not GCC_ONLY.match(word))


def check(program, database, path):
    done = subprocess.run([program, "-p", database, "--quiet", path], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return True
    print(done.stdout[-4000:] or done.stderr[-4000:], flush=True)
    return False


def check_all(program, entries, chosen, binding):
    """1 where one of `binding` has findings."""
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        with open(os.path.join(folder, "compile_commands.json"), "w") as f:
            json.dump([{**e, "command": without_gcc_options(e["command"])} for e in entries], f)
        order = sorted(chosen)
        faults = {path for path, good in zip(order, pool.map(lambda path: check(program, folder, path), order)) if not good}
    print(f"clang-tidy: {len(chosen)} files, {len(faults)} with findings" + (f", {len(faults - binding)} of them not touched" if faults - binding else ""))
    return 1 if faults & binding else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--since")
    parser.add_argument("--part", action="store_true")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    program = shutil.which("clang-tidy-14")
    database = os.path.join(args.build, "compile_commands.json")
    if not program:
        print("clang-tidy-14 is not installed: deploy/setup.sh --tests, or apt-get install clang-tidy-14")
        return 2
    if not os.path.exists(database):
        print(f"{database} is not there: give the folder of a build, such as build")
        return 2
    with open(database) as f:
        entries = json.load(f)
    ours = {os.path.relpath(e["file"], ROOT) for e in entries}
    ours = {path for path in ours if path.endswith(".cc") and not path.startswith(("..", "build"))}
    if args.files:
        chosen = {os.path.relpath(os.path.abspath(f), ROOT) for f in args.files}
        if chosen - ours:
            print("not compiled in", args.build + ":", ", ".join(sorted(chosen - ours)))
            return 2
    elif args.part:
        landed = last_landed()
        if not landed:
            print("clang-tidy: git knows no revision before this one, so which files were touched is not known")
        changed = changed_since(landed) if landed else set()
        chosen = choose_part(ours, changed, git("rev-parse", "HEAD"))
        return check_all(program, entries, chosen, touched(ours, changed))
    elif args.since:
        if not git("rev-parse", "--verify", "--quiet", args.since + "^{commit}"):
            print(f"--since {args.since}: git knows no such revision here")
            return 2
        chosen = touched(ours, changed_since(args.since))
    else:
        chosen = ours
    return check_all(program, entries, chosen, chosen)


if __name__ == "__main__":
    sys.exit(main())
