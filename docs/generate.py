#!/usr/bin/env python3
"""Writes the pages that the program itself knows best: docs/serve-options.md from `oar serve --help`, docs/metrics.md from
/metrics of a server with a language model and an ordinary one, docs/ops.md from `oar ops`, docs/models.md from `oar models` and
the goldens; and docs/paper-plan.md, which paper_plan.py beside this file computes. Standard library only.

    docs/generate.py            writes them
    docs/generate.py --check    fails when a page is not what it would write (./dev test does this)

$OAR_BIN names the program.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[1]
OAR = os.environ.get("OAR_BIN", str(SOURCE / "build/release/bin/oar"))
sys.path.insert(0, str(SOURCE / "tests/support"))
import paper_plan  # noqa: E402
import tiny_onnx  # noqa: E402


def cell(text):
    return text.replace("|", "\\|").strip()


def parse_help(text):
    """[(group, [(names, value, default, environment, meaning)])] of a command's help."""
    groups, rows, started = [], None, False
    for line in text.splitlines():
        head = re.fullmatch(r"([A-Z][^:]*):", line)
        if head:
            started = head[1] not in ("Positionals", "Examples")
            if started:
                rows = []
                groups.append((head[1], rows))
            continue
        if not started or not line.strip():
            continue
        option = re.match(r"  (-\S+)(.*)$", line)
        if option:
            # The meaning begins in column 30, or in a line of its own below a longer name.
            spec, meaning = (line[:30], line[30:]) if line[29:30] == " " else (line, "")
            spec = spec.strip().removeprefix(option[1])
            environment = re.search(r"\(Env:(\w+)\)", spec)
            spec = re.sub(r"\(Env:\w+\)|Excludes:.*|Needs:.*", "", spec).strip()
            # A value may have a = of its own (NAME=DIR), which is no default.
            value, default = (re.split(r"(?<![<>])=(?![A-Z]+(?: \.\.\.)?$)", spec, maxsplit=1) + [""])[:2]
            repeated = value.endswith(" ...")
            rows.append([option[1], value.removesuffix(" ...").strip(), default.removesuffix(" ...").strip(),
                         environment[1] if environment else "", meaning, repeated])
        elif line.startswith("      "):
            rows[-1][4] = f"{rows[-1][4]} {line.strip()}".strip()
    return groups


def options_page():
    text = subprocess.run([OAR, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    page = """# Options of `oar serve`

Written by `docs/generate.py` from `oar serve --help`. A key of the file that `--config` names is an option without its dashes:
`max-sequences = 32`, `deterministic = true`, `cors-origin = ["https://a.example"]`, and `model = "..."` for the model. An unknown
key is refused with its line. An environment word is `OAR_` and the option in capitals: `OAR_MAX_SEQUENCES=32`. The command line wins
over the environment, and that over the file; `--print-config` shows what came from where.
"""
    for group, rows in parse_help(text):
        page += f"\n## {group}\n\n| option | value | default | meaning |\n|---|---|---|---|\n"
        for names, value, default, environment, meaning, repeated in rows:
            notes = ["may be repeated"] if repeated and "repeated" not in meaning else []
            notes += [f"environment: `{environment}`"] if environment else []
            meaning = cell(meaning) + (f" ({'; '.join(notes)})" if notes else "")
            page += f"| `{names}` | {cell(value)} | {f'`{cell(default)}`' if default else ''} | {meaning} |\n"
    return page


def ops_page():
    text = subprocess.run([OAR, "ops", "--json"], capture_output=True, text=True, check=True).stdout
    page = """# Ops of graphs

Written by `docs/generate.py` from `oar ops`. *Models*: language models' graphs have types with symbols for extents, ordinary ones
(ONNX, Paddle) get their sizes at each run; ops of both serve both. *Computed*: by a *kernel* where the backend has one for
the operands, or by a *host kernel*: kernels and loops in f32 that the processor alone runs, as sizes and values say; *evaluated*
is a plain loop on the processor that calls no kernel; an op by its *definition* alone is replaced by the ops it is defined by.
*Gradient*: how often it can be taken (`engine/graph/passes/grad.h`). Derivatives are written in ops that have some, so where there is one there
are all. *Not of*: what `grad` refuses, by name. *Piecewise constant*: zero almost everywhere. *Types*: of elements, beside
indices and conditions (`engine/ops/dtypes.txt`); *floats* are f64, f32, f16 and bf16, *narrow* those of 8 bits and fewer.

| op | models | computed | defined | gradient | types |
|---|---|---|---|---|---|
"""
    with open(SOURCE / "engine/ops/dtypes.txt", encoding="utf-8") as listed:
        types = dict(line.rstrip("\n").split(": ", 1) for line in listed if not line.startswith("#"))
    ops = json.loads(text)
    for op in ops:
        if op["models"] != "training":
            page += f"| `{op['op']}` | {op['models']} | {op['computed']} | {op['defined']} | {op['gradient']} | {types[op['op']]} |\n"
    page += """
## Ops of training graphs

Who builds a step names them (`engine/ops/train/ops.h`); no file does. Those that can be differentiated are defined by ops of the table
above, ways back by the gradient that is derived from these. *Once*: its way back is an op that has no gradient. *Not*: what writes
states, the way back that has no definition, and the head's loss, which gives its gradients itself.

| op | computed | gradient |
|---|---|---|
"""
    for op in ops:
        if op["models"] == "training":
            page += f"| `{op['op']}` | {op['computed']} | {op['gradient']} |\n"
    return page


def write_zeros(golden, folder):
    """The checkpoint of a golden with zeros for weights: a graph needs names and shapes."""
    shutil.copy(SOURCE / golden["config"], f"{folder}/config.json")
    header, end = {}, 0
    for tensor in golden["tensors"]:
        codes = tensor["name"].endswith(("_blocks", "_scales"))  # of mxfp4
        size = 1 if codes else 2
        for extent in tensor["shape"]:
            size *= extent
        header[tensor["name"]] = {"dtype": "U8" if codes else "BF16", "shape": tensor["shape"], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{folder}/model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)


def graph_of(golden):
    """(ops, kinds of pages, layers that read others', states) of a served graph. Kinds: heads, head size, numbers of a latent and
    whether a window, of each cache."""
    with tempfile.TemporaryDirectory() as folder:
        write_zeros(golden, folder)
        text = subprocess.run([OAR, "inspect", folder, "--graph"], capture_output=True, text=True, check=True).stdout
    ops = set(re.findall(r"^%[^=]* = (\w+)\(", text, re.M))
    appends = re.findall(r"^(%\d+) = kv_append\(.*?\{head_dim: (\d+), kv_heads: (\d+), kv_type: \d+(?:, latent: (\d+))?", text, re.M)
    windows = {pool: int(window) for pool, window in re.findall(r"paged_attention\(%\d+, (%\d+),.*window: (\d+)\}", text)}
    readers = len(re.findall(r" = paged_attention\(", text))
    pages = sorted({(int(k), int(d), int(latent or 0), windows[pool] > 0) for pool, d, k, latent in appends})
    return ops, pages, readers - len(appends), states_of(text)


def states_of(text):
    """What a graph keeps of a sequence beside pages: the state behind a page of each recurrent layer."""
    convolutions, scans, total = {}, {}, 0
    for op, stored, outputs in re.findall(r"^%\d+, %\d+ = served_(causal_conv|state_scan)\(.*\} : u8\[N, (\d+)\], f32\[T, ([\d, ]+)\]$",
                                          text, re.M):
        total += int(stored)
        kept, key = (scans, int(stored)) if op == "state_scan" else (convolutions, (int(stored) // 4 // int(outputs), int(outputs)))
        kept[key] = kept.get(key, 0) + 1
    parts = [f"{n} x {rows} rows of {width} (convolution)" for (rows, width), n in sorted(convolutions.items())]
    parts += [f"{n} x {stored} bytes (scan)" for stored, n in sorted(scans.items())]
    return f"{total} bytes: {', '.join(parts)}" if total else ""


def size(count):
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def state_size(one):
    return f"{size(one['state_bytes'])} + {size(one['open_rows_bytes'])}" if one["state_bytes"] else ""


def models_page():
    models = json.loads(subprocess.run([OAR, "models", "--json"], capture_output=True, text=True, check=True).stdout)
    goldens = {}
    for path in sorted((SOURCE / "tests/golden/models").glob("*.json")):
        golden = json.loads(path.read_text())
        golden["name"] = path.stem
        goldens.setdefault(json.loads((SOURCE / golden["config"]).read_text())["model_type"], []).append(golden)
    page = """# Language models

Written by `docs/generate.py` from `oar models`, the goldens (`tests/golden/models`) and the graphs of their models. *Ops*: what a
served graph has beside `linear`, `reshape`, `slice`, `gather`, `embedding`, `add`, `mul` and a norm. *Pages*: kinds of cached layers
of the golden, in full layers and in windows; of a *latent* how many numbers a token has in each layer, and how many more that rotate.
*States*: what recurrent layers of the golden keep of a sequence, in f32: rows in front of a convolution, and the state of a scan.
*Compared*: logits of tiny random models with those of the package named, in f32 and bf16;
[the goldens' page](../tests/golden/README.md) says what each exercises. `oar models` prints all of this page.

| model type | ops | pages | states | compared |
|---|---|---|---|---|
"""
    common = {"linear", "reshape", "slice", "gather", "embedding", "add", "mul", "rms_norm", "add_rms_norm", "layer_norm",
              "add_layer_norm", "kv_append", "paged_attention"}
    for model_type in sorted(models["model_types"]):
        ops, kinds, kept, shared, names, made = set(), set(), [], 0, [], ""
        for golden in goldens.get(model_type, []):
            own, pages, reading, states = graph_of(golden)
            ops |= own
            kinds |= {f"latents of {latent} + {d - latent}" if latent else "windows" if window else "full" for _, d, latent, window in pages}
            kinds |= {"heads of two sizes"} if len({d for _, d, _, _ in pages}) > 1 else set()
            kept += [states] if states and states not in kept else []
            shared += reading
            names.append(golden["name"])
            made = re.match(r"transformers [\d.]+", golden["made_with"])[0]
        kinds |= {"shared by later layers"} if shared else set()
        if model_type == "kimi_k2":
            page += f"| `{model_type}` | as `deepseek_v3`, under another name | | | |\n"
            continue
        page += f"| `{model_type}` | {', '.join(f'`{op}`' for op in sorted(ops - common))} | {', '.join(sorted(kinds))} | " \
                f"{'; '.join(kept)} | {', '.join(names)} ({made}) |\n"
    page += """
## Memory of released ones

What one sequence keeps, as `oar models` computes it from `configs/shapes`: keys and values in bf16 pages of 64 tokens at two lengths
(an int8 cache takes about half; `k4v3`, which latents have not, about a quarter), and whatever the length a recurrent state in f32,
behind a page + the rows of an open one. A running sequence has two blocks of each; a snapshot for the prefix cache is a state behind a
page.

| released | model type | layers | at 4k | at 32k | state | source |
|---|---|---|---|---|---|---|
"""
    for one in models["released"]:
        page += f"| {one['model']} | `{one['model_type']}` | {one['layers']} | {size(one['kv_bytes_4k'])} | {size(one['kv_bytes_32k'])} | " \
                f"{state_size(one)} | {cell(one['source'])} |\n"
    return page


def serve(folder, options, environment):
    """(process, port) of a server of the models in `folder`."""
    process = subprocess.Popen([OAR, "serve", folder, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *options],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment})
    lines = []
    for line in process.stdout:
        lines.append(line)
        port = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if port:
            return process, port[1]
    raise SystemExit(f"the server did not start:\n{''.join(lines)}")


def ask(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=60).read()


def metrics_page():
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SOURCE / "configs/demo", f"{folder}/demo")
        os.makedirs(f"{folder}/sum/1")
        tiny_onnx.write_onnx(f"{folder}/sum/1/model.onnx")
        # A device of the tests, which says all that a device may say.
        process, port = serve(folder, ["--device", "loopback"], {"OAR_LOOPBACK": "watts=100"})
        url = f"http://127.0.0.1:{port}"
        try:
            ask(f"{url}/v1/completions", {"model": "demo", "prompt": "KING:", "max_tokens": 2})
            rows = {"datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
            ask(f"{url}/v2/models/sum/infer", {"inputs": [{"name": "x", **rows}, {"name": "y", **rows}]})
            text = urllib.request.urlopen(f"{url}/metrics", timeout=60).read().decode()
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    found = {}
    for line in text.splitlines():
        comment = re.match(r"# (HELP|TYPE) (\S+) ?(.*)$", line)
        if comment:
            found.setdefault(comment[2], {"HELP": "", "TYPE": "", "labels": set()})[comment[1]] = comment[3]
            continue
        sample = re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ", line)
        if not sample:
            continue
        name = sample[1]
        if name not in found:
            name = re.sub(r"_(bucket|sum|count)$", "", name)
        labels = {m[1] for m in re.finditer(r'(\w+)="', sample[2] or "")} - {"le"}
        found.setdefault(name, {"HELP": "", "TYPE": "", "labels": set()})["labels"] |= labels
    page = """# Metrics

Written by `docs/generate.py` from `/metrics` of a server with a language model and an ordinary one on a device. Names with `vllm:` and
`nv_` are those that others' dashboards and autoscalers read. Those of a device (`gpu_uuid`) are there as far as its plug-in tells: an
NVIDIA device's memory always, the rest where `libnvidia-ml.so.1` is, which comes with the driver. Of a slice of MIG memory is the
slice's, the rest the whole device's.

| metric | type | labels | meaning |
|---|---|---|---|
"""
    for name in sorted(found):
        about = found[name]
        labels = ", ".join(f"`{label}`" for label in sorted(about["labels"]))
        page += f"| `{name}` | {about['TYPE']} | {labels} | {cell(about['HELP'])} |\n"
    return page


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        raise SystemExit(__doc__)
    stale = []
    pages = {"serve-options.md": options_page(), "metrics.md": metrics_page(), "ops.md": ops_page(), "models.md": models_page(),
             "paper-plan.md": paper_plan.page()}
    for name, page in pages.items():
        path = SOURCE / "docs" / name
        if check and (not path.exists() or path.read_text() != page):
            stale.append(f"docs/{name}")
        elif not check:
            path.write_text(page)
    if stale:
        raise SystemExit(f"{', '.join(stale)}: not what the program says; run docs/generate.py")


if __name__ == "__main__":
    main()
