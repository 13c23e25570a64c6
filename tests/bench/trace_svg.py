#!/usr/bin/env python3
"""Draws a trace of `isthmus trace` as an SVG: a row a thread, a bar a span, arrows from sends to receives.

    tests/bench/trace_svg.py steps.json > coordinator/trace.svg
"""
import json
import sys
from html import escape

WIDTH, LEFT, ROW, GAP, TOP = 1000, 190, 18, 12, 70
COLOURS = {
    "forward": "#1b6ca8", "backward": "#2e8b57", "optimiser": "#8e44ad", "reduce": "#b8860b", "wait": "#dddddd",
    "encode": "#d35400", "send": "#e8a87c", "receive": "#9ad1d4", "decode": "#16a085", "evaluate": "#7f8c8d",
    "checkpoint": "#2c3e50",
}


def rows_of(events):
    """{(pid, tid): y} of the threads that have spans, and [(y, text, bold)] of their names."""
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"].endswith("_name")}
    used = sorted({(e["pid"], e["tid"]) for e in events if e["ph"] == "X"})
    rows, labels, y, last = {}, [], TOP, None
    for pid, tid in used:
        if pid != last:
            y += GAP
            labels.append((y, names.get((pid, None), f"rank {pid}"), True))
            y += ROW
        last = pid
        rows[pid, tid] = y
        labels.append((y, names.get((pid, tid), f"thread {tid}"), False))
        y += ROW
    return rows, labels, y


def draw(trace):
    events = trace["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    if not spans:
        raise SystemExit("the trace has no spans")
    rows, labels, bottom = rows_of(events)
    end = max(e["ts"] + e["dur"] for e in spans)
    scale = (WIDTH - LEFT - 20) / end
    x = lambda ts: LEFT + ts * scale
    height = bottom + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    steps = sorted({e["args"]["step"] for e in spans})
    words = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    out.append(f'<text x="20" y="24" font-size="15">{escape(trace["otherData"]["job"])}, {words}: {end / 1000:.1f} ms</text>')
    at = 20
    for kind in COLOURS:
        if any(e["cat"] == kind for e in spans):
            out.append(f'<rect x="{at}" y="38" width="10" height="10" fill="{COLOURS[kind]}"/>')
            out.append(f'<text x="{at + 14}" y="47">{kind}</text>')
            at += 30 + 7 * len(kind)
    for y, text, bold in labels:
        weight = ' font-weight="bold"' if bold else ""
        out.append(f'<text x="{20 if bold else 34}" y="{y + 12}"{weight}>{escape(text)}</text>')
    for e in sorted(spans, key=lambda e: -e["dur"]):  # what lies in another span is drawn over it
        out.append(f'<rect x="{x(e["ts"]):.2f}" y="{rows[e["pid"], e["tid"]] + 2}" width="{max(e["dur"] * scale, 0.4):.2f}" '
                   f'height="{ROW - 4}" fill="{COLOURS[e["cat"]]}"/>')
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    for e in events:
        if e["ph"] == "f" and e["id"] in starts:
            s = starts[e["id"]]
            out.append(f'<line x1="{x(s["ts"]):.2f}" y1="{rows[s["pid"], s["tid"]] + ROW / 2}" x2="{x(e["ts"]):.2f}" '
                       f'y2="{rows[e["pid"], e["tid"]] + ROW / 2}" stroke="#555" stroke-width="0.5"/>')
    for i in range(6):
        ts = end * i / 5
        out.append(f'<text x="{x(ts):.1f}" y="{height - 14}" text-anchor="middle">{ts / 1000:.1f} ms</text>')
    return "\n".join(out + ["</svg>", ""])


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stdout if "--help" in sys.argv else sys.stderr)
        sys.exit(0 if "--help" in sys.argv else 2)
    with open(sys.argv[1]) as f:
        sys.stdout.write(draw(json.load(f)))
