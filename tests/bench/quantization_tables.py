#!/usr/bin/env python3
"""Writes the tables of docs/quantization.md, each between its two marks in the page, from what `oar quantize` and
`oar eval` print.

    python3 tests/bench/quantization_tables.py             all of them: minutes on idle cores
    python3 tests/bench/quantization_tables.py choice kv   some

$OAR_BIN names the program. $OAR_TEST_DATA has the texts to calibrate on and stories260K; a table that needs them
stays as it is without. Quantized models are kept in --work, so that a second run is quicker.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
OAR = os.environ.get("OAR_BIN", str(SOURCE / "build/release/bin/oar"))
DATA = pathlib.Path(os.environ.get("OAR_TEST_DATA", SOURCE.parent / "shared/data"))
PAGE = SOURCE / "docs/quantization.md"
IMAGES = SOURCE / "docs/images"

HELDOUT = "configs/demo/heldout.txt"  # of SOURCE, as plots name it
STORIES = DATA / "llm/stories260K/stories260K.bin"
STORIES_TEXT = DATA / "tokenizers/bpe_training_golden/tinystories_sample.txt"
SHAKESPEARE = DATA / "text/tinyshakespeare.txt"
WIKITEXT = DATA / "text/wikitext2_valid.txt"


def oar(*args):
    command = [OAR, *map(str, args)]
    print("oar", *args, file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, cwd=SOURCE)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


class Models:
    """Quantized folders by name, made on first use."""

    def __init__(self, work):
        self.work = pathlib.Path(work)

    def text(self, name):
        """What a method may calibrate on: never what is measured."""
        path = self.work / f"{name}.txt"
        if path.exists():
            return path
        if name == "shakespeare":  # the held-out text is the end of the play
            path.write_bytes(SHAKESPEARE.read_bytes()[:900_000])
        elif name == "wikitext":
            path.write_bytes(WIKITEXT.read_bytes())
        elif name == "own stories":
            tales = [oar("generate", STORIES, "-p", "", "--max-tokens", 511, "--temperature", 1, "--seed", seed, "-q")
                     for seed in range(1, 49)]
            path.write_text("\n<|endoftext|>\n".join(tales))
        return path

    def quantized(self, name, model, weights, method, calibration=None, *more):
        out = self.work / name
        if not out.exists():
            text = ["--calibration", self.text(calibration)] if calibration else []
            oar("quantize", model, "-o", out, "--weights", weights, "--method", method, *text, *more, "-q")
        return out


def evaluate(model, text, context, *more):
    return json.loads(oar("eval", model, "--text", text, "--context", context, *more, "--json", "-q"))["rows"]


COLUMNS = {
    "bits/w": lambda r: f"{r['bits_per_weight']:.2f}",
    "kv bits": lambda r: f"{r['kv_bits']:.2f}",
    "of pages": lambda r: f"{r['kv_bits_of_quantized_pages']:.2f}",
    "ppl": lambda r: f"{r['perplexity']:.4f}",
    "ppl %": lambda r: f"{100 * r['perplexity_change']:+.2f}",
    "mean KLD": lambda r: f"{r['mean_kld']:.6f}",
    "+-": lambda r: f"{r['mean_kld_standard_error']:.6f}",
    "p99 KLD": lambda r: f"{r['p99_kld']:.5f}",
    "top-1 %": lambda r: f"{100 * r['top1_agreement']:.2f}",
    "SNR dB": lambda r: f"{r['logit_snr_db']:.1f}" if "logit_snr_db" in r else "inf",
}


def markdown(names, rows, numbers):
    """`names` heads the first columns; a row is their cells and then a row of `oar eval` or more cells."""
    lines = [[*names, *numbers]]
    for *cells, row in rows:
        lines.append([*cells, *([COLUMNS[n](row) for n in numbers] if isinstance(row, dict) else row)])
    widths = [max(len(line[c]) for line in lines) for c in range(len(lines[0]))]
    left = len(names)
    out = []
    for i, line in enumerate(lines):
        out.append("| " + " | ".join(cell.ljust(w) if c < left else cell.rjust(w)
                                     for c, (cell, w) in enumerate(zip(line, widths))) + " |")
        if i == 0:
            out.append("|" + "|".join("-" * (w + 2) if c < left else "-" * (w + 1) + ":"
                                      for c, w in enumerate(widths)) + "|")
    return "\n".join(out)


def choice(models):
    """How the default of `--weights int4` was chosen: every method on every real model at hand."""
    rows = []
    for label, model, text, context, calibration in (("demo", "demo", HELDOUT, 2048, "shakespeare"),
                                                     ("stories260K", STORIES, STORIES_TEXT, 512, "own stories")):
        made = [(method, models.quantized(f"{label}-int4-{method}", model, "int4", method)) for method in ("rtn", "hqq")]
        made.append(("gptq", models.quantized(f"{label}-int4-gptq", model, "int4", "gptq", calibration)))
        made.append(("rtn, all in q4_0", models.quantized(f"{label}-q4_0-rtn", model, "q4_0", "rtn")))
        for method, folder in made:
            row, = evaluate(folder, text, context, "--reference", model, "--kv", "f32")
            rows.append((label, method, "own kind of text" if method == "gptq" else "none", row))
    return markdown(["model", "method", "calibration"], rows, ["bits/w", "ppl %", "mean KLD", "+-", "p99 KLD", "top-1 %"])


def weights(models):
    """What each format costs on the default model."""
    candidates = {
        "int4-hqq": models.quantized("demo-int4-hqq", "demo", "int4", "hqq"),
        "int4-gptq": models.quantized("demo-int4-gptq", "demo", "int4", "gptq", "shakespeare"),
        "int4-gptq-wiki": models.quantized("demo-int4-gptq-wiki", "demo", "int4", "gptq", "wikitext"),
        "gptq-rot": models.quantized("demo-gptq-rot", "demo", "int4", "gptq", "shakespeare", "--rotate", "all"),
    }
    formats = "bf16,int8,fp8,w4a8,int4,q4_0,i4_g64,i4_g128,u4_g32,u4_g64,nvfp4,mxfp4"
    named = [f"--candidate={name}={folder}" for name, folder in candidates.items()]
    rows = evaluate("demo", HELDOUT, 2048, "--kv", "f32", "--weights", formats, *named,
                    "--plot", IMAGES / "quantization-weights.svg")
    return markdown(["model", "weights"], [(r["model"], r["weights"], r) for r in rows],
                    ["bits/w", "ppl", "ppl %", "mean KLD", "+-", "p99 KLD", "top-1 %", "SNR dB"])


def groups(models):
    """Group sizes and methods, body and head in one format."""
    rows, candidates = [], []
    formats, methods = ["q4_0", "i4_g64", "i4_g128", "u4_g64", "u4_g128"], ["rtn", "hqq", "gptq"]
    for method in methods:
        for name in formats:
            folder = models.quantized(f"demo-{method}-{name}", "demo", name, method, "shakespeare" if method == "gptq" else None)
            curve = method if name[0] in "iq" else f"{method}, zero points"  # of one name: a curve
            candidates.append(f"--candidate={curve}={folder}")
    measured = evaluate("demo", HELDOUT, 2048, "--kv", "f32", *candidates, "--plot",
                        IMAGES / "quantization-groups.svg")[-len(candidates):]
    for k, name in enumerate(formats):
        of = measured[k::len(formats)]
        rows.append((name, [COLUMNS["bits/w"](of[0]), *(COLUMNS["mean KLD"](r) for r in of)]))
    return markdown(["format"], rows, ["bits/w", *methods])


def kv(_):
    """Tiers of the cache and other engines' rules on the default model."""
    tiers = "f32,bf16,int8,fp8,k8v4,int4,int4-mean,k4v3,llama-q8_0,llama-q8_0-rot,llama-q4_0,llama-q4_0-rot,paddle-c4,rtn-g32"
    rows = evaluate("demo", HELDOUT, 2048, "--kv", tiers, "--plot", IMAGES / "quantization-kv.svg")
    return markdown(["kv", "rotate"], [(r["kv"], r["rotate"], r) for r in rows],
                    ["of pages", "kv bits", "ppl", "ppl %", "mean KLD", "+-", "p99 KLD", "top-1 %", "SNR dB"])


TABLES = {"choice": choice, "weights": weights, "groups": groups, "kv": kv}
NEEDS = {"choice": (STORIES, STORIES_TEXT, SHAKESPEARE), "weights": (SHAKESPEARE, WIKITEXT), "groups": (SHAKESPEARE,)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--work", help="the folder of quantized models; a temporary one if not given")
    args = parser.parse_args()
    for name in args.tables:
        if name not in TABLES:
            parser.error(f"{name} is not one of {', '.join(TABLES)}")
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(args.work or temporary).resolve()
        work.mkdir(parents=True, exist_ok=True)
        for name in args.tables or TABLES:
            missing = [str(path) for path in NEEDS.get(name, ()) if not path.exists()]
            if missing:
                print(f"{name}: stays as it is without {', '.join(missing)}", file=sys.stderr)
                continue
            table = TABLES[name](Models(work))
            page = PAGE.read_text()
            page, found = re.subn(rf"(?s)(<!-- quantization_tables.py: {name} -->\n).*?(<!-- end -->)",
                                  lambda m: f"{m[1]}\n{table}\n\n{m[2]}", page)
            if found != 1:
                sys.exit(f"{PAGE} has {found} places for the table {name}")
            PAGE.write_text(page)
            print(f"{name}\n{table}\n")


if __name__ == "__main__":
    main()
