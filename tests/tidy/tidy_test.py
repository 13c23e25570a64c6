"""Tidy finds what it is for: each case is a small tree with one thing wrong."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TIDY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tidy.py")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(TIDY)))
sys.path.insert(0, os.path.dirname(TIDY))
from clang_tidy import PARTS, choose_part, without_gcc_options  # noqa: E402
from cpp_functions import cpp_functions  # noqa: E402

HEADER = "// What it is.\n#ifndef ISTHMUS_{guard}_H_\n#define ISTHMUS_{guard}_H_\n{body}#endif\n"


def tidy(files, *options):
    """Runs tidy on a tree of these files; returns its exit code and output."""
    with tempfile.TemporaryDirectory() as root:
        tree = {"LICENSE": "Apache License\n", ".clang-format": "BasedOnStyle: Google\nColumnLimit: 100\n", **files}
        for path, text in tree.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w") as f:
                f.write(text)
        done = subprocess.run([sys.executable, TIDY, root, *options], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class TidyTest(unittest.TestCase):
    def refuses(self, files, words):
        code, output = tidy(files)
        self.assertEqual(code, 1, output)
        self.assertIn(words, output)

    def test_clean_tree_passes(self):
        code, output = tidy({
            "compress/bits.h": HEADER.format(guard="COMPRESS_BITS", body='#include "base/hash.h"\n'),
            "compress/bits.cc": '#include "compress/bits.h"\n',
            "tests/compress/bits_test.cc": '#include "compress/bits.h"\n',
        })
        self.assertEqual(code, 0, output)

    def test_direction(self):
        self.refuses({"compress/a.h": HEADER.format(guard="COMPRESS_A", body='#include "worker/link/link.h"\n')},
                     "compress/ may not include worker/link/link.h")

    def test_rpc_is_a_room_of_its_own(self):
        self.refuses({"worker/a.h": HEADER.format(guard="WORKER_A", body='#include "base/rpc/channel.h"\n')},
                     "worker/ may not include base/rpc/channel.h")

    def test_door(self):
        self.refuses({"worker/a.h": HEADER.format(guard="WORKER_A", body="#include <ATen/ATen.h>\n")},
                     "belongs to worker/engine alone")

    def test_single_door(self):
        files = {f"base/{name}.cc": "#include <httplib.h>\n" for name in ("one", "two")}
        self.refuses(files, "cpp-httplib already has its door in base/one.cc")

    def test_service_header_is_grpc(self):
        self.refuses({"worker/a.cc": '#include "proto/peer_service.grpc.pb.h"\n'}, "gRPC")

    def test_untested_file(self):
        self.refuses({"base/a.h": HEADER.format(guard="BASE_A", body=""), "base/a.cc": '#include "base/a.h"\n'},
                     "each .cc has a test")

    def test_long_file(self):
        self.refuses({"tests/base/a_test.cc": "// x\n" * 501}, "501 lines; 500 at most")

    def test_long_function(self):
        self.refuses({"tests/base/a_test.cc": "void Long() {\n" + "  Call();\n" * 70 + "}\n"}, "Long has 72 lines")

    def test_unfinished_word(self):
        self.refuses({"notes.md": "TO" + "DO: later\n"}, "finish it or file it")

    def test_mutex(self):
        self.refuses({"tests/base/a_test.cc": "std::mutex m;\n"}, "use base/mutex.h")

    def test_wall_clock(self):
        self.refuses({"worker/a.cc": "void F() { until = absl::Now() + d; }\n"}, "base/clock.h")
        self.refuses({"daemon/a.cc": "auto t = std::chrono::system_clock::now();\n"}, "base/clock.h")
        _, output = tidy({"worker/a.cc": "int64_t F() { return absl::ToUnixMillis(absl::Now()); }\n"})
        self.assertNotIn("base/clock.h", output)

    def test_deadline_by_hand(self):
        self.refuses({"worker/a.cc": "auto t = Clock::now() +\n    absl::ToChronoNanoseconds(d);\n"}, "SteadyAfter")

    def test_sleep(self):
        self.refuses({"tests/base/a_test.cc": "void F() { std::this_thread::sleep_for(x); }\n"}, "wait for the event")

    def test_loose_number(self):
        self.refuses({"worker/a.cc": "void F() { o->check(CLI::Range(1, 9)); }\n"}, "base/number_flag.h")

    def test_a_test_that_is_not_built(self):
        self.refuses({"tests/base/CMakeLists.txt": "isthmus_test(base_test SOURCES x/a_test.cc)\n", "tests/base/a_test.cc": "int a;\n"}, "never built")
        _, output = tidy({"tests/base/CMakeLists.txt": "isthmus_test(base_test SOURCES x/a_test.cc)\n", "tests/base/x/a_test.cc": "int a;\n"})
        self.assertNotIn("never built", output)

    def test_guard(self):
        self.refuses({"base/a.h": HEADER.format(guard="BASE_B", body="")}, "its include guard is ISTHMUS_BASE_A_H_")

    def test_wide_line(self):
        self.refuses({"tests/base/a_test.cc": "int a_name = 1;" + " " * 90 + "\n"}, "base/a_test.cc")

    def test_dead_link(self):
        self.refuses({"README.md": "[it](docs/none.md)\n"}, "leads nowhere")

    def test_script_that_nobody_may_execute(self):
        self.refuses({"tests/bench/a.py": "#!/usr/bin/env python3\n"}, "tests/bench/a.py:1: a script that nobody may execute")

    def test_no_licence(self):
        self.refuses({"LICENSE": "mine\n"}, "the licence is missing")

    def test_ratchet_holds_and_does_not_grow(self):
        long_file = {"tests/base/a_test.cc": "// x\n" * 510}
        allow = {"tests/tidy/ratchet.json": '{"file_lines": {"tests/base/a_test.cc": 505}}\n'}
        self.refuses({**long_file, **allow}, "the ratchet allows 505")
        self.assertEqual(tidy(long_file, "--accept")[0], 0)
        self.assertEqual(tidy(long_file, "--update")[0], 1)


class FunctionsTest(unittest.TestCase):
    def sizes(self, text):
        return [(name, end - start + 1) for name, start, end in cpp_functions(text)]

    def test_members_namespaces_and_initialisers(self):
        text = ("namespace a {\nclass B final : public C {\n public:\n  B(int x) : x_{x}, y_(2) {\n    Go();\n  }\n"
                "  int Get() const { return x_; }\n  std::map<int, int> m_ = {{1, 2}};\n  int x_{0};\n};\n"
                "struct O { int n = 1; };\nB::~B() {\n  if (x_) { Stop(); }\n}\n}  // namespace a\n")
        self.assertEqual(self.sizes(text), [("B", 3), ("Get", 1), ("B::~B", 3)])

    def test_macros_strings_and_comments(self):
        text = ('TEST(Queue, Closes) {\n  Call("}");  // }\n  char c = \'}\';\n}\n'
                'absl::StatusOr<int> F(const std::string& s,\n                      int n) {\n  return R"({)";\n}\n')
        self.assertEqual(self.sizes(text), [("Queue.Closes", 4), ("F", 4)])


@unittest.skipUnless(shutil.which("clang++-14"), "clang++-14 is not installed")
class ThreadSafetyTest(unittest.TestCase):
    def check(self, body):
        """Runs thread_safety.py on one file of the room daemon with this body of a function."""
        with tempfile.NamedTemporaryFile("w", suffix=".cc", dir=os.path.join(ROOT, "daemon"), prefix=".tidy-") as source, \
                tempfile.TemporaryDirectory() as build:
            source.write('#include "base/mutex.h"\nclass C {\n  void F() { %s }\n  isthmus::Mutex mutex_;\n'
                         '  int n_ ABSL_GUARDED_BY(mutex_) = 0;\n};\n' % body)
            source.flush()
            with open(os.path.join(build, "compile_commands.json"), "w") as f:
                json.dump([{"directory": build, "file": source.name,
                            "command": f"/usr/bin/ccache /usr/bin/c++ -std=c++17 -I{ROOT} -o x.o -c {source.name}"}], f)
            script = os.path.join(os.path.dirname(TIDY), "thread_safety.py")
            return subprocess.run([sys.executable, script, build], capture_output=True, text=True)

    def test_guarded_member_needs_its_mutex(self):
        good = self.check("isthmus::MutexLock lock(&mutex_); ++n_;")
        self.assertEqual(good.returncode, 0, good.stdout)
        bad = self.check("++n_;")
        self.assertEqual(bad.returncode, 1, bad.stdout)
        self.assertIn("requires holding mutex 'mutex_'", bad.stdout)


class ClangTidyTest(unittest.TestCase):
    OURS = {f"base/f{i}.cc" for i in range(240)}

    def test_a_part_is_what_changed_and_a_draw_of_the_others(self):
        part = choose_part(self.OURS, {"base/f7.cc", "base/f9.h", "README.md"}, "a1")
        self.assertEqual(len(part), 240 // PARTS)
        self.assertLessEqual({"base/f7.cc", "base/f9.cc"}, part)
        self.assertEqual(part, choose_part(self.OURS, {"base/f7.cc", "base/f9.h"}, "a1"))
        self.assertNotEqual(part, choose_part(self.OURS, {"base/f7.cc", "base/f9.h"}, "b2"))

    def test_tests_are_looked_at_when_they_are_touched(self):
        tests = {f"tests/base/f{i}_test.cc" for i in range(240)}
        part = choose_part(self.OURS | tests, {"tests/base/f3_test.cc"}, "a1")
        self.assertEqual(len(part), 480 // PARTS)
        self.assertEqual(part & tests, {"tests/base/f3_test.cc"})

    def test_a_part_is_bounded_where_all_changed(self):
        self.assertEqual(len(choose_part(self.OURS, self.OURS, "a1")), 240 // PARTS)

    def test_options_that_clang_does_not_know_are_left_out(self):
        self.assertEqual(without_gcc_options("ccache c++ --param=ggc-min-expand=200 -Winvalid-pch -include /b/cmake_pch.hxx "
                                             "-fpch-preprocess '-DX=\"a b\"' -include own.h -c x.cc"),
                         "ccache c++ '-DX=\"a b\"' -include own.h -c x.cc")

    def run_on(self, body, path=os.environ["PATH"]):
        with tempfile.NamedTemporaryFile("w", suffix=".cc", dir=os.path.join(ROOT, "base"), prefix=".tidy-") as source, \
                tempfile.TemporaryDirectory() as build:
            source.write(body)
            source.flush()
            with open(os.path.join(build, "compile_commands.json"), "w") as f:
                json.dump([{"directory": build, "file": source.name, "command": f"c++ --param=ggc-min-expand=200 -c {source.name}"}], f)
            script = os.path.join(os.path.dirname(TIDY), "clang_tidy.py")
            return subprocess.run([sys.executable, script, build, source.name], capture_output=True, text=True, env={**os.environ, "PATH": path})

    def test_a_finding_fails_and_so_does_a_tool_that_is_not_there(self):
        absent = self.run_on("int x;\n", path="")
        self.assertEqual(absent.returncode, 2, absent.stdout)
        self.assertIn("clang-tidy-14 is not installed", absent.stdout)
        if shutil.which("clang-tidy-14"):
            good = self.run_on("unsigned long Size(int x) { return sizeof(x); }\n")
            self.assertEqual(good.returncode, 0, good.stdout)
            bad = self.run_on("unsigned long Size(int x) { return sizeof(sizeof(x)); }\n")
            self.assertEqual(bad.returncode, 1, bad.stdout)
            self.assertIn("bugprone-sizeof-expression", bad.stdout)


if __name__ == "__main__":
    unittest.main()
