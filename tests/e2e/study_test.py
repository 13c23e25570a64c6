"""`isthmus study` as a user runs it: a job file, a kill in the middle, the same command again."""
import json
import os
import subprocess
import tempfile
import unittest
import xml.dom.minidom

from harness import BIN, Program, small_text

JOB = """name: small
model: {layers: 2, hidden: 16, heads: 2, context: 16}
data: {path: text.txt}
recipe: {steps: 4, global_batch: 4, micro_batch: 2, learning_rate: 1e-3, eval_samples: 4}
strategy: {stages: 2}
"""


class StudyTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="isthmus-study-")
        self.addCleanup(temporary.cleanup)
        self.dir = temporary.name
        with open(os.path.join(self.dir, "text.txt"), "wb") as f:
            f.write(small_text(4000))
        self.job = os.path.join(self.dir, "job.yaml")
        with open(self.job, "w") as f:
            f.write(JOB)
        self.out = os.path.join(self.dir, "out")

    def argv(self, *more):
        return [f"{BIN}/isthmus", "study", self.job, "--data-dir", self.dir, "--out", self.out, *more]

    def study(self, *more):
        r = subprocess.run(self.argv(*more), capture_output=True, text=True, timeout=120)
        return r.returncode, r.stdout, r.stderr

    def cells(self):
        with open(os.path.join(self.out, "cells.jsonl")) as f:
            return sum('"cell"' in line for line in f)

    def test_killed_in_the_middle_it_goes_on_and_its_files_are_whole(self):
        more = ("--codec", "quant(4) / quant(8)", "--codec", "topk(0.1)", "--seeds", "2", "--json")
        killed = Program("study", self.argv(*more), os.path.join(self.dir, "log"))
        self.addCleanup(killed.close)
        killed.wait_for("2/6 cells")
        killed.kill()
        before = self.cells()
        self.assertGreaterEqual(before, 2)
        code, out, err = self.study(*more)
        self.assertEqual(code, 0, err)
        self.assertEqual(self.cells(), 6)
        self.assertEqual(err.count(" cells  ETA"), 6 - before, err)
        table = json.loads(out)
        self.assertEqual([(r["setting"], r["seeds"]) for r in table["rows"]],
                         [("none", 2), ("quant(4) / quant(8)", 2), ("topk(0.1) / none", 2)])
        self.assertGreater(table["rows"][1]["ratio"], 2)
        self.assertEqual({e["what"] for e in table["energy_shares"]},
                         {"activation", "activation, centred", "activation gradient", "weight gradient"})
        xml.dom.minidom.parse(os.path.join(self.out, "study.svg"))
        with open(os.path.join(self.out, "study.csv")) as f:
            self.assertEqual(len(f.read().splitlines()), 4)

    def test_what_is_wrong_is_said_with_its_place(self):
        code, out, err = self.study("--codec", "quant(9)")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("--codec 'quant(9)': forward: codec 'quant(9)', column 8: expected bits from 1 to 8", err)
        with open(self.job, "a") as f:
            f.write("recipee: {}\n")
        code, out, err = self.study()
        self.assertEqual((code, out), (2, ""))
        self.assertIn("job.yaml:6", err)
        self.assertFalse(os.path.exists(self.out))

    def test_help_is_the_program_s_own(self):
        for argv in (["study", "--help"], ["help", "study"]):
            r = subprocess.run([f"{BIN}/isthmus", *argv], capture_output=True, text=True, timeout=30)
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertIn("--boundaries", r.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
