"""What deploy/prometheus and deploy/grafana promise: promtool accepts it, and no file names a metric that nobody serves."""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

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


if __name__ == "__main__":
    unittest.main()
