#!/usr/bin/env python3
"""Draws the pictures of docs/pacing.md and docs/limits.md.

    docs/pictures/draw.py [--sluiced PROGRAM] [--into FOLDER]

leases.svg and restart.svg show one run of the simulation, which drives the production code under a virtual
clock: they are drawn from what `sluiced sim --seed 316 --verbose` prints. bursts.svg is drawn from the formulas
of a fixed window, a token bucket and a row of slots, as they stand in this file. campaign.svg is drawn by
`sluiced plan`, with the arguments that the page shows.

Only the standard library is needed. The same program draws the same files.
"""

import argparse
import pathlib
import re
import subprocess
import sys

SEED = 316
LIMIT, WINDOW, HEADROOM = 400, 1.0, 0.005  # of that run, and of bursts.svg
PERIOD = (WINDOW + HEADROOM) / LIMIT  # from slot to slot

# A light card with dark text: readable on light and dark pages.
PAPER, FRAME, TEXT, FAINT, RED = "#fbfaf7", "#c9c5bb", "#2b2b2b", "#6b6b6b", "#b3261e"
COLOURS = ["#0072b2", "#c2570c", "#007a5a"]


class Picture:
    """An SVG that grows line by line."""

    def __init__(self, width, height, title):
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="13" role="img">',
            f"<title>{title}</title>",
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6" fill="{PAPER}" stroke="{FRAME}"/>',
        ]

    def text(self, x, y, words, colour=TEXT, anchor="start", size=13, weight="normal"):
        self.lines.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}" '
            f'font-weight="{weight}">{words}</text>'
        )

    def line(self, x1, y1, x2, y2, colour=FRAME, width=1.0, dash=""):
        dash = f' stroke-dasharray="{dash}"' if dash else ""
        self.lines.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"{dash}/>'
        )

    def box(self, x, y, width, height, colour, opacity=1.0):
        self.lines.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}" '
            f'fill-opacity="{opacity}"/>'
        )

    def mark(self, x, y, colour):
        """A triangle that points down at (x, y)."""
        self.lines.append(f'<path d="M{x:.1f} {y:.1f} l-5 -9 h10 z" fill="{colour}"/>')

    def curve(self, points, colour):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')

    def save(self, path):
        path.write_text("\n".join(self.lines + ["</svg>", ""]))
        print(path)


def fullest(calls, now):
    """How many calls the last window holds."""
    return sum(1 for call in calls if now - WINDOW < call <= now)


class Run:
    """What the simulation printed."""

    def __init__(self, program):
        command = [program, "sim", "--seed", str(SEED), "--verbose", "--events", "4000"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.asks, self.leases, self.calls, self.guarded, self.restarts = [], [], [], [], []
        for line in text.splitlines():
            event = re.match(r" *([0-9.]+) s  replica (\d+) +(.*)", line)
            if not event:
                continue
            at, replica, what = float(event[1]), int(event[2]), event[3]
            lease = re.match(r"is leased (\d+) from \[([0-9.]+)\]", what)
            if lease:
                first, count = float(lease[2]), int(lease[1])
                self.leases.append((at, replica, first, first + count * PERIOD))
            elif what.endswith("arrives"):
                self.calls.append((at, replica))
            elif what.startswith("Restart"):
                self.restarts.append(at)
            elif what.startswith("gets none (guarded)"):
                self.guarded.append((at, replica))
        if not (self.leases and self.calls and self.restarts and self.guarded):
            sys.exit(f"seed {SEED} has no restart of Redis any more: choose another seed in draw.py")


def lanes(picture, run, start, end, left, right, top, height):
    """The leases and calls of each replica from `start` to `end`, and the axis below them."""

    def x(at):
        return left + (at - start) / (end - start) * (right - left)

    for replica, colour in enumerate(COLOURS):
        y = top + replica * height
        picture.text(14, y + 31, f"replica {replica + 1}", colour, weight="bold")
        picture.line(left, y + 40, right, y + 40)
        for at, holder, first, last in run.leases:
            if holder == replica and first < end and last > start:
                a, b = x(max(first, start)), x(min(last, end))
                picture.box(a, y + 18, b - a, 22, colour, 0.18)
                if at >= start:
                    picture.line(x(at), y + 12, a, y + 18, colour, 1, "3 2")
                    picture.mark(x(at), y + 12, colour)
        for at, caller in run.calls:
            if caller == replica and start <= at <= end:
                picture.line(x(at), y + 23, x(at), y + 40, colour, 1.2)
    base = top + len(COLOURS) * height + 4
    steps = round((end - start) / 0.1)
    for step in range(steps + 1):
        at = start + step * 0.1
        picture.line(x(at), top, x(at), base, FRAME, 0.6)
        picture.text(x(at), base + 15, f"{step * 100} ms", FAINT, "middle", 11)
    return x, base


def legend(picture, x, y):
    picture.mark(x, y + 1, TEXT)
    picture.text(x + 10, y, "asks Redis and is leased")
    picture.box(x + 174, y - 11, 30, 14, TEXT, 0.18)
    picture.text(x + 210, y, "its slots")
    picture.line(x + 282, y - 11, x + 282, y + 2, TEXT, 1.2)
    picture.text(x + 290, y, "a call arrives")


def leases(run, into):
    picture = Picture(860, 262, "Leases of three replicas on one row of slots")
    picture.text(14, 26, "One row of slots, leased by three replicas: 400 calls a second", weight="bold", size=15)
    lanes(picture, run, 8.40, 9.00, 90, 830, 40, 55)
    legend(picture, 90, 247)
    picture.save(into / "leases.svg")


def restart(run, into):
    picture = Picture(860, 420, "Redis restarts with an old copy of its state")
    picture.text(14, 26, "Redis restarts with an older copy of its state", weight="bold", size=15)
    start, end = 7.50, 8.30
    x, base = lanes(picture, run, start, end, 90, 830, 60, 55)
    down = run.restarts[-1]
    picture.line(x(down), 46, x(down), base, RED, 2)
    picture.text(x(down) + 6, 52, "restart: the state is older than what was leased", RED)
    for at, replica in run.guarded:
        if start <= at <= end:
            y = 60 + replica * 55
            picture.mark(x(at), y + 12, RED)
            picture.text(x(at) - 6, y + 32, "asks, gets none: guard", RED, size=12)
    top, bottom = 270, 375
    calls = [at for at, _ in run.calls]

    def height(count):
        return bottom - (count / 450) * (bottom - top)

    picture.text(14, height(LIMIT) + 4, "limit 400", RED, size=12)
    picture.line(90, height(LIMIT), 830, height(LIMIT), RED, 1, "5 3")
    picture.line(90, bottom, 830, bottom)
    picture.text(14, bottom + 4, "0", FAINT, size=12)
    instants = [start + step * (end - start) / 300 for step in range(301)]
    picture.curve([(x(at), height(fullest(calls, at))) for at in instants], TEXT)
    picture.text(465, top + 62, "calls in the last second", FAINT, "middle")
    legend(picture, 90, 404)
    picture.save(into / "restart.svg")


def bursts(into):
    """A backlog appears at 0.8 s. What each kind of limit lets through, counted over the last second."""
    arrive, speed, end = 0.8, 4000, 2.6  # the workers could make so many calls a second
    fixed, bucket, slots = [], [], []
    tokens, used, slot = float(LIMIT), 0, arrive
    for step in range(round((end - arrive) * speed)):
        now = arrive + step / speed
        # A counter that starts again at each full second.
        if step and int(now + 1e-9) != int(now - 1 / speed + 1e-9):
            used = 0
        if used < LIMIT:
            used += 1
            fixed.append(now)
        # A bucket of one window's units, refilled steadily.
        tokens = min(LIMIT, tokens + LIMIT / speed)
        if tokens >= 1:
            tokens -= 1
            bucket.append(now)
        if now >= slot - 1e-9:
            slots.append(slot)
            slot += PERIOD
    kinds = [
        ("fixed window, 400 in each second of the clock", fixed, COLOURS[1]),
        ("token bucket, 400 at once and 400 a second back", bucket, COLOURS[2]),
        ("slots, one every 2.5125 ms", slots, COLOURS[0]),
    ]
    picture = Picture(860, 370, "Calls in the last second under three kinds of limit")
    picture.text(14, 26, "Calls in the last second, when a backlog appears at 0.8 s", weight="bold", size=15)
    left, right, top, bottom = 60, 830, 110, 330

    def x(at):
        return left + (at - 0.6) / (end - 0.6) * (right - left)

    def y(count):
        return bottom - count / 900 * (bottom - top)

    for count in (0, 200, 400, 600, 800):
        colour = RED if count == LIMIT else FRAME
        picture.line(left, y(count), right, y(count), colour, 1, "5 3" if count == LIMIT else "")
        picture.text(left - 8, y(count) + 4, count, RED if count == LIMIT else FAINT, "end", 12)
    for tenth in range(6, 27, 2):
        picture.text(x(tenth / 10), bottom + 17, f"{tenth / 10:.1f} s", FAINT, "middle", 11)
    instants = [0.6 + step * (end - 0.6) / 600 for step in range(601)]
    for number, (name, calls, colour) in enumerate(kinds):
        counts = [fullest(calls, at) for at in instants]
        picture.curve([(x(at), y(count)) for at, count in zip(instants, counts)], colour)
        picture.text(left, 52 + number * 19, f"{name}: at most {max(counts)}", colour, weight="bold")
    picture.text(right, y(LIMIT) - 6, "limit: 400 in any second", RED, "end", 12)
    picture.save(into / "bursts.svg")


def campaign(program, into):
    """The plan of docs/limits.md. Exit code 1 would say that the backlog does not end."""
    path = into / "campaign.svg"
    config = pathlib.Path(__file__).parents[2] / "config" / "sms.toml"
    messages = ["--arrivals", "300/1s", "--burst", "6000@1m", "--for", "3m"]
    command = [program, "plan", "--config", str(config), *messages, "--svg", str(path)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    print(path)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sluiced", default="target/release/sluiced", help="the program (default: %(default)s)")
    here = pathlib.Path(__file__).parent
    arguments.add_argument("--into", type=pathlib.Path, default=here, help="where the pictures go (default: here)")
    given = arguments.parse_args()
    run = Run(given.sluiced)
    leases(run, given.into)
    restart(run, given.into)
    bursts(given.into)
    campaign(given.sluiced, given.into)


if __name__ == "__main__":
    main()
