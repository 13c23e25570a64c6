"""What deploy/prometheus and deploy/grafana promise: promtool accepts it, and no file names a metric that nobody serves."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import dashboard
import fake_exporter

DEPLOY = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy"))
PROMETHEUS = os.path.join(DEPLOY, "prometheus")
METRIC = re.compile(r"\b(isthmus_[a-z0-9_]+|process_[a-z0-9_]+(?=[{\[)\s]))")
SUFFIXES = ("_total", "_seconds", "_bytes", "_ratio", "_per_second", "_info")


def read(*path):
    with open(os.path.join(DEPLOY, *path)) as f:
        return f.read()


def listed():
    """{name: (role, labels)} of metrics.txt."""
    found = {}
    for line in read("prometheus", "metrics.txt").splitlines():
        if line and not line.startswith("#"):
            role, name, labels = line.split()[:3]
            found[name] = (role, set(filter(None, labels.strip("{}").split(","))))
    return found


def served(lines):
    """{name: label names} of lines of the exposition format."""
    found = {}
    for line in lines:
        if line.startswith("#") or not line.strip():
            continue
        name, labels = re.match(r"(\w+)(?:\{(.*)\})?\s", line).groups()
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return found


@unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (package prometheus)")
class PromtoolTest(unittest.TestCase):
    def promtool(self, *arguments):
        done = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_config(self):
        self.promtool("check", "config", "prometheus.yml")

    def test_rules(self):
        self.promtool("check", "rules", "--lint-fatal", "alerts.yml")

    def test_alerts_fire_and_keep_silent(self):
        self.promtool("test", "rules", "alerts_test.yml")

    def test_served_text_is_lint_free(self):
        job = fake_exporter.Job()
        for lines in (job.daemon(3), job.coordinator()):
            names = served(lines)
            typed = [f"# HELP {n} x\n# TYPE {n} {'counter' if n.endswith('_total') else 'gauge'}" for n in names]
            grouped = "\n".join(t + "\n" + "\n".join(s for s in lines if re.match(n + r"[{ ]", s)) for t, n in zip(typed, names))
            done = subprocess.run(["promtool", "check", "metrics"], input=grouped + "\n", capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class NamesTest(unittest.TestCase):
    def test_every_metric_named_is_in_the_list(self):
        names = listed()
        for path in ("prometheus/alerts.yml", "prometheus/alerts_test.yml", "prometheus/consoles/isthmus.html",
                     "grafana/isthmus.json"):
            used = set(METRIC.findall(read(*path.split("/"))))
            self.assertTrue(used, path)
            self.assertEqual(used - set(names), set(), f"{path} names metrics that metrics.txt lacks")

    def test_words_of_alerts_agree_with_the_defaults(self):
        """Jobs go on and follow their links by themselves: what an alert tells to do by hand is for those that switch that off."""
        alerts = dict(re.findall(r"- alert: (\w+)(.*?)(?=- alert: |\Z)", read("prometheus", "alerts.yml"), re.S))
        self.assertIn("goes on by itself", alerts["IsthmusDaemonDown"])
        self.assertIn("automatic: false", alerts["IsthmusDaemonDown"])
        self.assertIn("by itself", alerts["IsthmusLinkRateDropped"])
        self.assertIn("follow: false", alerts["IsthmusLinkRateDropped"])

    def test_every_alert_has_a_test(self):
        alerts = re.findall(r"- alert: (\w+)", read("prometheus", "alerts.yml"))
        cases = read("prometheus", "alerts_test.yml")
        self.assertEqual([a for a in alerts if a not in cases], [])

    def test_the_made_up_job_serves_what_the_list_says(self):
        names, job = listed(), fake_exporter.Job()
        daemons = {}
        for stage in range(4):
            for name, labels in served(job.daemon(stage)).items():
                daemons.setdefault(name, set()).update(labels)
        for role, found in (("daemon", daemons), ("coordinator", served(job.coordinator()))):
            expected = {n: labels for n, (r, labels) in names.items() if r in (role, "both")}
            self.assertEqual(found, expected, role)

    def test_base_units(self):
        for name, (_, labels) in listed().items():
            self.assertNotRegex(name, r"_(ms|milliseconds|kb|mb|percent|minutes)(_|$)")
            self.assertLessEqual(len(labels), 2, name)
            self.assertEqual(name.endswith("_total"), "total" in name, name)


class GrafanaTest(unittest.TestCase):
    def setUp(self):
        self.dashboard = json.loads(read("grafana", "isthmus.json"))

    def test_panels_have_distinct_ids_and_do_not_overlap(self):
        panels = self.dashboard["panels"]
        self.assertEqual(len({p["id"] for p in panels}), len(panels))
        cells = {}
        for panel in panels:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            for x in range(at["x"], at["x"] + at["w"]):
                for y in range(at["y"], at["y"] + at["h"]):
                    self.assertNotIn((x, y), cells, f"{panel['title']} lies on {cells.get((x, y))}")
                    cells[x, y] = panel["title"]

    def test_interruptions_and_moves_of_a_job_are_shown(self):
        shown = " ".join(t["expr"] for p in self.dashboard["panels"] for t in p["targets"])
        for name in ("isthmus_job_recoveries", "isthmus_job_moves"):
            self.assertIn(name, shown)

    def test_every_panel_asks_the_chosen_datasource(self):
        variables = {v["name"] for v in self.dashboard["templating"]["list"]}
        for panel in self.dashboard["panels"]:
            self.assertTrue(panel["targets"], panel["title"])
            for target in panel["targets"]:
                self.assertEqual(target["datasource"]["uid"], "${datasource}", panel["title"])
                self.assertLessEqual(set(re.findall(r"\$(\w+)", target["expr"])), variables, panel["title"])

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (package prometheus)")
    def test_every_expression_parses(self):
        rules = {"groups": [{"name": "grafana", "rules": [
            {"record": f"panel:{p['id']}:{t['refId']}", "expr": re.sub(r"\$\w+", ".*", t["expr"])}
            for p in self.dashboard["panels"] for t in p["targets"]]}]}
        done = subprocess.run(["promtool", "check", "rules", "/dev/stdin"], input=json.dumps(rules), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (package prometheus)")
    def test_the_tiles_are_of_one_job(self):
        """Of those chosen the newest that runs; the newest if none does. `old` began first, `ended` last."""
        figures = {"isthmus_job_generation": {"old": 3, "new": 4, "ended": 5}, "isthmus_job_step": {"old": 900, "new": 20, "ended": 999},
                   "isthmus_job_loss": {"old": 2, "new": 5}, "isthmus_job_tokens_per_second": {"old": 100, "new": 50},
                   "isthmus_job_validation_loss": {"old": 3, "new": 6, "ended": 1}}
        tiles = {"Step": "isthmus_job_step", "Loss": "isthmus_job_loss", "Tokens a second": "isthmus_job_tokens_per_second",
                 "Validation loss": "isthmus_job_validation_loss"}
        found = {p["title"]: p["targets"][0]["expr"] for p in self.dashboard["panels"] if p["type"] == "stat"}
        checks = []
        for chosen, job in ((".*", "new"), ("old|ended", "old"), ("ended", "ended")):
            for title, metric in tiles.items():
                name = metric if metric.startswith("isthmus_job_") else ""
                samples = [{"labels": f'{name}{{job="{job}"}}', "value": figures[metric][job]}] if job in figures[metric] else []
                checks.append({"expr": found[title].replace("$training_job", chosen).replace("$node", ".*"), "eval_time": "1m",
                               "exp_samples": samples})
        series = [{"series": f'{metric}{{job="{job}"}}', "values": f"{value}x10"}
                  for metric, of_jobs in figures.items() for job, value in of_jobs.items()]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as f:
            json.dump({"tests": [{"interval": "15s", "input_series": series, "promql_expr_test": checks}]}, f)
            f.flush()
            done = subprocess.run(["promtool", "test", "rules", f.name], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


@unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed")
class ConsoleTest(unittest.TestCase):
    def setUp(self):
        sd_url, servers = fake_exporter.serve()
        for server in servers:
            self.addCleanup(server.server_close)
            self.addCleanup(server.shutdown)
        folder = tempfile.mkdtemp()
        process, self.base = dashboard.start_prometheus(sd_url, folder)
        self.addCleanup(shutil.rmtree, folder, True)
        self.addCleanup(process.wait, 30)
        self.addCleanup(process.terminate)
        dashboard.wait_for("prometheus is ready", lambda: dashboard.get(f"{self.base}/-/ready"), 60)
        dashboard.wait_for("all is scraped", lambda: len(dashboard.query(self.base, "up == 1")) == len(servers), 60)

    def page(self, job=""):
        """(heading, {tile: text})"""
        page = dashboard.get(f"{self.base}/consoles/isthmus.html" + (f"?job={job}" if job else ""))
        heading = re.search(r'data-live="head">(.*?)</span>', page, flags=re.S).group(1)
        tiles = re.findall(r'<div class="tile"><span>(.*?)</span><b>(.*?)</b>', page)
        return re.sub(r"<[^>]*>", "", heading), dict(tiles)

    def test_the_tiles_are_of_the_newest_job_that_runs_or_of_the_one_asked_for(self):
        heading, tiles = self.page()
        self.assertIn(f"job {fake_exporter.JOB} &middot; generation 3 ", heading)
        self.assertIn(f"job {fake_exporter.ENDED}", heading)
        self.assertLess(int(tiles["Step"]), fake_exporter.ENDED_STEP)
        self.assertLess(int(tiles["Last checkpoint, step"]), fake_exporter.ENDED_STEP)
        self.assertGreater(float(tiles["Loss"]), 1.5)
        self.assertGreater(float(tiles["Validation loss"]), 1)
        self.assertLess(int(tiles["Tokens a second"]), 10000)
        heading, tiles = self.page(fake_exporter.ENDED)
        self.assertIn(f"job {fake_exporter.ENDED} &middot; generation 4 ", heading)
        self.assertEqual((tiles["Step"], tiles["Last checkpoint, step"]), (str(fake_exporter.ENDED_STEP),) * 2)
        self.assertEqual((tiles["Loss"], tiles["Validation loss"]), ("&ndash;", "1.500"))
        self.assertEqual(self.page("nobody's%22%7D")[1]["Step"], "&ndash;")  # a name is a name, whatever is in it


if __name__ == "__main__":
    unittest.main()
