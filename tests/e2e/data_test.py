"""Data that users have: other formats, other contents on one host, files that change under a job, names of any encoding."""
import array
import os
import struct
import time
import unittest

from harness import Cluster, main, small_text


def ids(kind, count=6000, below=300):
    return array.array(kind, ((i * 7919 + i * i) % below for i in range(count))).tobytes()


def header(magic, version, count):
    return struct.pack("<256i", magic, version, count, *[0] * 253)


class DataTest(unittest.TestCase):
    def cluster(self, daemons, text=None):
        cluster = Cluster(text=text)
        self.addCleanup(cluster.close)
        return cluster.start(daemons)

    def write(self, directory, name, contents):
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(contents)
        return path

    def refused(self, cluster, words, **changes):
        for command in ("plan", "submit"):
            code, out, err = cluster.cli(command, cluster.job("bad", **changes))
            self.assertNotEqual(code, 0, (changes, out))
            self.assertIn(words, err, changes)

    def test_files_that_are_not_what_the_job_says_are_refused_when_it_is_planned(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        good = ids("H")
        files = {
            "long.bin": (ids("q"), "these look like 64-bit ids"),
            "cut_wide.bin": (header(20240801, 7, 6001) + ids("I"), "cut off or damaged"),
            "large_wide.bin": (ids("I") + struct.pack("<I", 70000), "token 70000 is beyond model.vocabulary (512)"),
            "hellaswag_val.bin": (header(20240522, 1, 10) + good, "hellaswag"),
            "gpt2_124M.bin": (header(20240326, 3, 1024) + good, "GPT-2 weights of llm.c"),
            "odd.bin": (good + b"x", "no whole number of 16-bit ids"),
            "large.bin": (good + struct.pack("<H", 520), "token 520 is beyond model.vocabulary (512)"),
            "cut.bin": (header(20240520, 1, 6001) + good, "cut off or damaged"),
        }
        for name, (contents, _) in files.items():
            self.write(cluster.data, name, contents)
        self.write(cluster.data, "set/train.bin", good)
        self.write(cluster.data, "set/val.bin", ids("H", 700))
        cluster.start(2)
        tokens = {"model__vocabulary": 512}
        for name, (_, words) in files.items():
            self.refused(cluster, words, data__path=name, **tokens)
        self.refused(cluster, "is a directory, and data.format is bytes", data__path="set", **tokens)
        # 32-bit ids, with llm.c's header and without one.
        self.write(cluster.data, "wide.bin", ids("I"))
        self.write(cluster.data, "llama.bin", header(20240801, 7, 6000) + ids("I"))
        for name in ("wide.bin", "llama.bin"):
            cluster.wait_for(lambda: cluster.cli("plan", cluster.job("wide", data__path=name, **tokens))[0] == 0)
            self.assertIn("178 training samples", cluster.cli("plan", cluster.job("wide", data__path=name, **tokens))[1], name)
        job = cluster.job("set", data={"path": "set", "format": "tokens"}, **tokens)
        code, out, err = cluster.cli("plan", job)
        self.assertEqual(code, 0, err)
        self.assertIn("187 training samples", out)
        self.assertIn("the validation set is val.bin, 21 samples", out)
        cluster.submit(job)
        cluster.wait_state({"finished"}, "set")

    def test_other_contents_on_one_host_are_refused_and_both_are_named(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        cluster.start_coordinator()
        cluster.start_daemon("d0")
        text = bytearray(small_text())
        text[30000] ^= 1
        other = os.path.join(cluster.dir, "other")
        self.write(other, "text.txt", bytes(text))
        cluster.data, first = other, cluster.data
        cluster.start_daemon("d1")
        cluster.data = first
        cluster.wait_nodes(2)
        self.refused(cluster, "hold different data at 'text.txt'")
        self.assertEqual(cluster.cli("plan", cluster.job("one", strategy__stages=1))[0], 0)

    def test_a_text_that_is_copied_over_ends_the_session_in_words(self):
        cluster = self.cluster(2)
        path = os.path.join(cluster.data, "text.txt")
        cluster.submit(cluster.job(recipe__steps=100000))
        cluster.wait_state({"running"}, step=12, stored=True)
        with open(path, "wb") as f:  # as cp does: cut, then written anew
            f.write(b"something else")
        status = cluster.wait_state({"paused"})
        self.assertIn("text.txt was changed while it was in use", status["reason"])
        self.assertIn("Put the former file back", status["reason"])
        for daemon in cluster.daemons.values():
            self.assertIsNone(daemon.process.poll(), cluster.logs())
        with open(path, "wb") as f:
            f.write(small_text())
        job = cluster.job(recipe__steps=int(status["checkpoint_step"]) + 10)
        end = time.monotonic() + 60
        while cluster.cli("plan", job)[0] != 0:  # until the daemons have seen it
            self.assertLess(time.monotonic(), end, cluster.logs())
            time.sleep(0.5)
        code, _, err = cluster.cli("submit", job, "--resume")  # fewer steps: another schedule
        self.assertEqual(code, 5, err)
        self.assertIn("recipe.steps: 100000 -> ", err)
        self.assertNotIn("another text", err)
        cluster.submit(job, "--resume", "--accept-changes")
        cluster.wait_state({"finished"})

    def test_names_that_are_not_utf8_keep_no_host_out(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        with open(os.path.join(cluster.data.encode(), b"B\xfccher.txt"), "wb") as f:
            f.write(small_text())
        cluster.start(2)
        cluster.submit(cluster.job(recipe__steps=100000, checkpoint__every=100000))
        cluster.wait_state({"running"}, step=2)
        with open(os.path.join(cluster.data.encode(), b"M\xfcnchen.txt"), "wb") as f:
            f.write(small_text())
        cluster.daemons["d0"].wait_for("is left out, its name is not UTF-8")
        step = int(cluster.status()["step"])
        cluster.wait_state({"running"}, step=step + 10)
        self.assertEqual(cluster.cli("stop", "job", "--now")[0], 6, "steps are lost")


if __name__ == "__main__":
    main()
