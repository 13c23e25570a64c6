"""The MLP family as a user runs it: rows, stages, replicas, an accuracy beside the loss, an export, and what is refused."""
import array
import json
import os
import random
import struct
import unittest

from harness import Cluster, main

INPUTS, CLASSES = 16, 4


def rows(count=400):
    """Each class has a value of its own at each place, and every row its noise."""
    noise, out = random.Random(7), array.array("H")
    own = [[noise.randrange(128) for _ in range(INPUTS)] for _ in range(CLASSES)]
    for i in range(count):
        out.extend(v + noise.randrange(128) for v in own[i % CLASSES])
        out.append(i % CLASSES)
    return struct.pack("<3i", 20240520, 1, len(out)) + bytes(4 * 253) + out.tobytes()


class MlpTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        with open(os.path.join(cls.cluster.data, "rows.bin"), "wb") as f:
            f.write(rows())
        cls.cluster.start(2)

    def job(self, name, **changes):
        return self.cluster.job(name, **{"model": {"family": "mlp", "layers": 2, "hidden": 24, "inputs": INPUTS, "classes": CLASSES},
                                         "data": {"path": "rows.bin", "validation_share": 0.1}, "recipe__steps": 60,
                                         "recipe__learning_rate": 1e-2, "recipe__eval_samples": 40, "recipe__eval_every": 20, **changes})

    def train(self, name, **changes):
        code, out, err = self.cluster.cli("submit", self.job(name, **changes), "--watch")
        self.assertEqual(code, 0, out + err)
        return out

    def test_any_cut_learns_what_one_process_learns(self):
        self.train("one", strategy__stages=1)
        out = self.train("two", strategy__stages=2)
        self.assertRegex(out, r"step 60/60 .* validation 0\.\d+  accuracy \d+\.\d\d %")
        one, two = self.cluster.losses("one"), self.cluster.losses("two")
        self.assertEqual(sorted(one), list(range(60)))
        for step, loss in one.items():
            self.assertAlmostEqual(two[step], loss, delta=1e-5 * loss)
        records = [json.loads(line) for line in self.cluster.cli("logs", "two", "--json")[1].splitlines() if line.strip()]
        accuracy = {int(r["step"]): r["validation_accuracy"] for r in records if "validation_accuracy" in r}
        self.assertEqual(sorted(accuracy), [20, 40, 60])
        self.assertGreater(accuracy[60], 0.9)
        self.assertGreater(self.cluster.status("two")["validation_accuracy"], 0.9)

    def test_replicas_with_local_steps_and_codecs_learn_too(self):
        self.train("far", recipe__steps=200, strategy__stages=1, strategy__replicas=2, strategy__local_steps=5, strategy__outer_learning_rate=1,
                   strategy__outer_momentum=0, compression__gradients="bf16")
        self.assertGreater(self.cluster.status("far")["validation_accuracy"], 0.9)
        self.train("coded", strategy__stages=2, compression__forward="delta(quant(4))", compression__backward="quant(6, token, symmetric)")
        self.assertGreater(self.cluster.status("coded")["validation_accuracy"], 0.9)

    def test_an_export_says_its_family_and_generates_nothing(self):
        self.train("out", strategy__stages=2)
        folder = os.path.join(self.cluster.dir, "out-model")
        code, out, err = self.cluster.cli("export", "out", folder)
        self.assertEqual(code, 0, err)
        self.assertIn("safetensors.torch.load_file", out)
        self.assertNotIn("transformers", out)
        self.assertEqual(sorted(os.listdir(folder)), ["config.json", "model.safetensors"])
        with open(os.path.join(folder, "config.json")) as f:
            config = json.load(f)
        self.assertEqual((config["model_type"], config["inputs"], config["num_labels"]), ("isthmus-mlp", INPUTS, CLASSES))
        with open(os.path.join(folder, "model.safetensors"), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        self.assertEqual(header["mlp.layers.0.weight"]["shape"], [INPUTS, 24])
        self.assertEqual(header["mlp.output.weight"]["shape"], [24, CLASSES])
        for target in ("out", folder):
            code, out, err = self.cluster.cli("generate", target, "3")
            self.assertNotEqual(code, 0)
            self.assertIn("is no GPT-2", err + out)

    def test_what_the_family_has_not_is_refused(self):
        job = self.job("refused")
        for change, words in (("model.heads=2", "model.heads"), ("data.format=tokens", "data.format: it must be rows"),
                              ("model.inputs=14", "no whole number of rows of 15"), ("compression.forward=predict(quant(4, token))", "without predict")):
            code, out, err = self.cluster.cli("plan", job, "--set", change)
            self.assertNotEqual(code, 0, change)
            self.assertIn(words, err)


if __name__ == "__main__":
    main()
