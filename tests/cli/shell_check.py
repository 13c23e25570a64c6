#!/usr/bin/env python3
"""Lets bash, zsh, fish and groff judge the completions and manual pages of `isthmus`: those that are installed.

  shell_check.py ISTHMUS
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ISTHMUS = os.path.abspath(sys.argv.pop(1))


def isthmus(*arguments):
    done = subprocess.run([ISTHMUS, *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def commands():
    """The names that the help lists."""
    lines = isthmus("--help").split("Subcommands:\n")[1].split("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")]


class BashTest(unittest.TestCase):
    def complete(self, *words, cwd=None):
        quoted = " ".join("'" + w.replace("'", "'\\''") + "'" for w in words)
        code = (f"set -u; {isthmus('completion', 'bash')}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _isthmus; "
                "printf '%s\\n' \"${COMPREPLY[@]}\"")
        done = run("bash", "-c", code, cwd=cwd)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        return [line for line in done.stdout.splitlines() if line]

    def test_commands_and_options(self):
        self.assertEqual(self.complete("isthmus", "sub"), ["submit"])
        self.assertEqual(self.complete("isthmus", "--coordinator", "a:1", "sub"), ["submit"])
        self.assertIn("--set", self.complete("isthmus", "submit", "--s"))
        self.assertIn("--csv", self.complete("isthmus", "logs", "-"))
        self.assertEqual(self.complete("isthmus", "completion", "z"), ["zsh"])
        self.assertEqual(self.complete("isthmus", "multilevel", "coa"), ["coalesce"])
        self.assertIn("submit", self.complete("isthmus", "help", ""))
        for command in commands():
            self.assertIn(command, self.complete("isthmus", ""))

    def test_words_stand_without_the_folders_that_lie_there(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("model", "init.d", "coarse"):
                os.mkdir(os.path.join(folder, name))
            self.assertEqual(self.complete("isthmus", "ca", "", cwd=folder), ["init", "issue", "list", "revoke", "token"])
            self.assertEqual(self.complete("isthmus", "ca", "--dir", "mo", cwd=folder), ["model"])
            self.assertEqual(self.complete("isthmus", "ca", "issue", "", cwd=folder), [])
            self.assertEqual(self.complete("isthmus", "ca", "issue", "--role", "", cwd=folder), ["coordinator", "worker", "operator", "viewer"])
            self.assertEqual(self.complete("isthmus", "multilevel", "coa", cwd=folder), ["coalesce"])
            self.assertEqual(self.complete("isthmus", "multilevel", "coalesce", "coa", cwd=folder), ["coarse"])

    def test_words_or_files(self):
        with tempfile.TemporaryDirectory() as folder:
            open(os.path.join(folder, "job.yaml"), "w").close()
            self.assertEqual(sorted(self.complete("isthmus", "study", "", cwd=folder)), ["ist-theory", "job.yaml"])
            self.assertEqual(self.complete("isthmus", "study", "i", cwd=folder), ["ist-theory"])
            wan = os.path.join(folder, "isthmus-wan")
            with open(wan, "w") as f:
                f.write("#!/bin/sh\n[ $1 = presets ] && printf 'regions  Eight of them.\\nlan  One.\\n'\n")
            os.chmod(wan, 0o755)
            program = os.path.join(folder, "isthmus")
            self.assertEqual(sorted(self.complete(program, "testnet", "--links", "", cwd=folder)), ["isthmus-wan", "job.yaml", "lan", "regions"])
            self.assertEqual(self.complete(program, "testnet", "--links", "reg", cwd=folder), ["regions"])
            os.unlink(wan)  # without the emulator there are files
            self.assertEqual(self.complete(program, "testnet", "--links", "", cwd=folder), ["job.yaml"])

    def test_files_with_blanks_and_folders(self):
        with tempfile.TemporaryDirectory() as folder:
            open(os.path.join(folder, "my job.yaml"), "w").close()
            os.mkdir(os.path.join(folder, "model"))
            self.assertEqual(self.complete("isthmus", "submit", "my", cwd=folder), ["my job.yaml"])
            self.assertEqual(self.complete("isthmus", "export", "--tokenizer", "m", cwd=folder), ["model"])
            self.assertEqual(self.complete("isthmus", "submit", "--set", "m", cwd=folder), [])
            self.assertEqual(self.complete("isthmus", "multilevel", "coalesce", "mo", cwd=folder), ["model"])


class OtherShellsTest(unittest.TestCase):
    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish(self):
        code = isthmus("completion", "fish") + "\ncomplete -C 'isthmus sub'\necho ---\ncomplete -C 'isthmus submit --res'\n"
        with tempfile.TemporaryDirectory() as home:
            done = run("fish", "--private", "-c", code, env=dict(os.environ, HOME=home, XDG_CONFIG_HOME=home))
        self.assertEqual(done.stderr, "")
        found, options = done.stdout.split("---\n")
        self.assertEqual([line.split("\t")[0] for line in found.splitlines()], ["submit"])
        self.assertTrue(options.startswith("--resume\t"), options)

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_takes_it(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "_isthmus"), "w") as f:
                f.write(isthmus("completion", "zsh"))
            self.assertEqual(run("zsh", "-n", os.path.join(folder, "_isthmus")).stderr, "")
            # Outside of a completion _arguments has nothing to do but to judge its specifications.
            code = (f"fpath=({folder} $fpath); autoload -U compinit; compinit -u -d {folder}/dump; "
                    "print -- ${_comps[isthmus]}; autoload +X -U _isthmus && whence -w _isthmus")
            done = run("zsh", "-f", "-c", code, env=dict(os.environ, HOME=folder))
            self.assertEqual(done.stdout.split(), ["_isthmus", "_isthmus:", "function"], done.stderr)


class ManTest(unittest.TestCase):
    def test_there_is_a_page_of_each_command(self):
        for command in commands():
            self.assertIn(f"isthmus-{command} -".replace("-", "\\-"), isthmus("man", command))
        for command in commands():
            self.assertIn(f".SS \"{command}\"".replace("-", "\\-"), isthmus("man"))

    def test_there_is_a_page_of_each_program_beside_it(self):
        for program in ("isthmusd", "isthmus-coordinator", "isthmus-study", "isthmus-wan"):
            if os.path.exists(os.path.join(os.path.dirname(ISTHMUS), program)):
                self.assertIn(f"{program} - ".replace("-", "\\-"), isthmus("man", program))
        wrong = run(ISTHMUS, "man", "frobnicate")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("isthmusd", wrong.stderr)

    @unittest.skipUnless(shutil.which("groff"), "groff is not installed")
    def test_groff_has_nothing_to_say(self):
        for topic in [[], ["job"], *[[c] for c in commands()]]:
            done = run("groff", "-man", "-Tutf8", "-ww", "-rHY=0", input=isthmus("man", *topic))
            self.assertEqual((done.returncode, done.stderr), (0, ""), topic)
        self.assertIn("global_batch", run("groff", "-man", "-Tascii", input=isthmus("man", "job")).stdout)


if __name__ == "__main__":
    unittest.main()
