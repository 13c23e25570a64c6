"""Every codec that a job file can name trains through real daemons; and a job crosses the emulated network."""
import collections
import glob
import json
import math
import os
import re
import statistics
import struct
import subprocess
import tempfile
import time
import unittest

from harness import BIN, Cluster, main, small_text, write_yaml

# (forward, backward) of the three boundaries of one job. Tokens travel up with predict, so it starts at the first boundary.
JOBS = {
    "plain": [("bf16", "fp16"), ("fp16", "none"), ("none", "bf16 | zstd")],
    "quant": [("quant(4, token)", "quant(6, group=32)"), ("quant(8, rms)", "quant(4, stochastic)"),
              ("quant(3, symmetric)", "quant(4, channel)")],
    "delta": [("delta(quant(3))", "quant(6)"), ("delta(quant(2), cold=quant(8)) | zstd", "quant(4)"),
              ("delta(topk(0.2))", "sign")],
    "buffers": [("delta(quant(3), buffer=8)", "quant(6)"), ("delta(quant(4), cold=quant(8), buffer=4) | zstd", "quant(6)"),
                ("delta(quant(4), buffer=2)", "quant(8)")],
    "sparse": [("topk(0.3, token)", "topk(0.2, global)"), ("randomk(0.5, scaled)", "cocktail(0.5, 0.2, 4)"),
               ("topk(0.5) | zstd", "randomk(0.5)")],
    "kept": [("topk(0.3)", "kept"), ("topk(0.5, global) | zstd", "kept(quant(8)) | zstd"), ("randomk(0.5, scaled)", "kept(bf16)")],
    "state": [("lowrank(8)", "lep(lowrank(4))"), ("quant(8)", "ef(topk(0.1))"), ("bf16", "lep(quant(2))")],
    "predict": [("predict(quant(3, token), context=2)", "predict(quant(4, token, symmetric), context=2, next)"),
                ("predict(quant(4))", "quant(6)"), ("delta(quant(3), cold=predict(quant(4)))", "quant(6)")],
    "values": [("topk(0.5, values=quant(8, token))", "sign(group=32)"), ("randomk(0.8, values=topk(0.5))", "lowrank(4, values=bf16)"),
               ("fp16", "sign(token)")],
    "rates": [("predict(quant(6), rate=0.1)", "ef(sign(channel))"), ("quant(8)", "quant(6)"), ("bf16", "quant(8)")],
    "learned": [("autoencoder(16)", "none"), ("autoencoder(8, values=bf16)", "bf16"), ("quant(8)", "quant(8)")],
}

# Too coarse to learn more than frequencies in a few hundred steps; what sessions make of every codec, tests/rank/codec_witness.h checks bit by bit.
COARSE = {"delta", "sparse", "state", "values"}
LEARNING_STEPS, COARSE_STEPS = 240, 24


def entropy(text):
    """Of the frequencies of its bytes, in nats: a model whose lower stages get no gradients does not come below it."""
    return -sum(n / len(text) * math.log(n / len(text)) for n in collections.Counter(text).values())


def grammar():
    """{codec: options} that `isthmus help job` names: the table of the parser."""
    text = subprocess.run([f"{BIN}/isthmus", "help", "job"], stdout=subprocess.PIPE, check=True).stdout.decode()
    options, name = {"zstd": set()}, None
    for line in text[text.index("Codecs"):text.index("`auto` takes")].splitlines()[1:]:
        codec, option = re.match(r"  (\w+)", line), re.match(r"    (?:, |\()(\w+)", line)
        if codec:
            name = codec.group(1)
            options[name] = set()
        elif option:
            options[name].add(option.group(1))
    return options


def words_of(text, used):
    """Adds each codec in a text, and the options it has there, to `used`."""
    stack = []
    for word, mark in re.findall(r"(\w[\w.]*)|([(),|=])", text):
        if mark == "(":
            stack.append(last)
        elif mark == ")":
            stack.pop()
        elif word:
            last = word
            used.setdefault(word, set())
            if stack:
                used[stack[-1]].add(word)


def tensors(path):
    """{name: floats} of a safetensors file of fp32 tensors."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    found = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            found[name] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return found


class CodecsTest(unittest.TestCase):
    def check_gradients_arrived(self, cluster, job_id, steps):
        """Every stage's optimiser has seen gradients of its blocks: a boundary whose backward codec is dead leaves all below it at 0."""
        root = os.path.join(cluster.dir, "coordinator", "checkpoints", job_id, f"step-{steps:08}")
        for stage in range(4):
            moments = {n: v for n, v in tensors(os.path.join(root, f"stage-{stage:03}", "optimizer.safetensors")).items()
                       if re.match(r"(transformer\.)?h\.", n)}
            self.assertTrue(moments, (job_id, stage))
            for name, values in moments.items():
                self.assertTrue(any(values), f"{job_id}, stage {stage}: {name} is 0, no gradient came")

    def test_the_jobs_name_every_codec_and_option(self):
        used = {}
        for codecs in JOBS.values():
            for pair in codecs:
                for text in pair:
                    words_of(text, used)
        options = grammar()
        self.assertGreater(len(options), 14)
        for name, words in options.items():
            self.assertIn(name, used)
            self.assertEqual(words - used[name], set(), name)

    def test_every_codec_trains_through_real_daemons(self):
        text = small_text(2600)  # an epoch has 9 steps
        cluster = Cluster(text=text)
        self.addCleanup(cluster.close)
        cluster.start(4)
        for name, codecs in JOBS.items():
            boundaries = [{"boundary": b, "forward": f, "backward": g} for b, (f, g) in enumerate(codecs)]
            steps = COARSE_STEPS if name in COARSE else LEARNING_STEPS
            cluster.submit(cluster.job(name, strategy__stages=4, recipe__steps=steps, recipe__learning_rate=2e-3, recipe__schedule="constant",
                                       checkpoint__every=0, compression__boundaries=boundaries))
            status = cluster.wait_state({"finished"}, name)
            losses = cluster.losses(name)
            self.assertEqual(len(losses), steps, name)
            self.assertTrue(all(math.isfinite(loss) for loss in losses.values()), (name, losses))
            self.check_gradients_arrived(cluster, status["job_id"], steps)
            if name not in COARSE:  # 0.8 to 1.3 here; without gradients from above 2.78
                self.assertLess(statistics.mean(losses[step] for step in range(steps - 9, steps)), entropy(text) - 0.5, name)
            for b in status["boundaries"]:
                self.assertGreater(int(b["wire_bytes"]), 0, (name, b))


class TestnetTest(unittest.TestCase):
    def test_a_job_crosses_the_emulated_network(self):
        if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
            self.skipTest("the emulator needs root and /dev/net/tun")
        with tempfile.TemporaryDirectory(prefix="isthmus-e2e-") as folder:
            with open(os.path.join(folder, "text.txt"), "wb") as f:
                f.write(small_text(2600))
            job = {
                "name": "across", "seed": 3, "model": {"layers": 2, "hidden": 32, "heads": 4, "context": 32},
                "data": {"path": "text.txt"},
                "recipe": {"steps": 20, "global_batch": 8, "micro_batch": 2, "learning_rate": 3e-3, "eval_samples": 8},
                "strategy": {"stages": 2}, "compression": {"forward": "delta(quant(3))", "backward": "quant(6)", "tied": "bf16 | zstd"},
            }
            path = os.path.join(folder, "job.yaml")
            with open(path, "w") as f:
                write_yaml(job, f)
            run_dir = os.path.join(folder, "run")
            r = subprocess.run([f"{BIN}/isthmus", "testnet", "--nodes", "2", "--uplink", "20Mbit", "--delay", "10ms", "--data-dir", folder,
                                "--run-dir", run_dir, "--json", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=180)
            self.assertEqual(r.returncode, 0, r.stderr.decode(errors="replace")[-3000:])
            summary = json.loads(r.stdout)
            self.assertEqual(int(summary["step"]), 20, summary)
            with open(os.path.join(run_dir, "links.csv")) as f:
                self.assertIn("n1,@up,20Mbit,,,\n", f.read())
            with open(os.path.join(run_dir, "n1.log")) as f:
                self.assertIn("all links share 20Mbit a second (--uplink)", f.read())
            directions = {(b["link_id"], b["direction"]): b for b in summary["boundaries"]}
            self.assertEqual(len(directions), 4, summary)
            for key in (("b0", "forward"), ("b0", "backward")):
                self.assertGreater(int(directions[key]["raw_bytes"]), int(directions[key]["wire_bytes"]), summary)
            # The last step's frames are counted at both ends.
            self.assertEqual(directions[("tied", "forward")]["raw_bytes"], directions[("tied", "backward")]["raw_bytes"])

    def test_a_signal_says_what_is_kept(self):
        """Its daemons end with it, so the job does not go on: the words say what is kept of it."""
        if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
            self.skipTest("the emulator needs root and /dev/net/tun")
        with tempfile.TemporaryDirectory(prefix="isthmus-e2e-") as folder:
            with open(os.path.join(folder, "text.txt"), "wb") as f:
                f.write(small_text(2600))
            job = {
                "name": "cut", "seed": 3, "model": {"layers": 2, "hidden": 32, "heads": 4, "context": 32}, "data": {"path": "text.txt"},
                "recipe": {"steps": 100000, "global_batch": 8, "micro_batch": 2, "learning_rate": 3e-3, "eval_samples": 8},
                "strategy": {"stages": 2}, "checkpoint": {"every": 5, "local": 0},
            }
            path = os.path.join(folder, "job.yaml")
            with open(path, "w") as f:
                write_yaml(job, f)
            run_dir = os.path.join(folder, "run")
            state = os.path.join(run_dir, "coordinator")
            process = subprocess.Popen([f"{BIN}/isthmus", "testnet", "--nodes", "2", "--rate", "20Mbit", "--delay", "10ms", "--data-dir", folder,
                                        "--run-dir", run_dir, path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                deadline = time.monotonic() + 120
                while not glob.glob(os.path.join(state, "checkpoints", "cut-*", "step-*")) and time.monotonic() < deadline:
                    time.sleep(0.1)
                process.terminate()
                words = process.communicate(timeout=60)[1].decode(errors="replace")
            finally:
                process.kill()
                process.wait()
            self.assertEqual(process.returncode, 130, words)
            self.assertNotIn("the job goes on", words)
            kept = sorted(glob.glob(os.path.join(state, "checkpoints", "cut-*", "step-*")))[-1]
            self.assertIn(f"its checkpoint of step {int(kept.rsplit('-', 1)[1])} is kept in {state}", words)


if __name__ == "__main__":
    main()
