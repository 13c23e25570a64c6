"""The programs that compare codecs say what they take, and refuse what they do not know or what would print nothing."""
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

BIN = os.environ.get("ISTHMUS_BIN", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "bin"))
PROGRAMS = ("convergence_bench", "exchange_bench", "predict_trial")


def run(program, *arguments):
    return subprocess.run([os.path.join(BIN, program), *arguments], capture_output=True, text=True, timeout=60)


class FlagsTest(unittest.TestCase):
    def test_help_is_help(self):
        for program in PROGRAMS:
            done = run(program, "--help")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"Usage: {program} ", done.stdout)
            self.assertNotIn("nan", done.stdout)

    def test_what_is_unknown_is_refused(self):
        with tempfile.NamedTemporaryFile() as text:
            for program, arguments in (("convergence_bench", ["--no-such-flag"]), ("convergence_bench", ["ten"]),
                                       ("exchange_bench", ["tides"]), ("exchange_bench", ["gradients"]), ("exchange_bench", ["tied", "/no/such/text"]),
                                       ("predict_trial", [text.name, "--no-such-flag"]), ("predict_trial", ["/no/such/text"])):
                done = run(program, *arguments)
                self.assertEqual(done.returncode, 2, (program, arguments, done.stdout))
                self.assertIn(arguments[-1], done.stderr)

    def test_a_small_comparison_has_a_row_for_each_codec(self):
        """Three epochs: convergence_bench ends with 1 where a delta codec sent other samples in full than each once."""
        done = run("convergence_bench", "6", "32", "1e-3", "1", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {line[:14].strip(): float(line.split()[-2]) for line in done.stdout.splitlines()[2:]}  # MB
        self.assertEqual(len(rows), 7)
        self.assertLess(rows["direct fw2bw4"], rows["delta  fw2bw4"])
        self.assertLess(rows["delta  fw2bw4"], 0.5 * rows["fp32"])

    def test_a_trace_becomes_a_picture(self):
        here = os.path.dirname(os.path.abspath(__file__))
        trace = os.path.join(here, "..", "cli", "view", "golden", "trace.json")
        done = subprocess.run([sys.executable, os.path.join(here, "trace_svg.py"), trace], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        svg = xml.etree.ElementTree.fromstring(done.stdout)
        texts = [e.text for e in svg.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("bible-1, step 7: 10.0 ms", texts)
        self.assertIn('stage 1 on n"2', texts)
        self.assertEqual(len(list(svg.iter("{http://www.w3.org/2000/svg}line"))), 1, "the arrow of the one frame with both ends")
        self.assertGreaterEqual(len(list(svg.iter("{http://www.w3.org/2000/svg}rect"))), 12)

    def test_a_run_of_no_steps_is_refused(self):
        with tempfile.NamedTemporaryFile() as text:
            for program, arguments in (("convergence_bench", ["0"]), ("convergence_bench", ["10", "15"]),
                                       ("convergence_bench", ["10", "16", "1e-3", "0"]),
                                       ("predict_trial", [text.name, "--steps=0"])):
                done = run(program, *arguments)
                self.assertEqual(done.returncode, 2, (program, arguments, done.stdout))
                self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
