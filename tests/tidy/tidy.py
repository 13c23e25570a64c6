#!/usr/bin/env python3
"""Checks what the compiler does not: who includes whom, where heavy headers may be, sizes, tests, format.

  tests/tidy/tidy.py [ROOT] [--fix] [--update] [--accept]

  --fix     run clang-format on every C++ file first
  --update  lower the ratchet to what the tree has reached
  --accept  raise it too: a deliberate exception, to be justified in the commit message

A rule of the kind "at most" or "every" may have exceptions, kept in tests/tidy/ratchet.json with the size they have now.
They may shrink, never grow. Rules about includes have no exceptions.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cpp_functions import cpp_functions, python_functions, strip_comments_and_strings  # noqa: E402

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 100

# Room -> rooms it may include. A folder named here is a room of its own (the longest prefix counts).
MAY_INCLUDE = {
    "base": {"base"},
    "base/rpc": {"base", "base/rpc", "proto"},
    "proto": {"base", "proto"},
    "compress": {"base", "proto", "compress"},
    "worker": {"base", "proto", "compress", "worker", "worker/engine"},
    "worker/engine": {"base", "proto", "compress", "worker", "worker/engine"},
    "worker/study": {"base", "proto", "compress", "worker", "worker/engine", "worker/study"},
    "daemon/net": {"base", "base/rpc", "proto", "worker", "daemon/net"},
    "daemon/state": {"base", "proto", "worker", "daemon/state"},
    "daemon": {"base", "base/rpc", "proto", "compress", "worker", "worker/engine", "daemon", "daemon/net", "daemon/state"},
    "coordinator/core": {"base", "proto", "coordinator/core"},
    "coordinator/planner": {"base", "proto", "coordinator/core", "coordinator/planner"},
    "coordinator/store": {"base", "proto", "coordinator/core", "coordinator/store"},
    "coordinator": {"base", "base/rpc", "proto", "coordinator", "coordinator/core", "coordinator/planner",
                    "coordinator/store"},
    "deploy/testnet": {"base", "proto", "deploy/testnet"},
}

# Heavy header -> the rooms that may include it, and whether one .cc has to be its only door.
DOORS = [
    ("LibTorch", re.compile(r"^(torch|ATen|c10)/"), {"worker/engine"}, False),
    ("gRPC", re.compile(r"^grpc|\.grpc\.pb\.h$"), {"base/rpc", "daemon", "daemon/net", "coordinator"}, False),
    ("cpp-httplib", re.compile(r"^httplib\.h$"), {"base"}, True),
    ("prometheus-cpp", re.compile(r"^prometheus/"), {"base"}, True),
    ("yaml-cpp", re.compile(r"^yaml-cpp/"), {"coordinator"}, True),
    ("SQLite", re.compile(r"^sqlite3\.h$"), {"coordinator/store"}, True),
    ("OpenSSL", re.compile(r"^openssl/"), {"base"}, False),
    ("spdlog", re.compile(r"^spdlog/"), {"base"}, True),
]
# These may be in any .cc, but a header that includes them charges every reader.
NEVER_IN_HEADERS = re.compile(r"^(nlohmann/|CLI/|fstream$|iostream$|regex$)")

# Bare std::mutex escapes the clang annotations; absl::Mutex makes ThreadSanitizer report races that are none.
MUTEX = re.compile(r"\b(std::(recursive_|shared_|timed_)?mutex|absl::Mutex|std::lock_guard|std::unique_lock)\b")
# A deadline that is summed by hand overflows where the timeout is infinite; SteadyAfter does not.
HAND_DEADLINE = re.compile(r"\bnow\(\)\s*\+\s*absl::ToChrono")
# Waits and ages are steady (base/clock.h). What people read may have the wall clock, as Unix time.
WALL_CLOCK = re.compile(r"(?<!ToUnixMillis\()absl::Now\(\)|\bsystem_clock\b|\bCLOCK_REALTIME\b|\bgettimeofday\b")
# Takes 030 for 24, 0x1e and +30 for numbers, NaN for one in any range.
LOOSE_NUMBER = re.compile(r"\bCLI::(Range|Bound|PositiveNumber|NonNegativeNumber|Number)\b")
SLEEP = re.compile(r"\b(sleep_for|sleep_until|absl::SleepFor|usleep)\b")
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|XX[X]|HA[C]K)\b|^(<{7}|>{7}) ", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.M)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")

TEXT = (".h", ".cc", ".cu", ".cuh", ".proto", ".py", ".sh", ".cmake", ".md", ".txt", ".yaml", ".yml", ".json", ".html",
        ".service", ".csv")


def room_of(path):
    best = ""
    for room in MAY_INCLUDE:
        if path.startswith(room + "/") and len(room) > len(best):
            best = room
    return best


def is_cpp(path):
    return path.endswith((".h", ".cc", ".cu", ".cuh"))


class Tree:
    """The files of a source tree, read once."""

    def __init__(self, root):
        self.root = root
        self.text = {}
        for path in self._list():
            full = os.path.join(root, path)
            if (path.endswith(TEXT) or "." not in os.path.basename(path)) and os.path.isfile(full):
                with open(full, "rb") as f:
                    raw = f.read()
                if b"\0" not in raw:
                    self.text[path] = raw.decode("utf-8", "replace")
        self.cpp = sorted(p for p in self.text if is_cpp(p))

    def _list(self):
        git = subprocess.run(["git", "-C", self.root, "ls-files", "-co", "--exclude-standard"],
                             capture_output=True, text=True)
        if git.returncode == 0 and git.stdout:
            return git.stdout.splitlines()
        found = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = [d for d in folders if not d.startswith((".", "build"))]
            found += [os.path.relpath(os.path.join(folder, f), self.root) for f in files]
        return found


class Findings:
    """What is wrong, and what the ratchet lets pass."""

    def __init__(self, ratchet):
        self.ratchet = ratchet
        self.now = {}       # the ratchet as the tree would have it today
        self.errors = []

    def error(self, path, line, message):
        self.errors.append(f"{path}:{line}: {message}")

    def capped(self, rule, key, size, line, message):
        """An excess of `size` over a cap; passes while the ratchet allows as much."""
        self.now.setdefault(rule, {})[key] = size
        allowed = self.ratchet.get(rule, {}).get(key, 0)
        if size > allowed:
            path = key.split("#")[0]
            grown = f" (the ratchet allows {allowed})" if allowed else ""
            self.error(path, line, message + grown)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def check_includes(tree, found):
    doors = {}
    for path in tree.cpp:
        room = room_of(path)
        for match in INCLUDE.finditer(tree.text[path]):
            name, line = match.group(2), line_of(tree.text[path], match.start())
            if room and match.group(1) == '"':
                check_direction(path, room, name, line, found)
            check_doors(path, room, name, line, doors, found)
    for (what, _), places in doors.items():
        if len(places) > 1:
            for path in sorted(places)[1:]:
                found.error(path, places[path], f"{what} already has its door in {sorted(places)[0]}; go through that one")


def check_direction(path, room, name, line, found):
    target = room_of(name)
    if name.startswith("tests/"):
        found.error(path, line, f"{name}: nothing outside tests/ includes a test's file")
    elif target and target not in MAY_INCLUDE[room]:
        allowed = ", ".join(sorted(MAY_INCLUDE[room]))
        found.error(path, line, f"{room}/ may not include {name}; it may include {allowed}")


def check_doors(path, room, name, line, doors, found):
    if path.startswith("tests/"):
        return
    for what, pattern, rooms, single in DOORS:
        if not pattern.search(name):
            continue
        if room not in rooms:
            found.error(path, line, f"{what} ({name}) belongs to {', '.join(sorted(rooms))} alone")
        elif single and path.endswith(".h"):
            found.error(path, line, f"{what} ({name}) may be in one .cc file, never in a header")
        elif single:
            doors.setdefault((what, room), {})[path] = line
    if path.endswith(".h") and NEVER_IN_HEADERS.search(name):
        found.error(path, line, f"<{name}> in a header makes every reader pay for it; move it into the .cc")


def check_sizes(tree, found):
    for path, text in sorted(tree.text.items()):
        if not (is_cpp(path) or path.endswith((".py", ".sh", ".proto"))):
            continue
        lines = text.count("\n")
        if lines > MAX_FILE_LINES:
            found.capped("file_lines", path, lines, 1, f"{lines} lines; {MAX_FILE_LINES} at most. Split it by meaning")
        functions = cpp_functions(text) if is_cpp(path) else python_functions(text) if path.endswith(".py") else []
        for name, start, end in functions:
            length = end - start + 1
            if length > MAX_FUNCTION_LINES:
                found.capped("function_lines", f"{path}#{name}", length, start,
                             f"{name} has {length} lines; {MAX_FUNCTION_LINES} at most. Name its parts")


def check_tests_exist(tree, found):
    tests = "\n".join(text for path, text in tree.text.items() if path.startswith("tests/") and is_cpp(path))
    for path in tree.cpp:
        if not path.endswith(".cc") or not room_of(path) or os.path.basename(path) == "main.cc":
            continue
        header = path[:-3] + ".h"
        if header not in tree.text:  # part of a class whose header has another name: the first own header counts
            own = [m.group(2) for m in INCLUDE.finditer(tree.text[path])
                   if m.group(2) in tree.text and room_of(m.group(2)) == room_of(path)]
            header = own[0] if own else header
        if f'"{header}"' not in tests:
            found.capped("untested", path, 1, 1, f"no file in tests/ includes \"{header}\"; each .cc has a test")


def check_tests_are_built(tree, found):
    """A test file that no target lists is never run, and nobody misses it."""
    for path in tree.cpp:
        if not path.startswith("tests/") or not path.endswith("_test.cc"):
            continue
        folder = os.path.dirname(path)
        while folder and f"{folder}/CMakeLists.txt" not in tree.text:
            folder = os.path.dirname(folder)
        lists = tree.text.get(f"{folder}/CMakeLists.txt")
        if lists is not None and not re.search(rf"(?<![\w/]){re.escape(os.path.relpath(path, folder))}\b", lists):
            found.error(path, 1, f"{folder}/CMakeLists.txt does not name it: it is never built")


def check_words(tree, found):
    for path, text in sorted(tree.text.items()):
        for match in UNFINISHED.finditer(text):
            found.error(path, line_of(text, match.start()), f"'{match.group(0).strip()}': finish it or file it, the tree has no notes to self")
        if "\r\n" in text:
            found.error(path, 1, "lines end in CR LF")
        if text and not text.endswith("\n") and path.endswith(TEXT):
            found.error(path, text.count("\n") + 1, "the last line has no end")
        if not is_cpp(path):
            continue
        code = strip_comments_and_strings(text)
        if path not in ("base/mutex.h",):
            for match in MUTEX.finditer(code):
                found.capped("mutex", path, len(MUTEX.findall(code)), line_of(code, match.start()),
                             f"{match.group(0)}: use base/mutex.h, which clang and ThreadSanitizer understand")
                break
        if room_of(path) and path != "base/metrics.cc":  # when this process started, for Prometheus
            for match in WALL_CLOCK.finditer(code):
                found.error(path, line_of(code, match.start()),
                            f"{match.group(0)}: a wall clock that is set moves it; waits, deadlines and ages take base/clock.h")
        for match in HAND_DEADLINE.finditer(code) if path != "base/clock.h" else ():
            found.error(path, line_of(code, match.start()), "a sum that overflows with an infinite timeout; SteadyAfter of base/clock.h has a bound")
        for match in LOOSE_NUMBER.finditer(code):
            found.error(path, line_of(code, match.start()), f"{match.group(0)} reads numbers as CLI11 does; Whole and Real are in base/number_flag.h")
        sleeps = SLEEP.findall(code)
        if sleeps and path.startswith("tests/") and not path.startswith(("tests/bench/", "tests/e2e/")):
            found.capped("sleeps", path, len(sleeps), line_of(code, SLEEP.search(code).start()),
                         "a test that sleeps is slow or flaky; wait for the event, with a deadline")


def check_headers(tree, found):
    for path in tree.cpp:
        text = tree.text[path]
        if not path.endswith(".h"):
            continue
        if not text.startswith("//"):
            found.error(path, 1, "a header starts with a comment: what it is, who owns it, Thread:, limits")
        guard = "ISTHMUS_" + re.sub(r"[^A-Za-z0-9]", "_", path).upper() + "_"
        if f"#ifndef {guard}\n#define {guard}\n" not in text and "foreach_target" not in text:
            found.error(path, 1, f"its include guard is {guard}")


def clang_format():
    """clang-format of the version the tree is formatted with, or nothing: others break lines elsewhere."""
    for program in ("clang-format-14", "clang-format"):
        try:
            version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
        except OSError:
            continue
        if " 14." in version:
            return program
    return None


def check_format(tree, found):
    program = clang_format()

    def unformatted(path):
        done = subprocess.run([program, "--style=file", path], cwd=tree.root, capture_output=True, text=True)
        return path if done.returncode == 0 and done.stdout != tree.text[path] else None

    if program:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            bad = {path for path in pool.map(unformatted, tree.cpp) if path}
    else:
        print("tidy: clang-format 14 is not here, so only the width of lines is checked")
        bad = set()
    for path in tree.cpp:
        wide = [i for i, line in enumerate(tree.text[path].split("\n"), 1) if len(line) > MAX_COLUMNS]
        if path in bad:
            found.capped("unformatted", path, 1, 1, "not as clang-format would have it; tests/tidy/tidy.py --fix")
        elif wide:
            found.capped("wide_lines", path, len(wide), wide[0], f"{len(wide)} lines are wider than {MAX_COLUMNS} columns")


def check_documents(tree, found):
    licence = tree.text.get("LICENSE", "")
    if "Apache License" not in licence:
        found.error("LICENSE", 1, "the licence is missing")
    for path, text in sorted(tree.text.items()):
        if not path.endswith(".md"):
            continue
        for match in LINK.finditer(text):
            target = match.group(1)
            if re.match(r"[a-z]+:", target):
                continue
            full = os.path.normpath(os.path.join(tree.root, os.path.dirname(path), target))
            if not os.path.exists(full):
                found.error(path, line_of(text, match.start()), f"the link to {target} leads nowhere")


def check_scripts(tree, found):
    """A script is started by its name, as documents show it."""
    for path, text in sorted(tree.text.items()):
        if text.startswith("#!") and not os.access(os.path.join(tree.root, path), os.X_OK):
            found.error(path, 1, "a script that nobody may execute: chmod +x, or leave its first line out")


CHECKS = [check_includes, check_sizes, check_tests_exist, check_tests_are_built, check_words, check_headers, check_format, check_documents, check_scripts]


def fix(root):
    program = clang_format()
    if not program:
        sys.exit("tidy: --fix needs clang-format 14 (package clang-format-14)")
    tree = Tree(root)
    subprocess.run([program, "--style=file", "-i"] + tree.cpp, cwd=root, check=True)


def merged(old, now, accept):
    """The ratchet after --update (never higher than before) or --accept."""
    result = {}
    for rule, sizes in sorted(now.items()):
        kept = {}
        for key, size in sorted(sizes.items()):
            before = old.get(rule, {}).get(key, 0)
            if accept or before:
                kept[key] = size if accept else min(size, before)
        if kept:
            result[rule] = kept
    return result


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", default=os.path.normpath(os.path.join(here, "..", "..")))
    for option in ("fix", "update", "accept"):
        parser.add_argument("--" + option, action="store_true")
    args = parser.parse_args()
    if args.fix:
        fix(args.root)
    ratchet_path = os.path.join(args.root, "tests", "tidy", "ratchet.json")
    ratchet = {}
    if os.path.exists(ratchet_path):
        with open(ratchet_path) as f:
            ratchet = json.load(f)
    tree = Tree(args.root)
    found = Findings(ratchet)
    for check in CHECKS:
        check(tree, found)
    new = merged(ratchet, found.now, args.accept)
    if args.update or args.accept:
        os.makedirs(os.path.dirname(ratchet_path), exist_ok=True)
        with open(ratchet_path, "w") as f:
            json.dump(new, f, indent=1, sort_keys=True)
            f.write("\n")
        if args.accept:
            found = Findings(new)
            for check in CHECKS:
                check(tree, found)
    elif new != ratchet and not found.errors:
        print("tidy: the tree is better than its ratchet; tests/tidy/tidy.py --update keeps it so")
    for error in sorted(found.errors):
        print(error)
    exceptions = sum(len(sizes) for sizes in found.now.values())
    print(f"tidy: {len(tree.text)} files, {len(found.errors)} errors, {exceptions} exceptions in the ratchet")
    return 1 if found.errors else 0


if __name__ == "__main__":
    sys.exit(main())
