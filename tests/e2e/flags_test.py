"""Every flag of every program that takes a number: the programs' own help says which they are, so a new one is tested as well."""
import os
import re
import subprocess
import tempfile
import unittest

BIN = os.environ.get("ISTHMUS_BIN", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "bin"))
PROGRAMS = ("isthmus", "isthmusd", "isthmus-coordinator", "isthmus-generate", "isthmus-multilevel", "isthmus-study", "isthmus-wan")
NOT_WHOLE = ("0x1e", "+30", "99999999999999999999999")  # of more forms base/number_flag.h has the tests
NOT_REAL = ("0x1p4", "nan", "+30")


def run(*command, env=None):
    done = subprocess.run([os.path.join(BIN, command[0]), *command[1:]], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                          env=env)
    return done.returncode, done.stdout + done.stderr


def commands():
    """Each program, and each subcommand of those that have some, with its help."""
    for program in PROGRAMS:
        code, text = run(program, "--help")
        assert code == 0, text
        yield (program,), text
        listed = re.search(r"^Subcommands:\n((?:  .*\n?)*)", text, re.M)
        for name in re.findall(r"^  ([a-z-]+)", listed.group(1), re.M) if listed else ():
            if (program, name) not in (("isthmus", "study"), ("isthmus", "multilevel")):  # those programs' own help
                yield (program, name), run(program, name, "--help")[1]


class FlagsTest(unittest.TestCase):
    def test_help_names_the_program_and_not_where_it_was_built(self):
        """The manual pages of some programs are what their help prints."""
        for command, text in commands():
            with self.subTest(command=command):
                self.assertIn(f"Usage: {' '.join(command)} ", text)
                self.assertNotIn(BIN, text)

    def test_a_program_that_isthmus_starts_is_called_as_it_was_typed(self):
        for name in ("study", "multilevel"):
            self.assertIn(f"Usage: isthmus {name} ", run("isthmus", name, "--help")[1])

    def test_a_variable_that_is_neither_yes_nor_no_is_named(self):
        for command in (("isthmus", "list"), ("isthmusd", "--state-dir", "/nowhere", "--data-dir", "/"), ("isthmus-coordinator", "--state-dir", "/nowhere")):
            code, said = run(*command, env=dict(os.environ, ISTHMUS_INSECURE="maybe"))
            self.assertEqual(code, 2)
            self.assertIn("ISTHMUS_INSECURE=maybe: set it to 1 or 0", said)

    def test_a_missing_device_is_said_before_anything_listens(self):
        with tempfile.TemporaryDirectory() as folder:
            code, said = run("isthmusd", "--device", "cuda:63", "--state-dir", folder, "--data-dir", folder, "--listen", "127.0.0.1:0", "--http", "")
        self.assertEqual(code, 3)
        self.assertNotIn("listening on", said)

    def refused(self, command, flag, value, words):
        code, said = run(*command, f"{flag}={value}")
        self.assertEqual(code, 2, (command, flag, value, said))
        self.assertIn(f"{flag}: '{value}' is {words}", said)

    def test_numbers_are_read_in_one_way(self):
        found = {p: [] for p in PROGRAMS}
        for command, text in commands():
            for flag, kind in re.findall(r"^ +(?:-\w,)?(--[\w-]+) (?:[A-Z]+:)?(INT|UINT|FLOAT)\b", text, re.M):
                found[command[0]].append(flag)
                with self.subTest(command=command, flag=flag):
                    for value in NOT_REAL if kind == "FLOAT" else NOT_WHOLE:
                        self.refused(command, flag, value, "no number" if kind == "FLOAT" else "no whole number")
        for value in NOT_WHOLE:  # named NUMBER, without a range
            self.refused(("isthmus", "generate"), "--seed", value, "no whole number")
        self.assertIn("--seed", found["isthmus-wan"])
        self.assertIn("--lease", found["isthmus-coordinator"])
        for program, flag in (("isthmus", "--step"), ("isthmus", "--tokens"), ("isthmusd", "--threads"), ("isthmus-generate", "--seed"),
                              ("isthmus-study", "--seeds"), ("isthmus-multilevel", "--alpha"), ("isthmus-wan", "--mtu")):
            self.assertIn(flag, found[program])

    def test_no_more_threads_than_processors(self):
        for command in (("isthmusd",), ("isthmus-generate",), ("isthmus-study",), ("isthmus", "generate"), ("isthmus", "testnet")):
            code, said = run(*command, "--threads", str(len(os.sched_getaffinity(0)) + 1))
            self.assertEqual(code, 2)
            self.assertIn(f"to {len(os.sched_getaffinity(0))},", said)


if __name__ == "__main__":
    unittest.main()
