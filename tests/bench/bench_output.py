"""Reads what the programs of a benchmark print: ours (JSON) and the peers' (llama.cpp and its fork ik_llama.cpp).

Every reader takes text and returns plain dicts, or raises ValueError that says what is wrong with the text. Peers'
formats are theirs to change; the samples in tests/bench/samples are what these readers were written for.
"""
import json

# Columns of the tables of llama-batched-bench and llama-sweep-bench, as our names.
TABLE_COLUMNS = {
    "PP": "prompt_tokens",
    "TG": "gen_tokens",
    "B": "streams",
    "N_KV": "context",
    "S_PP t/s": "prefill",
    "S_TG t/s": "decode",
}


def last_json(text):
    """The JSON value that ends the text: programs may log lines before it."""
    lines = text.rstrip().splitlines()
    for first in range(len(lines)):
        if lines[first][:1] not in ("{", "["):
            continue
        try:
            return json.loads("\n".join(lines[first:]))
        except json.JSONDecodeError:
            continue
    raise ValueError(f"no JSON in the output: {text[-200:]!r}")


def llama_bench(text):
    """`llama-bench -o json`: a list of {prompt_tokens, gen_tokens, context, kv, flash, rate}, rate in tokens/s."""
    tests = last_json(text)
    if not isinstance(tests, list):
        raise ValueError("llama-bench prints a list of tests")
    rows = []
    for test in tests:
        try:
            rows.append({
                "prompt_tokens": int(test["n_prompt"]),
                "gen_tokens": int(test["n_gen"]),
                "context": int(test.get("n_depth", 0)),
                "kv": test.get("type_k", "f16"),
                "flash": bool(int(test.get("flash_attn", 0))),
                "rate": float(test["avg_ts"]),
            })
        except KeyError as missing:
            raise ValueError(f"llama-bench: a test without {missing}") from None
    return rows


def _number(cell):
    value = float(cell)
    return int(value) if value.is_integer() and "." not in cell else value


def llama_table(text):
    """The table of llama-batched-bench or llama-sweep-bench: a list of {prompt_tokens, gen_tokens, streams, context,
    prefill, decode}, rates in tokens/s. Streams is 1 where the table has no such column."""
    header, rows = None, []
    for line in text.splitlines():
        line = line.strip()
        if not (line.startswith("|") and line.endswith("|")):
            continue
        cells = [cell.strip() for cell in line[1:-1].split("|")]
        if "PP" in cells and "TG" in cells:
            header = cells
        elif header and not set("".join(cells)) <= set("-:"):
            if len(cells) != len(header):
                raise ValueError(f"a row of {len(cells)} cells under {len(header)} columns: {line}")
            row = {TABLE_COLUMNS[name]: _number(cell) for name, cell in zip(header, cells) if name in TABLE_COLUMNS}
            rows.append({"streams": 1, **row})
    if not rows:
        raise ValueError(f"no table with columns PP and TG in the output: {text[-200:]!r}")
    return rows


def sweep_jsonl(text):
    """llama-sweep-bench and llama-batched-bench with `--output-format jsonl`: rows as of llama_table()."""
    names = {"pp": "prompt_tokens", "tg": "gen_tokens", "pl": "streams", "n_kv": "context", "speed_pp": "prefill",
             "speed_tg": "decode"}
    rows = []
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        values = json.loads(line)
        if "speed_pp" in values:
            rows.append({"streams": 1, **{ours: values[theirs] for theirs, ours in names.items() if theirs in values}})
    if not rows:
        raise ValueError("no line with speed_pp in the output")
    return rows


def our_bench(text):
    """`oar bench --json` of one round: {prefill, decode, read} in tokens/s and bytes/s, and what it ran with."""
    values = last_json(text)
    try:
        return {
            "prefill": values["prefill_tokens_per_second"]["median"],
            "decode": values["decode_tokens_per_second"]["median"],
            "prefill_operations": values["prefill_operations"],
            "decode_bytes": values["decode_bytes_per_step"],
            "decode_operations": values["decode_operations_per_step"],
            "read": values["read_bandwidth_gb_per_second"]["median"] * 1e9,
            "weights": values["weights"],
            "kv": values["kv"],
            "isa": values["isa"],
            "threads": values["threads"],
            "folder": values.get("weights_folder"),
        }
    except KeyError as missing:
        raise ValueError(f"oar bench: no field {missing}") from None


def our_kernels(text):
    """`matmul_bench --json` and `attention_bench --json`: {threads, isa, cases}, each case with seconds, read and peak
    per round."""
    values = last_json(text)
    for case in values["cases"]:
        rounds = len(case["seconds"])
        if not (len(case["read"]) == len(case["peak"]) == rounds > 0):
            raise ValueError(f"case {case['name']}: as many probes as rounds expected")
    return values
