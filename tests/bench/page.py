#!/usr/bin/env python3
"""How soon the page paints, from loopback, and how it scrolls with 10,000 messages: headless Chromium on this machine.

    OAR_BIN=build/release/bin/oar OAR_SOURCE_DIR=. tests/bench/page.py [--rounds 15]

Ends with 1 where the median of first paints is above 100 ms, where a screen of the long talk is not filled when it is reached, or where
the console had an error."""
import argparse
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../server"))
from devtools import Browser  # noqa: E402
from test_page import Served  # noqa: E402

LONG = """(async () => { const c = Conversation.fresh(), all = [];
    for (let k = 0; k < 10000; ++k) all.push(c.add(c.record.leaf, { role: k % 2 ? 'assistant' : 'user', content: '**Message** ' + k, reasoning: '', calls: [] }));
    await keep(c, all); })()"""
# Screen by screen from the end; what each frame took, and how often nothing was there to be seen.
SCROLL = """(async () => { const t = document.getElementById('talk'), took = []; let bare = 0, last = performance.now();
    for (let k = 0; k < 120; ++k) { t.scrollTop -= t.clientHeight * (k % 10 ? 0.9 : 60);
        await new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)));
        const now = performance.now(); took.push((now - last) / 2); last = now;
        const e = document.elementFromPoint(t.getBoundingClientRect().x + t.clientWidth / 2, 400)?.closest('article');
        if (e && !e.textContent.trim()) ++bare; }
    took.sort((a, b) => a - b); return [took[60], took[114], took[119], bare]; })()"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    paints, b = [], Browser()
    try:
        with Served("--name", "demo") as s:
            for _ in range(rounds):
                b.open(s.url)
                b.wait("performance.getEntriesByName('first-contentful-paint').length === 1")
                paints.append(b.eval("['first-paint', 'first-contentful-paint'].map(n => performance.getEntriesByName(n)[0].startTime)"))
            b.eval(LONG)
            began = time.monotonic()
            b.click("#history li:not(.day) button")
            b.wait("document.querySelectorAll('#talk article').length === 10000", 60)
            b.wait("document.querySelector('#talk article:last-of-type strong')?.checkVisibility()")
            opened = time.monotonic() - began
            median, p95, worst, bare = b.eval(SCROLL)
    finally:
        b.close()
    first = statistics.median(p[0] for p in paints)
    print(f"first paint, median of {rounds}: {first:.1f} ms (first visit {paints[0][0]:.1f}, most {max(p[0] for p in paints):.1f}); "
          f"with content {statistics.median(p[1] for p in paints):.1f} ms")
    print(f"10,000 messages: shown after {opened:.2f} s; 120 screens of them, a frame: median {median:.1f}, 95th {p95:.1f}, most {worst:.1f} ms; "
          f"{bare} screens bare")
    print(f"errors in the console: {len(b.complaints)}", *b.complaints)
    return int(first > 100 or bare > 0 or bool(b.complaints))


if __name__ == "__main__":
    sys.exit(main())
