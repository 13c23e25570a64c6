"""The scripts of deploy/: what they refuse, what they say, and that they are clean to shellcheck."""
import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
SCRIPTS = sorted(glob.glob(os.path.join(ROOT, "deploy", "*.sh")))
PROGRAMS = [s for s in SCRIPTS if os.path.basename(s) != "lib.sh"]


# A user's shell, not that of the script that started the tests: that one's place would pass for the user's.
USERS_ENV = {name: value for name, value in os.environ.items() if name != "ISTHMUS_CALLER"}


def run(*command, env=None, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=USERS_ENV if env is None else env, **options)


def lib(code):
    """Runs bash code with the helpers of lib.sh."""
    return run("bash", "-c", f"set -euo pipefail; . {ROOT}/deploy/lib.sh; {code}")


class ScriptsTest(unittest.TestCase):
    @unittest.skipUnless(shutil.which("shellcheck"), "shellcheck is not installed")
    def test_shellcheck(self):
        done = run("shellcheck", "-x", *SCRIPTS, os.path.join(ROOT, ".ci", "run"), cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_programs_can_be_run(self):
        for script in PROGRAMS + [os.path.join(ROOT, ".ci", "run")]:
            self.assertTrue(os.access(script, os.X_OK), script)

    def test_help_lists_every_option(self):
        for script in PROGRAMS:
            done = run(script, "--help")
            self.assertEqual(done.returncode, 0, script)
            with open(script) as f:
                options = re.findall(r"^    (--?[A-Za-z-]+)\)", f.read(), re.M)
            for option in options:
                if option != "--":
                    self.assertIn(option, done.stdout, f"{script} takes {option} and does not say so")

    def test_unknown_option_is_bad_usage(self):
        for script in PROGRAMS:
            done = run(script, "--no-such-option")
            self.assertEqual(done.returncode, 2, f"{script}: {done.stderr}")
            self.assertIn("--no-such-option", done.stderr)

    def test_missing_value_is_bad_usage(self):
        done = run(os.path.join(ROOT, "deploy", "build.sh"), "--preset")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--preset needs a value", done.stderr)


class ShownTest(unittest.TestCase):
    def test_a_path_is_relative_to_where_the_user_stands(self):
        for caller, path, shown in ((ROOT, f"{ROOT}/build/run", "build/run"), ("/", f"{ROOT}/data", f"{ROOT}/data".lstrip("/")),
                                    (f"{ROOT}/deploy", f"{ROOT}/data", f"{ROOT}/data"), (ROOT, f"{ROOT}er/data", f"{ROOT}er/data")):
            done = run("bash", "-c", f". {ROOT}/deploy/lib.sh; cd /tmp; shown {path}", cwd=caller)
            self.assertEqual(done.stdout, shown)
            nested = run("bash", "-c", f". {ROOT}/deploy/lib.sh; cd /tmp; bash -c '. {ROOT}/deploy/lib.sh; shown {path}'", cwd=caller)
            self.assertEqual(nested.stdout, shown, "a script that another one calls")


class TorchTest(unittest.TestCase):
    def unpacked(self, folder, version, config=""):
        cmake = os.path.join(folder, "share", "cmake", "Torch")
        os.makedirs(cmake)
        for path, text in ((os.path.join(cmake, "TorchConfig.cmake"), config), (os.path.join(folder, "build-version"), version)):
            with open(path, "w") as f:
                f.write(text)
        return cmake

    def test_folder_is_found_and_a_recent_one_wants_cxx20(self):
        with tempfile.TemporaryDirectory() as folder:
            cmake = self.unpacked(folder, "2.4.0+cpu\n")
            self.assertEqual(lib(f"torch_cmake_args {folder}").stdout.split(), [f"-DTorch_DIR={cmake}", "-DCMAKE_CXX_STANDARD=20"])
            self.assertEqual(lib(f"torch_cmake_args {cmake}").stdout.split()[0], f"-DTorch_DIR={cmake}")

    def test_old_one_keeps_cxx17(self):
        with tempfile.TemporaryDirectory() as folder:
            cmake = self.unpacked(folder, "1.13.1\n")
            self.assertEqual(lib(f"torch_cmake_args {folder}").stdout.split(), [f"-DTorch_DIR={cmake}"])

    def test_old_abi_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            self.unpacked(folder, "2.1.0\n", 'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")')
            done = lib(f"torch_cmake_args {folder}")
            self.assertEqual(done.returncode, 3)
            self.assertIn("cxx11-abi", done.stderr)

    def test_wrong_folder_is_bad_usage(self):
        done = run(os.path.join(ROOT, "deploy", "setup.sh"), "--dry-run", "--torch", "/nonexistent")
        self.assertEqual(done.returncode, 2)
        self.assertIn("TorchConfig.cmake", done.stderr)

    def test_wrong_folder_ends_every_script_before_it_configures(self):
        self.assertEqual(lib("if torch_cmake_args /nonexistent; then echo went on; fi").returncode, 2)
        with tempfile.TemporaryDirectory() as folder:  # with no CMakeLists.txt: whoever goes on ends soon
            shutil.copytree(os.path.join(ROOT, "deploy"), os.path.join(folder, "deploy"))
            for script, *options in (("build.sh",), ("package.sh",), ("test.sh", "--no-setup"), ("quickstart.sh", "--no-setup")):
                if script == "package.sh" and not shutil.which("dpkg-shlibdeps"):
                    continue
                if script == "quickstart.sh" and (os.geteuid() != 0 or not os.path.exists("/dev/net/tun")):
                    continue
                done = run(os.path.join(folder, "deploy", script), *options, "--torch", "/nonexistent")
                self.assertEqual(done.returncode, 2, f"{script}: {done.stdout}{done.stderr}")
                self.assertIn("TorchConfig.cmake", done.stderr, script)
                self.assertNotIn("configuring", done.stdout, script)


class CudaTest(unittest.TestCase):
    def test_setup_says_what_it_would_fetch(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(os.path.join(ROOT, "deploy", "setup.sh"), "--dry-run", "--cuda", os.path.join(folder, "cuda"))
            self.assertIn("would fetch torch==", done.stdout + done.stderr)
            self.assertEqual(os.listdir(folder), [])

    def test_build_wants_what_setup_fetched(self):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "torch", "share", "cmake", "Torch"))
            open(os.path.join(folder, "torch", "share", "cmake", "Torch", "TorchConfig.cmake"), "w").close()
            done = run(os.path.join(ROOT, "deploy", "build.sh"), "--cuda", folder)
            self.assertEqual(done.returncode, 2)
            self.assertIn("deploy/setup.sh --cuda", done.stderr)


class BuildJobsTest(unittest.TestCase):
    def test_between_one_and_the_cores(self):
        jobs = int(lib("build_jobs").stdout)
        self.assertTrue(1 <= jobs <= len(os.sched_getaffinity(0)), jobs)


class FetchDataTest(unittest.TestCase):
    def test_a_file_that_is_there_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("bible.txt", "genesis.txt", "kernel-docs.txt"):
                with open(os.path.join(folder, name), "w") as f:
                    f.write("mine\n")
            done = run(os.path.join(ROOT, "deploy", "fetch-data.sh"), folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("already there"), 2)
            done = run(os.path.join(ROOT, "deploy", "fetch-data.sh"), "mine", cwd=os.path.dirname(shutil.copytree(folder, folder + "/mine")))
            self.assertIn("fetch-data.sh: mine/bible.txt: already there", done.stdout)

    def test_rows_are_made_where_they_are_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("mnist", "digits"):
                with open(os.path.join(folder, name + ".bin"), "w") as f:
                    f.write("mine")
                done = run(os.path.join(ROOT, "deploy", "fetch-data.sh"), folder, "--only", name)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f"{name}.bin: already there", done.stdout)
            self.assertEqual(sorted(os.listdir(folder)), ["digits.bin", "mnist.bin"])

    def test_unknown_corpus_is_bad_usage(self):
        self.assertEqual(run(os.path.join(ROOT, "deploy", "fetch-data.sh"), "--only", "novel").returncode, 2)


if __name__ == "__main__":
    unittest.main()
