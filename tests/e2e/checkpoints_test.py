"""Checkpoints as a user meets them: a full disk, a damaged one, an older one, and how they go."""
import json
import os
import subprocess
import unittest
import urllib.request

from harness import BIN, Cluster, main


def peak_bytes(program):
    with open(f"/proc/{program.process.pid}/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM:"))


class CheckpointsTest(unittest.TestCase):
    def cluster(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        return cluster

    def metric(self, cluster, name):
        with urllib.request.urlopen(f"http://{cluster.http}/metrics", timeout=10) as reply:
            for line in reply.read().decode().splitlines():
                if line.startswith(name + "{"):
                    return float(line.split()[-1])
        return None

    def small_disk(self, cluster, mib, name="coordinator"):
        """A file system of its own for a state directory."""
        path = os.path.join(cluster.dir, name)
        os.mkdir(path)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", path], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"a small file system can't be mounted here (root?): {done.stderr}")
        self.addCleanup(subprocess.run, ["umount", "-l", path], check=True)
        return path

    def test_saving_takes_little_memory_beside_the_state(self):
        """7.1 M parameters, of which a checkpoint holds 85 MB: weights and moments. A copy of all of it would be seen."""
        cluster = self.cluster().start(1)
        programs = [cluster.coordinator, cluster.daemons["d0"]]
        cluster.submit(cluster.job(model__hidden=384, model__heads=12, model__context=16, recipe__steps=100000, recipe__global_batch=1,
                                   recipe__micro_batch=1, recipe__eval_samples=0, strategy__stages=1, checkpoint__every=0))
        cluster.wait_state({"running"}, step=3)
        for program in programs:
            with open(f"/proc/{program.process.pid}/maps") as f:
                if "libasan" in f.read():
                    self.skipTest("AddressSanitizer keeps what was freed")
            with open(f"/proc/{program.process.pid}/clear_refs", "w") as f:
                f.write("5")  # the peak begins anew: what starting took is not counted
        before = [peak_bytes(p) for p in programs]
        self.assertEqual(cluster.cli("stop", "job")[0], 0)
        status = cluster.wait_state({"stopped"})
        self.assertGreaterEqual(int(status["checkpoint_step"]), 3)
        for program, peak in zip(programs, before):
            self.assertLess(peak_bytes(program) - peak, 64 << 20, program.name)

    def test_a_full_disk_is_told_and_the_last_checkpoint_is_held_until_there_is_room(self):
        cluster = self.cluster()
        state = self.small_disk(cluster, 100)
        cluster.start(2)
        filler = os.path.join(state, "filler")
        with open(filler, "wb") as f:
            f.write(bytes(60 << 20))  # 64 MiB stay reserved for the database
        cluster.submit(cluster.job(recipe__steps=200, checkpoint__every=20))
        status = cluster.wait_state({"running"}, step=200)
        self.assertGreaterEqual(int(status["failed_checkpoints"]), 1)
        self.assertEqual(len(status["warnings"]), 1, status)
        self.assertIn("has less room than that", status["warnings"][0])
        self.assertIn("checkpoints are not stored", cluster.cli("list")[1])
        self.assertIn("checkpoints are not stored", cluster.cli("status", "job")[1])
        self.assertGreaterEqual(self.metric(cluster, "isthmus_job_failed_checkpoints"), 1)
        watch = subprocess.Popen([f"{BIN}/isthmus", "--coordinator", cluster.address, "watch", "job"],
                                 stdout=subprocess.PIPE, text=True)
        self.addCleanup(watch.stdout.close)
        self.addCleanup(watch.wait)
        self.addCleanup(watch.kill)
        self.assertIn("warning: checkpoints are not stored", watch.stdout.readline())
        cluster.wait_for(lambda: "held and tried again" in cluster.status()["reason"])
        os.remove(filler)
        status = cluster.wait_state({"finished"})
        self.assertEqual(int(status["checkpoint_step"]), 200)
        self.assertEqual(int(status["failed_checkpoints"]), 0)
        self.assertEqual(status["warnings"], [])

    def test_a_daemon_without_room_sends_its_part_while_the_step_waits(self):
        cluster = self.cluster()
        self.small_disk(cluster, 200, "d1")  # 256 MiB stay free of kept parts
        cluster.start(2)
        job = cluster.job(recipe__steps=20, checkpoint__every=5)
        cluster.submit(job)
        status = cluster.wait_state({"finished"})
        self.assertEqual(int(status["checkpoint_step"]), 20)
        text = cluster.daemons["d1"].text()
        self.assertIn("weights.safetensors of checkpoint 5 is not kept on this host: there is room for 0 of", text)
        self.assertIn("checkpoint 5: this host's disk does not take it, so it is sent while the step waits", text)
        self.assertNotIn("was not stored", text)
        self.assertEqual(cluster.cli("checkpoints", "job", "--verify")[0], 0)
        listed = json.loads(cluster.cli("checkpoints", "job", "--json")[1])["checkpoints"]
        self.assertEqual(sorted(int(c["step"]) for c in listed), [10, 15, 20], "none was lost")
        kept = os.path.join(cluster.dir, "d1", "checkpoints", status["job_id"])
        self.assertEqual([f for _, _, files in os.walk(kept) for f in files], [])
        cluster.submit(cluster.job(recipe__steps=25, checkpoint__every=5), "--resume", "--accept-changes")  # it fetches all
        status = cluster.wait_state({"finished"})
        self.assertEqual(int(status["checkpoint_step"]), 25)
        self.assertEqual(os.listdir(os.path.join(cluster.dir, "d1", "spill")), [])

    def test_a_job_is_removed_though_the_disk_is_full(self):
        cluster = self.cluster()
        state = self.small_disk(cluster, 100)
        cluster.start(2)
        cluster.submit(cluster.job(recipe__steps=20, checkpoint__every=5))
        status = cluster.wait_state({"finished"})
        left = os.path.join(state, "filler")
        with open(left, "wb") as f:
            try:
                while True:
                    f.write(bytes(1 << 16))
                    f.flush()
            except OSError:  # to the last byte
                pass
        code, out, err = cluster.cli("rm", "job")
        self.assertEqual(code, 0, err)
        self.assertIn("freed", out)
        self.assertEqual([n for n in os.listdir(os.path.join(state, "checkpoints")) if status["job_id"] in n], [])
        self.assertEqual(cluster.cli("status", "job")[0], 2)
        cluster.coordinator.kill()
        cluster.start_coordinator(cluster.address)
        self.assertEqual(cluster.cli("status", "job")[0], 2, "it came back")

    def test_one_that_only_the_daemons_keep_comes_in_when_they_are_back_and_goes_with_its_job(self):
        cluster = self.cluster()
        state = self.small_disk(cluster, 100)
        cluster.start(2)
        filler = os.path.join(state, "filler")
        with open(filler, "wb") as f:
            f.write(bytes(60 << 20))
        cluster.submit(cluster.job(recipe__steps=60, checkpoint__every=20))
        cluster.wait_state({"running"}, step=60)  # its last checkpoint is held
        self.assertEqual(int(cluster.status()["checkpoint_step"]), -1)
        cluster.daemons["d1"].kill()
        os.remove(filler)
        cluster.start_daemon("d1")  # its session is gone, its part is not
        status = cluster.wait_state({"finished"})
        self.assertEqual(int(status["checkpoint_step"]), 60)
        self.assertTrue(status["reason"].startswith("all 60 steps are done (though at the end: daemon d1 "), status)
        self.assertEqual(cluster.cli("checkpoints", "job", "--verify")[0], 0)
        self.assertEqual(cluster.cli("export", "job", os.path.join(cluster.dir, "model"))[0], 0)
        kept = [os.path.join(cluster.dir, d, "checkpoints", status["job_id"]) for d in ("d0", "d1")]
        self.assertTrue(all(os.path.exists(k) for k in kept), kept)
        self.assertEqual(cluster.cli("rm", "job")[0], 0)
        cluster.wait_for(lambda: not any(os.path.exists(k) for k in kept))

    def test_a_damaged_one_names_the_sound_ones_and_an_older_one_goes_on(self):
        cluster = self.cluster().start(2)
        job = cluster.job(recipe__steps=20, checkpoint__every=5)
        cluster.submit(job)
        cluster.wait_state({"finished"})
        job_id = cluster.status()["job_id"]
        root = os.path.join(cluster.dir, "coordinator", "checkpoints", job_id)
        with open(os.path.join(root, "step-00000020", "stage-001", "weights.safetensors"), "r+b") as f:
            f.seek(-5, os.SEEK_END)
            f.write(b"\xff")
        self.assertEqual(cluster.cli("checkpoints", "job")[0], 0)
        code, out, err = cluster.cli("checkpoints", "job", "--verify", "--json")
        self.assertEqual(code, 1, err)
        listed = {int(c["step"]): c["damage"] for c in json.loads(out)["checkpoints"]}
        self.assertEqual(sorted(listed), [10, 15, 20])
        self.assertIn("stage-001/weights.safetensors is damaged", listed[20])
        self.assertEqual(listed[15] + listed[10], "")
        code, out, err = cluster.cli("submit", job, "--resume")
        self.assertEqual(code, 5, err)
        self.assertIn("steps 15, 10", err)
        self.assertIn("--resume --step 15", err)
        self.assertEqual(cluster.cli("export", "job", os.path.join(cluster.dir, "model"))[0], 5)
        cluster.submit(job, "--resume", "--step", "10")
        status = cluster.wait_state({"finished"})
        self.assertEqual(int(status["checkpoint_step"]), 20)
        self.assertEqual(sorted(cluster.losses()), list(range(20)))
        self.assertEqual(cluster.cli("checkpoints", "job", "--verify")[0], 0, "written anew")
        code, out, err = cluster.cli("rm", "job")
        self.assertEqual(code, 0, err)
        self.assertIn("freed", out)
        self.assertFalse(os.path.exists(root))
        self.assertEqual(cluster.cli("status", "job")[0], 2)


if __name__ == "__main__":
    main()
