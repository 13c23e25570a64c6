"""A V-cycle by hand: jobs begin from what `isthmus multilevel` writes, and `isthmus generate` runs it."""
import json
import os
import subprocess
import unittest

from harness import BIN, Cluster


class MultilevelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster().start(2)
        cls.addClassCleanup(cls.cluster.close)

    def at(self, name):
        return os.path.join(self.cluster.dir, name)

    def multilevel(self, *words, code=0):
        done = subprocess.run([f"{BIN}/isthmus", "multilevel", *words], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def train(self, name, folder, **changes):
        """Exports it, and returns its losses."""
        self.cluster.submit(self.cluster.job(name, recipe__steps=20, **changes), "--watch")
        code, _, err = self.cluster.cli("export", name, self.at(folder))
        self.assertEqual(code, 0, err)
        return self.cluster.losses(name)

    def test_cycle(self):
        before = self.train("before", "large")
        self.multilevel("coalesce", self.at("large"), self.at("small"))
        small = self.train("small", "trained", model__layers=2, model__hidden=16, model__heads=2, model__init_from=self.at("small"))
        out = json.loads(self.multilevel("decoalesce", self.at("trained"), self.at("grown"), "--like", self.at("large"), "--json"))
        self.assertEqual((out["layers"], out["hidden"], out["heads"]), (4, 32, 4))
        self.multilevel("interpolate", self.at("large"), self.at("grown"), self.at("start"), "--alpha", "0.5")
        after = self.train("after", "end", model__init_from=self.at("start"))
        self.assertLess(small[0], before[0] - 0.05, "the small model begins with what the large one learned")
        self.assertLess(after[0], before[0] - 0.05)
        self.assertLess(after[19], before[19])
        with open(os.path.join(self.at("start"), "config.json")) as f:
            self.assertIn("isthmus_multilevel", json.load(f))

        code, text, err = self.cluster.cli("generate", self.at("start"), "The river ", "--tokens", "5", "--greedy")  # with its tokenizer
        self.assertEqual(code, 0, err)
        self.assertTrue(text.startswith("The river "), text)

        refused = self.multilevel("coalesce", self.at("large"), self.at("other"), "--heads", "3", code=2)
        self.assertIn("3 is no divisor of 4 heads", refused)
        self.assertIn("--force", self.multilevel("coalesce", self.at("large"), self.at("small"), code=2))
        self.assertEqual([f for f in os.listdir(self.cluster.dir) if ".part." in f], [])

    def test_help_is_the_program_s_own(self):
        for argv in (["multilevel", "--help"], ["help", "multilevel"]):
            done = subprocess.run([f"{BIN}/isthmus", *argv], capture_output=True, text=True, timeout=30)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("decoalesce", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
