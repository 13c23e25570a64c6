"""Text to tokens to a trained model to text: deploy/tokenize.py, export, `isthmus generate`, and transformers as a witness.

What needs the packages tokenizers, torch or transformers is skipped where they are not installed.
"""
import importlib.util
import json
import os
import subprocess
import sys
import unittest

from harness import BIN, Cluster

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TEXT = "".join(f"In the beginning there were {i % 7} ships, and they'd sail on.\n" for i in range(400))


def has(*packages):
    return all(importlib.util.find_spec(p) is not None for p in packages)


class GenerateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(TEXT.encode())
        cls.addClassCleanup(cls.cluster.close)
        cls.shards = os.path.join(cls.cluster.data, "shards")
        if has("tokenizers"):
            done = subprocess.run([sys.executable, os.path.join(ROOT, "deploy", "tokenize.py"), os.path.join(cls.cluster.data, "text.txt"),
                                   "--vocabulary", "300", "--out", cls.shards], capture_output=True, text=True, timeout=100)
            assert done.returncode == 0, done.stderr
            cls.vocabulary = int(done.stdout.split("vocabulary: ")[1].split("}")[0])
        cls.cluster.start(2)

    def train(self, name, **changes):
        path = self.cluster.job(name, **{"recipe__steps": 30, "recipe__learning_rate": 1e-2, **changes})
        code, out, err = self.cluster.cli("submit", path, "--watch")
        self.assertEqual(code, 0, out + err)

    def export(self, name, *flags):
        folder = os.path.join(self.cluster.dir, name + "-model")
        code, out, err = self.cluster.cli("export", name, folder, *flags)
        self.assertEqual(code, 0, err)
        return folder, out

    def generate(self, *arguments):
        code, out, err = self.cluster.cli("generate", *arguments)
        self.assertEqual(code, 0, err)
        return out

    def transformers_says(self, folder, prompt, tokens):
        """Greedy text of the pipeline, and the ids that the tokenizer gives the prompt."""
        code = ("import json, sys, warnings\nfrom transformers import AutoTokenizer, pipeline, logging\nlogging.set_verbosity_error()\n"
                f"folder, prompt, tokens = {folder!r}, {prompt!r}, {tokens}\n"
                "text = pipeline('text-generation', folder)(prompt, max_new_tokens=tokens, do_sample=False)[0]['generated_text']\n"
                "print(json.dumps([text, AutoTokenizer.from_pretrained(folder)(prompt)['input_ids']]))")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                              env=dict(os.environ, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1"))
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_bytes(self):
        self.train("bytes")
        folder, said = self.export("bytes")
        self.assertIn("tokenizer: of bytes", said)
        greedy = self.generate(folder, "In the ", "--tokens", "20", "--greedy")
        self.assertTrue(greedy.startswith("In the "), greedy)
        self.assertEqual(greedy, self.generate("bytes", "In the ", "--tokens", "20", "--greedy"))
        first = self.generate(folder, "In the ", "--seed", "4", "--tokens", "20", "--temperature", "2")
        self.assertEqual(first, self.generate(folder, "In the ", "--seed", "4", "--tokens", "20", "--temperature", "2"))
        self.assertNotEqual(first, self.generate(folder, "In the ", "--seed", "5", "--tokens", "20", "--temperature", "2"))
        # Past the context of 32, by the program itself.
        long = json.loads(self.generate(folder, "In the ", "--tokens", "60", "--json"))
        self.assertEqual(len(long["tokens"]), 60)
        self.assertEqual([f for f in os.listdir("/tmp") if f.startswith("isthmus-generate.")], [])
        if has("torch", "transformers"):
            text, ids = self.transformers_says(folder, "In the ", 20)
            self.assertEqual(text + "\n", greedy)
            self.assertEqual(ids, list(b"In the "))

    @unittest.skipUnless(has("tokenizers"), "the tokenizers package is not installed")
    def test_tokens(self):
        self.train("tokens", data={"path": "shards/train.bin", "format": "tokens"}, model__vocabulary=self.vocabulary)
        folder, said = self.export("tokens", "--force")
        self.assertIn("--tokenizer DIR", said)
        code, _, err = self.cluster.cli("generate", folder, "In the beginning")
        self.assertEqual(code, 2)
        self.assertIn("has no tokenizer", err)

        folder, said = self.export("tokens", "--force", "--tokenizer", os.path.join(self.shards, "tokenizer"))
        self.assertIn("tokenizer: copied from", said)
        greedy = json.loads(self.generate(folder, "In the beginning", "--tokens", "12", "--greedy", "--json"))
        if has("torch", "transformers"):
            text, _ = self.transformers_says(folder, "In the beginning", 12)
            self.assertEqual(text, greedy["prompt"] + greedy["text"])

        # A job that goes on from it has its tokenizer, wherever the export is asked for.
        self.train("tuned", data={"path": "shards/train.bin", "format": "tokens"}, model__vocabulary=self.vocabulary,
                   model__init_from=os.path.basename(folder), recipe__steps=2)
        folder, said = self.export("tuned")
        self.assertIn("tokenizer: copied from", said)
        self.generate(folder, "In the beginning", "--tokens", "3")

    def test_refusals(self):
        code, _, err = self.cluster.cli("generate", "no-such-job", "x")
        self.assertEqual(code, 2, err)
        code, _, err = self.cluster.cli("generate", self.cluster.dir, "x")
        self.assertEqual(code, 2)
        self.assertIn("config.json", err)
        done = subprocess.run([f"{BIN}/isthmus-generate", self.cluster.dir, "x", "--temperature", "0"], capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main()
