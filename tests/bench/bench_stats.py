"""From rounds to figures: medians of paired ratios, rounds set aside, and what a model's step has to do."""
import math
import statistics

# Virtual machines run for seconds or minutes with half their arithmetic (two virtual cores on one physical). A round
# whose peak is below this part of the usual one says nothing about the program that ran in it.
DISTURBED = 0.6


def disturbed_rounds(peaks):
    """Indices of the rounds whose probe is far below the usual peak: that which a quarter of the rounds exceed."""
    if len(peaks) < 3:
        return set()
    usual = sorted(peaks)[(3 * len(peaks)) // 4]
    return {i for i, peak in enumerate(peaks) if peak < DISTURBED * usual}


def kept(values, aside):
    return [v for i, v in enumerate(values) if i not in aside]


def lower_bound_of_median(values):
    """The value that the true median exceeds with 95 % confidence, whatever the distribution; None below five values.
    The k-th least is below the median unless fewer than k of n lie below it, which has the probability of fewer than k
    heads in n tosses (the sign test)."""
    n, tail, k = len(values), 0.0, 0
    while True:
        tail += math.comb(n, k) / 2**n
        if tail > 0.05:
            return sorted(values)[k - 1] if k > 0 else None
        k += 1


def roofline_seconds(bytes_moved, operations, read, peak):
    """The least time for the work: limited by memory or by arithmetic, whichever takes longer."""
    return max(bytes_moved / read if read else 0, operations / peak if peak else 0)


def step_seconds(ours, peak):
    """The least time of a decode step of our_bench(): what it reads, and then, where `peak` is given, what it multiplies."""
    return ours["decode_bytes"] / ours["read"] + (ours["decode_operations"] / peak if peak else 0)


def growth_row(name, near, far):
    """How much of its speed decode keeps behind a longer context, as percent of what the bytes of a step leave of it. Rounds
    are paired in order; each rate counts over the reads of memory in its own round, which change from one to the next."""
    aside = disturbed_rounds([r["peak"] for r in near]) | disturbed_rounds([r["peak"] for r in far])
    pairs = [(a["ours"], b["ours"]) for i, (a, b) in enumerate(zip(near, far)) if i not in aside]
    kept_of_speed = [(b["decode"] / b["read"]) / (a["decode"] / a["read"]) * b["decode_bytes"] / a["decode_bytes"] for a, b in pairs]
    rates = [b["decode"] for _, b in pairs]
    return {"name": name, "what": "decode", "rate": statistics.median(rates), "best_rate": max(rates), "rounds": len(pairs),
            "aside": len(aside), "percent": 100 * statistics.median(kept_of_speed), "limit": "read"}


def kernel_row(case):
    """One case of our_kernels() as figures. `limit` names the roof that is nearer in most rounds."""
    aside = disturbed_rounds(case["peak"])
    percents, memory = [], 0
    for i, seconds in enumerate(case["seconds"]):
        if i in aside:
            continue
        least = roofline_seconds(case["bytes"], case["ops"], case["read"][i], case["peak"][i])
        memory += case["bytes"] / case["read"][i] >= least if case["read"][i] else 0
        percents.append(100 * least / seconds)
    times = kept(case["seconds"], aside)
    return {
        "name": case["name"],
        "seconds": statistics.median(times),
        "best_seconds": min(times),
        "percent": statistics.median(percents),
        "best_percent": max(percents),
        "limit": "read" if 2 * memory > len(percents) else case["arithmetic"],
        "rounds": len(times),
        "aside": len(aside),
    }


def attention_operations(config, tokens, context):
    """Operations of attention for `tokens` new tokens of one sequence behind `context` others, of a llama-like config.json;
    0 where layers differ, or an empty one."""
    if not config or "layer_types" in config or "kv_lora_rank" in config:
        return 0
    heads = config["num_attention_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    return 4 * config["num_hidden_layers"] * heads * dim * tokens * (context + (tokens + 1) / 2)


def model_row(name, rounds, what, limit_seconds):
    """Figures of one whole-model scenario. A round is {"peak", "ours": {...}, "peers": {label: {...}}}; `what` is
    "prefill" or "decode"; limit_seconds(round) the least time per token, or None. The peer of a round is the fastest
    that answered in it."""
    aside = disturbed_rounds([r["peak"] for r in rounds])
    used = kept(rounds, aside)
    ours = [r["ours"][what] for r in used]
    row = {
        "name": name,
        "what": what,
        "rate": statistics.median(ours),
        "best_rate": max(ours),
        "rounds": len(used),
        "aside": len(aside),
    }
    if limit_seconds is not None:
        row["percent"] = statistics.median(100 * limit_seconds(r) * r["ours"][what] for r in used)
    ratios, peers, winners = [], [], []
    for r in used:
        answers = {label: rates[what] for label, rates in r["peers"].items() if rates.get(what)}
        if not answers:
            continue
        label = max(answers, key=answers.get)
        winners.append(label)
        peers.append(answers[label])
        ratios.append(r["ours"][what] / answers[label])
    if ratios:
        row.update(peer=statistics.mode(winners), peer_rate=statistics.median(peers), best_peer_rate=max(peers),
                   ratio=statistics.median(ratios), pairs=len(ratios))
    return row
