"""Local checkpoints: a daemon that is killed and comes back costs one step at most, wherever the kill meets it.

  ISTHMUS_KILLS=50 ISTHMUS_SEED=7 tests/e2e/local_test.py LocalTest.test_seeded_kills    the long proof; CI kills a few times
"""
import json
import os
import random
import re
import unittest

from harness import Cluster, main

KILLS = int(os.environ.get("ISTHMUS_KILLS", "2"))
SEED = int(os.environ.get("ISTHMUS_SEED", "1"))
JOB = "job-1"


class LocalTest(unittest.TestCase):
    def cluster(self, daemons):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        return cluster.start(daemons)

    def job(self, cluster, name="job", steps=100000, **changes):
        # A constant rate, so that runs of any number of steps compare.
        options = {"recipe__steps": steps, "recipe__schedule": "constant", "recipe__warmup_steps": 5, "checkpoint__every": 100000,
                   "checkpoint__local": 1, "recovery__automatic": True,
                   "strategy__layers_per_stage": [2, 2],  # the planner's own cut follows measured steps
                   **changes}
        return cluster.job(name, **options)

    def kept(self, cluster, name):
        """The steps of which a daemon's disk holds whole parts, and the directories of each."""
        root, steps = os.path.join(cluster.dir, name, "checkpoints", JOB), {}
        for part in os.listdir(root) if os.path.isdir(root) else []:
            files = os.listdir(os.path.join(root, part))
            if any(f.startswith("state.json.") and not f.endswith(".tmp") for f in files):
                steps.setdefault(int(part.split("-")[0]), []).append(os.path.join(root, part))
        return steps

    def holders(self, cluster):
        nodes = json.loads(cluster.cli("nodes", "--json")[1])["nodes"]
        return [n["node"]["name"] for n in nodes if n.get("job_id")]

    def start_step(self, cluster, generation):
        """Of the sessions of a generation, as the daemons say."""
        starts = set()
        for name in cluster.daemons:
            with open(os.path.join(cluster.dir, name + ".log"), errors="replace") as f:
                starts |= {int(s) for g, s in re.findall(r"generation (\d+) starts at step (\d+)", f.read()) if int(g) == generation}
        self.assertEqual(len(starts), 1, f"generation {generation}\n{cluster.logs()}")
        return starts.pop()

    def kill(self, cluster, names):
        """Kills them; the committed steps that anybody saw, once the others have ended."""
        for name in names:
            cluster.daemons[name].kill()
        if len(names) < len(cluster.daemons):
            cluster.wait_state({"pending"})
        seen = [int(cluster.status()["step"])]
        for name in set(cluster.daemons) - set(names):
            seen += [int(s) for s in re.findall(r"session ended: .* at step (\d+)", cluster.daemons[name].text())]
        return max(seen)

    def recovered(self, cluster, before):
        """Waits until the job commits steps under a newer generation than `before`; the step it went on from."""
        def goes_on():
            status = cluster.status()
            return int(status["generation"]) > before and status["state"] == "running" and int(status["step"]) > int(status["checkpoint_step"])
        cluster.wait_for(goes_on, 90)
        return self.start_step(cluster, int(cluster.status()["generation"]))

    def lose(self, cluster, names, at):
        """Kills daemons once step `at` is committed and starts them at once; how many steps are made again."""
        cluster.wait_state({"running"}, step=at)
        before = int(cluster.status()["generation"])
        reached = self.kill(cluster, names)
        for name in names:
            cluster.start_daemon(name)
        again = reached - self.recovered(cluster, before)
        self.assertLessEqual(again, 1, f"of {reached}\n{cluster.logs()}")
        return again

    def check_undisturbed(self, cluster):
        """Every step is there once, and its loss is, bit by bit, that of a run that nobody disturbed."""
        self.assertEqual(cluster.cli("stop", "job")[0], 0)
        losses = cluster.losses()
        self.assertEqual(sorted(losses), list(range(int(cluster.status()["step"]))))
        cluster.submit(self.job(cluster, "undisturbed", len(losses), checkpoint__local=0))
        self.assertEqual(cluster.wait_state({"finished", "paused", "failed"}, "undisturbed", seconds=300)["state"], "finished")
        self.assertEqual(cluster.losses("undisturbed"), losses)

    def test_seeded_kills(self):
        cluster = self.cluster(2)
        chance = random.Random(SEED)
        cluster.submit(self.job(cluster))
        cluster.wait_state({"running"}, step=5)
        self.assertEqual(json.loads(cluster.cli("checkpoints", "job", "--json")[1] or "{}").get("checkpoints", []), [])
        for kill in range(KILLS):
            at = int(cluster.status()["step"]) + chance.randrange(3, 40)
            victims = chance.choice([["d0"], ["d1"]]) if kill % 2 == 0 else ["d0", "d1"]
            with self.subTest(kill=kill, victims=victims, at=at):
                self.lose(cluster, victims, at)
        status = cluster.cli("status", "job")[1]
        self.assertIn("It went on by itself after an interruption", status)
        self.check_undisturbed(cluster)

    def cut(self, directory):
        """A part as a kill leaves it that came while its second file was written."""
        for file in os.listdir(directory):
            if file.startswith("state.json"):
                os.unlink(os.path.join(directory, file))
            elif file.startswith("optimizer"):
                os.rename(os.path.join(directory, file), os.path.join(directory, "optimizer.safetensors.tmp"))
        os.truncate(os.path.join(directory, "optimizer.safetensors.tmp"), 100)

    def test_a_kill_in_the_middle_of_writing_costs_the_one_that_was_written(self):
        cluster = self.cluster(2)
        cluster.submit(self.job(cluster))
        for _ in range(20):  # until a kill comes when both have kept the same
            cluster.wait_state({"running"}, step=int(cluster.status()["step"]) + 10)
            before = int(cluster.status()["generation"])
            self.kill(cluster, ["d1"])
            there, mine = self.kept(cluster, "d0"), self.kept(cluster, "d1")
            newest = max(mine)
            both = newest == max(there)
            if both:
                self.cut(mine[newest][0])
            cluster.start_daemon("d1")
            went_on = self.recovered(cluster, before)
            if both:
                break
        self.assertTrue(both, cluster.logs())
        self.assertEqual(went_on, newest - 1)
        self.check_undisturbed(cluster)

    def test_a_daemon_that_stays_away_costs_what_is_not_stored(self):
        cluster = self.cluster(3)
        cluster.submit(self.job(cluster, checkpoint__every=10))
        cluster.wait_state({"running"}, step=25)
        before, victim = int(cluster.status()["generation"]), self.holders(cluster)[0]
        self.kill(cluster, [victim])
        stored = int(cluster.status()["checkpoint_step"])
        self.assertEqual(self.recovered(cluster, before), stored)
        self.assertNotIn(victim, self.holders(cluster))

    def test_a_resume_fetches_what_lies_on_the_disks_after_a_stop_at_once(self):
        cluster = self.cluster(2)
        path = self.job(cluster, **{"strategy__nodes": ["d0", "d1"]})
        cluster.submit(path)
        cluster.wait_state({"running"}, step=20)
        code, out, _ = cluster.cli("stop", "job", "--now")
        self.assertEqual(code, 6, out)
        found = lambda: re.search(r"checkpoint (\d+) lies on the disks of its daemons(?!.* told yet)", cluster.status()["reason"])
        cluster.wait_for(found)
        step = int(found().group(1))
        self.assertEqual(int(cluster.status()["checkpoint_step"]), -1, "nothing travels before somebody wants it")
        self.assertRegex(cluster.cli("checkpoints", "job")[1], rf"(?m)^ *{step} .*its parts lie on the disks of")
        cluster.submit(path, "--resume", "--step", str(step))
        status = cluster.wait_state({"running"}, step=step + 2)
        self.assertEqual(int(status["plan"]["start_step"]), step)

    def test_a_buddy_has_what_lay_on_a_host_that_is_gone(self):
        cluster = self.cluster(3)
        cluster.submit(self.job(cluster, checkpoint__buddies=1))
        self.assertIn("buddies keep copies of local checkpoints: ", cluster.cli("plan", self.job(cluster, "other", checkpoint__buddies=1))[1])
        cluster.wait_state({"running"}, step=20)
        before, (victim, other) = int(cluster.status()["generation"]), self.holders(cluster)
        self.kill(cluster, [victim])
        both = {step for step, parts in self.kept(cluster, other).items() if len(parts) == 2}
        self.assertEqual(int(cluster.status()["generation"]), before, "its disk is as the kill left it")
        self.assertTrue(both, cluster.logs())
        self.assertEqual(self.recovered(cluster, before), max(both))
        self.assertNotIn(victim, self.holders(cluster))
        self.check_undisturbed(cluster)


if __name__ == "__main__":
    main()
