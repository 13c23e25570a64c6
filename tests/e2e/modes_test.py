"""Ways to train, each across the emulated network (50 Mbit/s, 10 ms): replicas, local steps, fragments, few-bit momentum, overlapped steps, an
epilogue's codec, a head of its own. Every step is made once, the loss falls, and what the mode sends is sent.
"""
import collections
import json
import math
import os
import statistics
import sys
import unittest

from generate_test import ROOT, has
from harness import main, small_text
from wan_cluster import WanCluster

TEXT = small_text(2600)  # an epoch has five steps
STEPS, LAST = 54, 10
BETWEEN_FOUR = ["g0-1", "g0-2", "g0-3", "g1-2", "g1-3", "g2-3"]
TWO_BY_TWO = ["b0.0", "b0.1", *BETWEEN_FOUR]


# Half a nat below the entropy of the frequencies of its bytes. Where next to nothing comes back (backward topk(0.0001)) the loss stays half a nat
# above it.
BOUND = -sum(n / len(TEXT) * math.log(n / len(TEXT)) for n in collections.Counter(TEXT).values()) - 0.5


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "the emulator needs root and /dev/net/tun")
class ModesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = WanCluster(5, "50Mbit", "10ms", text=TEXT)
        cls.addClassCleanup(cls.cluster.close)
        code, out, err = cls.cluster.cli("nodes", "--wait", "4", "--timeout", "90")
        assert code == 0, out + err + cls.cluster.logs()

    def submit(self, name, nodes, stages, **changes):
        options = {"model__layers": 2, "model__hidden": 64, "model__heads": 8, "recipe__steps": STEPS, "recipe__global_batch": 16,
                   "recipe__micro_batch": 4, "recipe__learning_rate": 3e-3, "recipe__schedule": "constant", "recipe__eval_samples": 0,
                   "checkpoint__every": 0, "strategy__stages": stages, "strategy__nodes": [f"d{i}" for i in nodes],
                   "strategy__replicas": len(nodes) // stages}
        self.cluster.submit(self.cluster.job(name, **{**options, **changes}))
        self.addCleanup(self.cluster.cli, "stop", name, "--now")  # the next test needs its daemons

    def check(self, name, links, steps=STEPS):
        """It finishes, has learnt, and each of `links` (and no other) sent bytes both ways."""
        status = self.cluster.wait_state({"finished"}, name, seconds=180)
        losses = self.cluster.losses(name)
        self.assertEqual(sorted(losses), list(range(steps)), name)
        last = statistics.mean(losses[step] for step in range(steps - LAST, steps))
        print(f"{name}: {losses[0]:.3f} -> {last:.3f}", flush=True)
        self.assertLess(last, BOUND, name)
        sent = {(b["link_id"], b["direction"]): int(b["wire_bytes"]) for b in status["boundaries"]}
        self.assertEqual({link for link, _ in sent}, set(links), name)
        self.assertEqual({key: bytes_ for key, bytes_ in sent.items() if bytes_ == 0}, {}, name)

    def test_two_replicas_of_two_stages(self):
        bf16 = {f"compression__{what}": "bf16" for what in ("forward", "backward", "tied", "gradients")}
        self.submit("replicas", (1, 2, 3, 4), 2, **bf16)
        self.check("replicas", TWO_BY_TWO)

    def test_four_replicas_with_local_steps_and_in_fragments(self):
        exchange = {"compression__gradients": "ef(quant(8, token, symmetric))"}
        self.submit("local", (1, 2, 3, 4), 1, strategy__local_steps=5, **exchange)
        self.check("local", BETWEEN_FOUR)
        self.submit("streaming", (1, 2, 3, 4), 1, strategy__local_steps=6, strategy__fragments=2, strategy__fragment_delay=1, **exchange)
        self.check("streaming", BETWEEN_FOUR)

    def test_momentum_of_few_bits(self):
        self.submit("momentum", (1, 2, 3, 4), 2, recipe__optimizer="quantized_adam", recipe__optimizer_warmup=20,
                    compression__gradients="ef(quant(4, token, symmetric))", compression__tied="ef(quant(8, token, symmetric))")
        self.check("momentum", TWO_BY_TWO)

    def test_an_epilogue_and_the_gradients_of_one_stage(self):
        self.submit("epilogue", (1, 2, 3, 4), 2, recipe__steps=63, recipe__micro_batch=2, recipe__learning_rate=2e-3, strategy__in_flight=2,
                    compression__backward="lep(lowrank(8))", compression__backward_when="epilogue", compression__gradients="lowrank(4)",
                    compression__gradient_stages=1)
        self.check("epilogue", TWO_BY_TWO, 63)

    def test_overlapped_steps_beside_a_head_of_its_own(self):
        self.submit("overlap", (1, 2), 2, strategy__schedule="overlap", recipe__steps=72, recipe__learning_rate=1.5e-3,
                    compression__forward="quant(8)", compression__backward="quant(8)")
        self.submit("untied", (3, 4), 2, model__tied=False)
        self.check("overlap", ["b0", "tied"], 72)
        self.check("untied", ["b0"])
        folder = os.path.join(self.cluster.dir, "untied-model")
        code, _, err = self.cluster.cli("export", "untied", folder)
        self.assertEqual(code, 0, err)
        with open(os.path.join(folder, "config.json")) as f:
            config = json.load(f)
        self.assertFalse(config["tie_word_embeddings"])
        if has("numpy"):
            self.check_export(folder, config)

    def check_export(self, folder, config):
        """What is exported has learnt the text, by other people's readers."""
        import numpy as np
        sys.path.insert(0, os.path.join(ROOT, "tests", "engine"))
        import check_export
        tensors = {name: t.astype(np.float64) for name, t in check_export.read(os.path.join(folder, "model.safetensors")).items()}
        tokens = np.frombuffer(TEXT[:33 * 32], np.uint8).astype(np.int64).reshape(-1, 33)
        logits = check_export.logits(config, tensors, tokens[:, :-1])
        chosen = np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        loss = float(np.mean(np.log(np.exp(logits).sum(-1)) - chosen))
        self.assertLess(loss, BOUND)
        check_export.check_transformers(folder, {"tokens": tokens[:, :-1], "logits": logits}, 1e-3)


if __name__ == "__main__":
    main()
