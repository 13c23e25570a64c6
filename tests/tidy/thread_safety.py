#!/usr/bin/env python3
"""Checks the lock annotations of base/mutex.h with clang: every member that a mutex guards is touched under it alone.

  tests/tidy/thread_safety.py BUILD_DIR

GCC builds the tree but ignores the annotations, so clang parses (no more) each file that reaches base/mutex.h, with the
flags of BUILD_DIR/compile_commands.json. The headers that three files of the same flags include are parsed once for all of them. Exit code 77: clang++-14 is not installed, or nothing was built there.
"""
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
ANY_INCLUDE = re.compile(r'^\s*#\s*include\s*(["<][^">]+[">])', re.M)
COMMON = 3  # files that include a header, for it to be parsed once
WARNINGS = ["-fsyntax-only", "-Wno-everything", "-Wthread-safety", "-Werror=thread-safety", "-Wno-unknown-warning-option"]
SKIPPED = 77


def reaches_mutex(path, seen):
    """Whether `path` includes base/mutex.h, through any of our headers. seen: {path: answer}."""
    if path not in seen:
        seen[path] = False
        full = os.path.join(ROOT, path)
        if os.path.exists(full):
            with open(full, errors="replace") as f:
                included = INCLUDE.findall(f.read())
            seen[path] = "base/mutex.h" in included or any([reaches_mutex(i, seen) for i in included])
    return seen[path]


def command_of(entry, clang):
    """The entry's own command with clang in the compiler's place, parsing only, and without GCC's precompiled headers."""
    words = shlex.split(entry["command"])
    while not words[0].startswith("-") and re.search(r"ccache|\+\+|cc$|c\+\+", os.path.basename(words[0])):
        words.pop(0)
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("-o", "-MF", "-MT", "-include"):
            skip = True
        elif word not in ("-c", "-MD", "-fpch-preprocess", "-Winvalid-pch") and not word.startswith(("-fsanitize", "-g", "--param")):
            kept.append(word)
    return [clang, *kept, *WARNINGS]


def check(entry, clang, parsed):
    """parsed: options that bring in what was parsed before."""
    words = command_of(entry, clang)
    done = subprocess.run([words[0], *parsed, *words[1:]], cwd=entry["directory"], capture_output=True, text=True)
    if done.returncode != 0 and parsed:  # what else was parsed may be in its way
        return check(entry, clang, [])
    return "" if done.returncode == 0 else done.stderr[-4000:]


def parse_common(entries, clang, out):
    """Parses the headers that several of `entries` include, all of the same flags, into the file `out`.

    Gives the options that bring it in; none where nothing is common, or it can't be parsed so.
    """
    count = {}
    for entry in entries:
        with open(entry["file"], errors="replace") as f:
            for header in set(ANY_INCLUDE.findall(f.read())):
                count[header] = count.get(header, 0) + 1
    common = sorted(header for header, files in count.items() if files >= COMMON)
    if not common:
        return []
    with open(out + ".h", "w") as f:
        f.writelines(f"#include {header}\n" for header in common)
    words = [w for w in command_of(entries[0], clang) if w not in (entries[0]["file"], "-fsyntax-only")]
    done = subprocess.run([*words, "-x", "c++-header", out + ".h", "-o", out], cwd=entries[0]["directory"], capture_output=True)
    return ["-include-pch", out] if done.returncode == 0 else []


def by_flags(entries, clang):
    groups = {}
    for entry in entries:
        flags = tuple(w for w in command_of(entry, clang) if w != entry["file"])
        groups.setdefault((entry["directory"], flags), []).append(entry)
    return list(groups.values())


def main():
    clang = shutil.which("clang++-14")
    database = os.path.join(sys.argv[1], "compile_commands.json")
    if not clang or not os.path.exists(database):
        print("skipped: clang++-14 or compile_commands.json is not there")
        return SKIPPED
    with open(database) as f:
        entries = json.load(f)
    seen = {}
    chosen = [e for e in entries if not os.path.relpath(e["file"], ROOT).startswith(("..", "worker/engine/", "tests/"))
              and reaches_mutex(os.path.relpath(e["file"], ROOT), seen)]
    groups = by_flags(chosen, clang)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        parsed = pool.map(lambda g: parse_common(groups[g], clang, os.path.join(folder, f"{g}.pch")), range(len(groups)))
        jobs = [(entry, options) for group, options in zip(groups, parsed) for entry in group]
        faults = [fault for fault in pool.map(lambda job: check(job[0], clang, job[1]), jobs) if fault]
    print("\n".join(faults))
    print(f"thread safety: {len(chosen)} files, {len(faults)} with errors")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
