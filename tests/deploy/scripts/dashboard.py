#!/usr/bin/env python3
"""Renders the console page of a running job: Prometheus scrapes what a /sd URL lists, headless Chromium opens the page.

  dashboard.py [--sd URL] [--seconds N] [--png FILE]

Without --sd a job is made up (fake_exporter.py). Fails when the page lacks a series or the picture is blank.
Exit code 77: prometheus or chromium is not installed.
"""
import argparse
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
DEPLOY = os.path.normpath(os.path.join(HERE, "..", "..", "..", "deploy"))
SKIPPED = 77


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


def query(base, expression):
    reply = json.loads(get(f"{base}/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
    return reply["data"]["result"]


def wait_for(what, condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {seconds} s")


def start_prometheus(sd_url, folder):
    """The shipped configuration with another address and a quicker clock; returns (process, base URL)."""
    with open(os.path.join(DEPLOY, "prometheus", "prometheus.yml")) as f:
        config = f.read()
    config = config.replace("http://127.0.0.1:7080/sd", sd_url).replace("refresh_interval: 15s", "refresh_interval: 1s")
    config = config.replace("scrape_interval: 5s", "scrape_interval: 1s").replace("scrape_timeout: 4s", "scrape_timeout: 1s")
    with open(os.path.join(folder, "prometheus.yml"), "w") as f:
        f.write(config)
    shutil.copy(os.path.join(DEPLOY, "prometheus", "alerts.yml"), folder)
    port = free_port()
    log = open(os.path.join(folder, "prometheus.log"), "w")
    process = subprocess.Popen(
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
         f"--web.listen-address=127.0.0.1:{port}", f"--web.console.templates={DEPLOY}/prometheus/consoles"],
        stdout=log, stderr=log)
    log.close()
    return process, f"http://127.0.0.1:{port}"


def chromium(program, folder, url, *options):
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
               f"--user-data-dir={folder}/chromium", "--window-size=1280,1800", "--virtual-time-budget=8000", *options, url]
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env={**environment, "HOME": folder})
    if done.returncode:
        raise AssertionError(f"chromium ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def pixels(path):
    """(width, height, rows of bytes, bytes a pixel) of an 8-bit PNG without interlacing."""
    with open(path, "rb") as f:
        data = f.read()
    at, packed, header = 8, b"", None
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        header = body if kind == b"IHDR" else header
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", header[:10])
    assert depth == 8 and colour in (2, 6), "an RGB or RGBA picture"
    size = 3 if colour == 2 else 4
    raw, rows, above = zlib.decompress(packed), [], bytes(width * size)
    for y in range(height):
        start = y * (width * size + 1)
        above = unfilter(raw[start], raw[start + 1:start + 1 + width * size], above, size)
        rows.append(above)
    return width, height, rows, size


def unfilter(kind, row, above, size):
    row = bytearray(row)
    for i in range(len(row)):
        a = row[i - size] if i >= size else 0
        b, c = above[i], above[i - size] if i >= size else 0
        if kind == 1:
            row[i] = (row[i] + a) & 255
        elif kind == 2:
            row[i] = (row[i] + b) & 255
        elif kind == 3:
            row[i] = (row[i] + (a + b) // 2) & 255
        elif kind == 4:
            p = a + b - c
            da, db, dc = abs(p - a), abs(p - b), abs(p - c)
            row[i] = (row[i] + (a if da <= db and da <= dc else b if db <= dc else c)) & 255
    return bytes(row)


def check_picture(path):
    width, height, rows, size = pixels(path)
    colours = {}
    for row in rows[::3]:
        for x in range(0, width * size, 3 * size):
            colour = row[x:x + 3]
            colours[colour] = colours.get(colour, 0) + 1
    total = sum(colours.values())
    commonest = max(colours.values()) / total
    assert len(colours) > 30 and commonest < 0.9, f"{path}: {len(colours)} colours, {commonest:.0%} of one: blank?"
    saturated = sum(n for c, n in colours.items() if max(c) - min(c) > 80) / total
    assert saturated > 0.002, f"{path}: no coloured lines or bars"
    return f"{width} x {height}, {len(colours)} colours"


def check_text(dom, base):
    """Every daemon, boundary, group and job that Prometheus knows is on the page, and every chart is drawn."""
    text = re.sub(r"<script.*?</script>", " ", dom, flags=re.S)
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))
    wanted = {s["metric"]["node"] for s in query(base, "up{role='daemon'}")}
    wanted |= {s["metric"]["link"] for s in query(base, "isthmus_boundary_wire_bytes_total > 0")}
    wanted |= {"job " + s["metric"]["job"] for s in query(base, "isthmus_job_step")}
    missing = sorted(word for word in wanted if word not in plain)
    assert wanted and not missing, f"not on the page: {missing}\n{plain[:2000]}"
    groups = {s["metric"]["group"] for s in query(base, "isthmus_group_wire_bytes_total > 0")}
    missing = sorted(group for group in groups if f"<td>{group}</td>" not in text)
    assert groups and not missing, f"no group, or one that the page's table lacks: {missing}\n{plain[:2000]}"
    for chart in ("loss", "tokens", "split", "wire", "rates"):
        assert re.search(rf'id="{chart}">\s*<svg', text), f"the chart '{chart}' is not drawn\n{plain[:2000]}"
    assert "error" not in plain.lower(), plain[:2000]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sd", help="URL of a coordinator's service discovery")
    parser.add_argument("--seconds", type=float, default=15, help="how long to collect before looking [15]")
    parser.add_argument("--png", help="where to leave the picture")
    args = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if not browser or not shutil.which("prometheus"):
        print("skipped: prometheus or chromium is not installed (deploy/setup.sh --tests)")
        return SKIPPED
    sd_url = args.sd
    if not sd_url:
        sys.path.insert(0, HERE)
        import fake_exporter
        sd_url, _ = fake_exporter.serve()
    with tempfile.TemporaryDirectory() as folder:
        process, base = start_prometheus(sd_url, folder)
        try:
            wait_for("prometheus is ready", lambda: get(f"{base}/-/ready"), 30)
            wait_for("daemons scraped", lambda: query(base, "up{role='daemon'} == 1"), 30)
            time.sleep(args.seconds)
            page = f"{base}/consoles/isthmus.html"
            check_text(chromium(browser, folder, page, "--dump-dom"), base)
            png = os.path.abspath(args.png or os.path.join(folder, "isthmus.png"))
            chromium(browser, folder, page, f"--screenshot={png}")
            print(f"{png}: {check_picture(png)}")
        finally:
            process.terminate()
            process.wait(10)
    return 0


if __name__ == "__main__":
    sys.exit(main())
