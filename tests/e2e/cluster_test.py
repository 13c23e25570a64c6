"""The daemons, the coordinator and the CLI as a user runs them, on loopback."""
import json
import os
import signal
import subprocess
import time
import unittest
import urllib.request

from harness import BIN, Cluster, main, small_text


class ClusterTest(unittest.TestCase):
    def cluster(self, daemons=None, **options):
        cluster = Cluster(**options)
        self.addCleanup(cluster.close)
        return cluster.start(daemons) if daemons else cluster

    def test_any_cut_and_schedule_gives_the_losses_of_one_process(self):
        cluster = self.cluster(4)
        runs = {}
        for stages, schedule in ((1, "1f1b"), (2, "gpipe"), (2, "1f1b"), (4, "gpipe"), (4, "1f1b")):
            name = f"s{stages}-{schedule}"
            cluster.submit(cluster.job(name, strategy__stages=stages, strategy__schedule=schedule))
            cluster.wait_state({"finished"}, name)
            runs[name] = cluster.losses(name)
            self.assertEqual(len(runs[name]), 20, name)
        reference = runs["s1-1f1b"]
        for name, losses in runs.items():
            for step, loss in losses.items():
                self.assertLess(abs(loss - reference[step]), 1e-5 * reference[step], f"{name} step {step}")

    def test_the_same_run_twice_gives_the_same_losses_with_a_delta_codec(self):
        cluster = self.cluster(2, text=small_text(2600))  # three passes: most visits are warm
        runs = []
        for name in ("first", "second"):
            cluster.submit(cluster.job(name, compression__forward="delta(quant(3))", compression__backward="quant(6) | zstd",
                                       compression__check_buffers=True, recipe__steps=30,
                                       strategy__layers_per_stage=[2, 2]))  # the planner's own cut follows measured steps
            status = cluster.wait_state({"finished"}, name)
            runs.append(cluster.losses(name))
            boundaries = [b for b in status["boundaries"] if b["link_id"] != "tied"]
            self.assertEqual(len(boundaries), 2)
            for b in boundaries:
                self.assertGreater(int(b["raw_bytes"]), int(b["wire_bytes"]), b)
        self.assertEqual(runs[0], runs[1])

    def test_overlapped_steps_are_the_same_on_any_cut_and_over_a_stop_and_a_kill(self):
        cluster = self.cluster(3)
        options = dict(strategy__schedule="overlap", recipe__steps=30, checkpoint__every=10, recipe__schedule="constant", recipe__warmup_steps=0)
        runs = {}
        for stages in (1, 3):
            name = f"s{stages}"
            cluster.submit(cluster.job(name, **options, strategy__stages=stages), "--wait")
            cluster.wait_state({"finished"}, name)
            runs[name] = cluster.losses(name)
            self.assertEqual(len(runs[name]), 30)
        for step, loss in runs["s1"].items():
            self.assertLess(abs(loss - runs["s3"][step]), 1e-5 * loss, f"step {step}")
        code, out, _ = cluster.cli("plan", cluster.job("s3", **options, strategy__stages=3))
        self.assertEqual(code, 0)
        self.assertIn("with weights that are one step late on every stage", out)
        # Delta buffers at both ends stay alike through steps that overlap, a stop and a kill; each goes on from a checkpoint.
        options.update(recipe__steps=4000, compression__forward="delta(quant(4))", compression__backward="quant(8)", compression__check_buffers=True,
                       strategy__stages=3)
        cluster.submit(cluster.job(**options), "--wait")
        cluster.wait_state({"running"}, step=12)
        self.assertEqual(cluster.cli("stop", "job")[0], 0)
        stopped = int(cluster.status()["checkpoint_step"])
        self.assertEqual(stopped, int(cluster.status()["step"]))
        cluster.submit(cluster.job(**options), "--resume", "--wait")
        cluster.wait_state({"running"}, step=stopped + 15)
        cluster.daemons["d1"].kill()
        status = cluster.wait_state({"paused"}, seconds=60)
        self.assertIn("d1", status["reason"])
        at = int(status["checkpoint_step"])
        self.assertGreater(at, stopped)
        cluster.submit(cluster.job(**{**options, "strategy__stages": 2, "recipe__steps": at + 20}), "--resume", "--accept-changes")
        status = cluster.wait_state({"finished"})
        self.assertEqual(int(status["step"]), at + 20)

    def test_kill_minus_9_pauses_the_job_and_resume_goes_on_with_fewer_daemons(self):
        cluster = self.cluster(3)
        cluster.submit(cluster.job(strategy__stages=3, recipe__steps=4000, checkpoint__every=10))
        cluster.wait_state({"running"}, step=25, stored=True)
        self.check_trace(cluster)
        cluster.daemons["d1"].kill()
        status = cluster.wait_state({"paused"}, seconds=60)
        self.assertIn("d1", status["reason"])
        at = int(status["checkpoint_step"])
        self.assertGreaterEqual(at, 10)
        cluster.wait_nodes(2)
        cluster.submit(cluster.job(strategy__stages=2, recipe__steps=4000, checkpoint__every=10), "--resume")
        cluster.wait_state({"running"}, step=at + 30)
        self.assertEqual(cluster.cli("stop", "job")[0], 0)
        losses = cluster.losses()
        self.assertEqual(sorted(losses), list(range(max(losses) + 1)), "a step is missing from the log")
        code, _, err = cluster.cli("rm", "job")
        self.assertEqual(code, 0, err)

    def check_trace(self, cluster):
        """Three stages, four micro-batches a step: every pass is there, and every frame arrives after it was sent."""
        path = os.path.join(cluster.dir, "steps.json")
        code, out, err = cluster.cli("trace", "job", "--steps", "2", "--output", path, "--json")
        self.assertEqual(code, 0, err)
        self.assertEqual(len(json.loads(out)["steps"]), 2)
        with open(path) as f:
            events = json.load(f)["traceEvents"]
        spans = [e for e in events if e["ph"] == "X"]
        for rank in range(3):
            mine = [e["cat"] for e in spans if e["pid"] == rank]
            self.assertEqual((mine.count("forward"), mine.count("backward"), mine.count("optimiser")), (8, 8, 2), rank)
        sent = {e["id"]: e["ts"] for e in events if e["ph"] == "s"}
        error_us = 2e6 * max(r["clock_error_s"] for r in json.loads(out)["ranks"])
        self.assertGreaterEqual(len(sent), 2 * 2 * 2 * 4, "activations and gradients of two boundaries")
        for e in events:
            if e["ph"] == "f":
                self.assertGreaterEqual(e["ts"], sent[e["id"]] - error_us)
        self.assertEqual(cluster.cli("trace", "job", "--output", path)[0], 2, "it was replaced unasked")

    def test_the_coordinator_may_die_and_training_goes_on(self):
        cluster = self.cluster(2)
        cluster.submit(cluster.job(recipe__steps=1500, checkpoint__every=100))
        cluster.wait_state({"running"}, step=5)
        address = cluster.address
        cluster.coordinator.kill()
        time.sleep(3)
        for d in cluster.daemons.values():
            self.assertIsNone(d.process.poll(), "a daemon ended with the coordinator")
        cluster.start_coordinator(address)
        status = cluster.wait_state({"finished"}, seconds=240)
        self.assertEqual(int(status["step"]), 1500)
        self.assertEqual(int(status["generation"]), 1, "the job was started anew")
        losses = cluster.losses()
        self.assertEqual(sorted(losses), list(range(1500)))

    def test_every_program_ends_within_10_s_of_sigterm_also_in_the_middle_of_a_job(self):
        cluster = self.cluster(2)
        cluster.submit(cluster.job(recipe__steps=50000))
        cluster.wait_state({"running"}, step=3)
        cluster.daemons["d0"].kill()
        self.assertEqual(cluster.daemons["d1"].terminate(), 0)
        self.assertEqual(cluster.coordinator.terminate(), 0)

    def test_a_hangup_ends_every_program_in_order(self):
        cluster = self.cluster(1)
        for program in (cluster.daemons["d0"], cluster.coordinator):
            program.process.send_signal(signal.SIGHUP)
            self.assertEqual(program.process.wait(30), 0, program.text())

    def test_a_taken_port_is_said_in_our_words_alone(self):
        cluster = self.cluster()
        cluster.start_coordinator()
        own = ["--listen", cluster.address, "--http", "", "--state-dir", os.path.join(cluster.dir, "second")]
        for argv in (["isthmus-coordinator", *own], ["isthmusd", *own, "--coordinator", cluster.address, "--data-dir", cluster.data]):
            done = subprocess.run([os.path.join(BIN, argv[0]), *argv[1:]], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(cluster.address, done.stderr)
            for line in done.stderr.splitlines():
                self.assertIn(argv[0], line, "a line of a library")

    def test_a_daemon_may_start_before_the_coordinator_and_keeps_its_identity(self):
        cluster = self.cluster()
        cluster.start_coordinator()
        address = cluster.address
        cluster.coordinator.terminate()
        d = cluster.start_daemon("early", coordinator=address)
        d.wait_for("listening on")
        time.sleep(2)
        cluster.start_coordinator(address)
        first = cluster.wait_nodes(1)[0]["node"]["id"]
        for _ in range(3):
            d.kill()
            d = cluster.start_daemon("early", coordinator=address)
            d.wait_for("listening on")
            time.sleep(0.5)
        self.assertEqual(cluster.wait_nodes(1)[0]["node"]["id"], first)
        self.assertEqual(len(json.loads(cluster.cli("nodes", "--json")[1])["nodes"]), 1)

    def test_a_second_program_on_the_same_state_directory_is_refused(self):
        cluster = self.cluster(1)
        for argv in (["isthmus-coordinator", "--state-dir", os.path.join(cluster.dir, "coordinator")],
                     ["isthmusd", "--coordinator", cluster.address, "--state-dir", os.path.join(cluster.dir, "d0"),
                      "--data-dir", cluster.data]):
            r = subprocess.run([f"{BIN}/{argv[0]}", *argv[1:], "--listen", "127.0.0.1:0", "--http", ""],
                               capture_output=True, timeout=20)
            self.assertEqual(r.returncode, 5, r.stderr)

    def test_stop_resume_and_an_uninterrupted_run_give_the_same_losses(self):
        cluster = self.cluster(3)
        cluster.submit(cluster.job("whole", recipe__steps=200))
        cluster.wait_state({"finished"}, "whole")
        cluster.submit(cluster.job("parts", recipe__steps=200))
        cluster.wait_state({"running"}, "parts", step=10)
        code, out, err = cluster.cli("stop", "parts")
        self.assertEqual(code, 0, err)
        self.assertIn("stopped: stopped by the user", out)
        status = cluster.status("parts")
        self.assertEqual(status["state"], "stopped", "stop waits for the end: a resume follows at once")
        self.assertLess(int(status["step"]), 200)
        self.assertEqual(status["checkpoint_step"], status["step"])
        cluster.submit(cluster.job("parts", recipe__steps=200, strategy__stages=3), "--resume")
        cluster.wait_state({"finished"}, "parts")
        whole, parts = cluster.losses("whole"), cluster.losses("parts")
        self.assertEqual(sorted(whole), sorted(parts))
        for step in whole:
            self.assertLess(abs(whole[step] - parts[step]), 1e-5 * whole[step], f"step {step}")

    def test_jobs_that_cannot_run_are_refused_before_anything_starts(self):
        cluster = self.cluster(2)
        for changes, code, text in (
                ({"model__layerz": 3}, 2, "layers"),
                ({"strategy__stages": 5}, 2, "strategy.stages"),
                ({"strategy__stages": 4}, None, "daemon"),
                ({"data__path": "nothing.txt"}, None, "nothing.txt"),
                ({"compression__forward": "quant(9)"}, 2, "1 to 8"),
                ({"model__hidden": 16384, "model__heads": 8, "model__layers": 400}, None, "memory"),
        ):
            got, out, err = cluster.cli("submit", cluster.job("bad", **changes), "--watch")
            self.assertNotEqual(got, 0, changes)
            if code is not None:
                self.assertEqual(got, code, (changes, out, err))
            self.assertIn(text, out + err, changes)
        cluster.submit(cluster.job("good"))
        cluster.wait_state({"finished"}, "good")

    def test_a_daemon_tells_of_files_that_come_later_and_shows_its_links_after_a_restart(self):
        cluster = self.cluster(2)
        job = cluster.job(data__path="late.txt")
        code, _, err = cluster.cli("plan", job)
        self.assertNotEqual(code, 0)
        self.assertIn("late.txt", err)
        with open(os.path.join(cluster.data, "late.txt"), "wb") as f:
            f.write(small_text())
        end = time.monotonic() + 60
        while cluster.cli("plan", job)[0] != 0:
            self.assertLess(time.monotonic(), end, cluster.logs())
            time.sleep(0.5)
        self.assertEqual(cluster.cli("nodes", "--wait", "2", "--timeout", "60")[0], 0)  # links measured
        cluster.daemons["d0"].terminate()
        daemon = cluster.start_daemon("d0")
        cluster.wait_nodes(2)
        words = daemon.wait_for("http ").split()
        url = "http://" + words[words.index("http") + 1].rstrip(",") + "/metrics"
        with urllib.request.urlopen(url, timeout=10) as reply:
            self.assertIn('isthmus_link_rate_bytes_per_second{peer="d1"}', reply.read().decode())


if __name__ == "__main__":
    main()
