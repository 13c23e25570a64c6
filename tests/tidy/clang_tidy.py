#!/usr/bin/env python3
"""Runs clang-tidy with the checks of .clang-tidy over files of ours, each with its own flags.

  tests/tidy/clang_tidy.py BUILD_DIR [--since REVISION] [FILE...]

  FILE...           these; none: every .cc of the tree that BUILD_DIR compiles (about 20 minutes on two cores)
  --since REVISION  those .cc that differ from REVISION, committed or not

Exit code 77: clang-tidy-14 is not installed, or nothing was configured in BUILD_DIR.
"""
import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
SKIPPED = 77


def changed_since(revision):
    names = subprocess.run(["git", "diff", "--name-only", revision], cwd=ROOT, capture_output=True, text=True, check=True)
    new = subprocess.run(["git", "ls-files", "-o", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(names.stdout.splitlines() + new.stdout.splitlines())


def check(program, build, path):
    done = subprocess.run([program, "-p", build, "--quiet", path], cwd=ROOT, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout[-4000:] or done.stderr[-4000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--since")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    program = shutil.which("clang-tidy-14")
    database = os.path.join(args.build, "compile_commands.json")
    if not program or not os.path.exists(database):
        print("skipped: clang-tidy-14 (package clang-tidy-14) or compile_commands.json is not there")
        return SKIPPED
    with open(database) as f:
        ours = {os.path.relpath(e["file"], ROOT) for e in json.load(f)}
    ours = {path for path in ours if path.endswith(".cc") and not path.startswith(("..", "build"))}
    if args.files:
        chosen = {os.path.relpath(os.path.abspath(f), ROOT) for f in args.files}
        if chosen - ours:
            print("not compiled in", args.build + ":", ", ".join(sorted(chosen - ours)))
            return 2
    else:
        chosen = ours & changed_since(args.since) if args.since else ours
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = [fault for fault in pool.map(lambda path: check(program, args.build, path), sorted(chosen)) if fault]
    print("\n".join(faults))
    print(f"clang-tidy: {len(chosen)} files, {len(faults)} with findings")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
