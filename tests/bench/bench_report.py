"""A benchmark's results as Markdown tables and as an SVG plot, for docs/performance.md."""
from xml.sax.saxutils import escape


def _rate(x):
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}"


def _seconds(x):
    return f"{x * 1e6:.1f} us" if x < 1e-3 else f"{x * 1e3:.2f} ms"


def _table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _percent(row):
    return f"{row['percent']:.0f} %" if "percent" in row else ""


def machine_text(results):
    m = results["machine"]
    peaks = ", ".join(f"{name.replace('.', ' by ')} {value / 1e9:,.0f} GOP/s" for name, value in m["peaks"].items())
    return (f"{m['cpu']}, {m['threads']} threads ({m['isa']}): memory reads {m['read'] / 1e9:.1f} GB/s, by one thread "
            f"{m['read_one_thread'] / 1e9:.1f} GB/s; {peaks}.")


def markdown(results):
    parts = [machine_text(results)]
    if results["kernels"]:
        parts.append(_table(
            ["kernel", "median (best)", "% of its limit (best)", "limit", "rounds, set aside"],
            [[r["name"], f"{_seconds(r['seconds'])} ({_seconds(r['best_seconds'])})",
              f"{r['percent']:.0f} % ({r['best_percent']:.0f})", r["limit"], f"{r['rounds']}, {r['aside']}"]
             for r in results["kernels"]]))
    if results["models"]:
        parts.append(_table(
            ["model", "ours, tokens/s (best)", "% of its limit", "peer, tokens/s (best)", "ratio", "rounds, set aside"],
            [[f"{r['name']}, {r['what']}", f"{_rate(r['rate'])} ({_rate(r['best_rate'])})", _percent(r),
              f"{r['peer']}: {_rate(r['peer_rate'])} ({_rate(r['best_peer_rate'])})" if "ratio" in r else "",
              f"{r['ratio']:.2f}" if "ratio" in r else "", f"{r['rounds']}, {r['aside']}"]
             for r in results["models"]]))
    for failure in results["failures"]:
        parts.append(f"Not measured: {failure}")
    return "\n\n".join(parts) + "\n"


LINE, LABEL, BAR, MARGIN = 20, 330, 420, 16
COLORS = {"read": "#3465a4", "int8": "#4e9a06", "bf16": "#c17d11", "f32": "#75507b"}
PEER_COLOR = "#5c3566"


def _panel(top, ticks, end, bars):
    """Horizontal bars under an axis: ticks are (value, text), bars (label, value, text, colour); `end` is the right edge."""
    bottom = top + (len(bars) + 1) * LINE
    out = []
    for value, text in ticks:
        x = LABEL + BAR * value / end
        out.append(f'<line x1="{x:.1f}" y1="{top + LINE}" x2="{x:.1f}" y2="{bottom}" stroke="#cccccc"/>'
                   f'<text x="{x:.1f}" y="{top + LINE - 6}" text-anchor="middle" fill="#555555">{text}</text>')
    for i, (label, value, text, color) in enumerate(bars):
        y = top + (i + 1) * LINE
        length = BAR * min(value, 1.1 * end) / end
        out.append(f'<text x="{LABEL - 6}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
                   f'<rect x="{LABEL}" y="{y + 3}" width="{length:.1f}" height="{LINE - 6}" fill="{color}"/>'
                   f'<text x="{LABEL + length + 4:.1f}" y="{y + 14}" fill="#333333">{text}</text>')
    return out, bottom


def svg(results):
    """Percent of the limit of each kernel and model, coloured by what limits it; below, models as multiples of the fastest
    peer of each round."""
    bars = [(r["name"], r["percent"], r["limit"]) for r in results["kernels"]]
    bars += [(f"{r['name']}, {r['what']}", r["percent"], r["limit"]) for r in results["models"] if "percent" in r]
    panel, bottom = _panel(MARGIN, [(t, f"{t} %") for t in range(0, 101, 25)], 100,
                           [(name, percent, f"{percent:.0f}", COLORS.get(limit, "#888888")) for name, percent, limit in bars])
    x, y = LABEL, bottom + LINE
    for limit, color in COLORS.items():
        panel.append(f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{color}"/>'
                     f'<text x="{x + 14}" y="{y - 1}">limit: {limit}</text>')
        x += 100
    bottom = y + MARGIN
    beside = [r for r in results["models"] if "ratio" in r]
    if beside:
        most = max(2, *(int(r["ratio"]) + 1 for r in beside))
        ticks = [(t, "0" if t == 0 else "the fastest peer" if t == 1 else f"{t} times") for t in range(most + 1)]
        more, bottom = _panel(bottom, ticks, most,
                              [(f"{r['name']}, {r['what']}", r["ratio"], f"{r['ratio']:.2f}", PEER_COLOR) for r in beside])
        panel += more
        bottom += MARGIN
    width = LABEL + BAR + 60
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{bottom}" fill="#ffffff"/>']
    return "\n".join(out + panel + ["</svg>"]) + "\n"
