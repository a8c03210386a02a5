#!/usr/bin/env python3
"""What DeepSeek-V3 would need and reach on a machine that nobody here has: bytes by tier and tokens a second, computed.

    python3 docs/paper_plan.py    # writes docs/paper-plan.md, as docs/generate.py does too

Sizes come from configs/shapes/deepseek-v3.json, speeds of kernels from docs/performance.md. Nothing of it was run.
"""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/paper-plan.md"

# The machine: one socket of 12 channels of DDR5-6400, 8 bytes each, and so many cores.
CHANNELS, MEGATRANSFERS, CORES = 12, 6400, 96
PEAK = CHANNELS * MEGATRANSFERS * 8e6  # bytes a second
# What reading alone gives of that: assumed, as no such machine was measured.
READ = 0.8
# What a decode step's linear layers reach of a read of memory: docs/performance.md, "one stream" at 82 to 99 GB/s.
# Bits a number with its scales: docs/quantization.md.
WEIGHTS = {"bf16": (16, 0.95), "int8": (8.5, 0.92), "int4": (4.25, 0.88)}
# Operations a second of one thread of Zen 4 in decoding over latents with 128 heads: the bf16 peak that attention_bench measures
# beside it (codes are widened to bf16), over how many times that limit a step takes (docs/performance.md, "decode of a latent
# behind 16k"). f16 was not measured and is taken as bf16. Bits a number: docs/quantization.md, one scale of 16 bits a token.
MULTIPLIES = 235e9
SCALED = 16 / 576
CACHES = {"bf16": (16, MULTIPLIES / 1.36), "f16": (16, MULTIPLIES / 1.36), "int8": (8 + SCALED, MULTIPLIES / 1.35),
          "fp8": (8 + SCALED, MULTIPLIES / 1.39), "int4": (4 + SCALED, MULTIPLIES / 1.38)}  # bits, operations a second and core
CONTEXTS = (4096, 32768, 131072)


def sizes(c: dict) -> dict[str, float]:
    """Numbers of the model, of what one token reads, and of one token's latents; operations of attention a cached token."""
    E, H, L = c["hidden_size"], c["num_attention_heads"], c["num_hidden_layers"]
    nope, rope, value, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    attention = E * c["q_lora_rank"] + c["q_lora_rank"] * H * (nope + rope) + E * (rank + rope) + rank * H * (nope + value) + H * value * E
    expert = 3 * E * c["moe_intermediate_size"]
    dense = c["first_k_dense_replace"]
    mixtures = L - dense
    fixed = L * attention + dense * 3 * E * c["intermediate_size"] + mixtures * (c["n_shared_experts"] * expert + c["n_routed_experts"] * E)
    table = c["vocab_size"] * E
    return {"all": fixed + mixtures * c["n_routed_experts"] * expert + 2 * table,
            "read": fixed + mixtures * c["num_experts_per_tok"] * expert + table,
            "latent": L * (rank + rope), "operations": L * H * 2 * (2 * rank + rope)}


def rate(s: dict, weights: str, cache: str, context: int) -> float:
    """Tokens a second of one stream: weights are read, then latents are read or multiplied, whichever takes longer."""
    bits, share = WEIGHTS[weights]
    cache_bits, operations = CACHES[cache]
    read = s["read"] * bits / 8 / (PEAK * READ * share)
    latents = max(context * s["latent"] * cache_bits / 8 / (PEAK * READ), context * s["operations"] / (CORES * operations))
    return 1 / (read + latents)


def page() -> str:
    s = sizes(json.loads((ROOT / "configs/shapes/deepseek-v3.json").read_text()))
    gb = lambda numbers, bits: f"{numbers * bits / 8 / 1e9:,.1f}"
    out = [
        "# DeepSeek-V3 on paper", "",
        "**Computed, not measured**, by [paper_plan.py](paper_plan.py) from `configs/shapes/deepseek-v3.json`: no machine here holds the",
        f"model. One socket of {CHANNELS} channels of DDR5-{MEGATRANSFERS}, {PEAK / 1e9:.0f} GB/s, of which reading is assumed to give {READ:.0%}; {CORES} cores.",
        "What kernels reach of a read, and what attention computes on a core, are those of [performance.md](performance.md).", "",
        f"{s['all'] / 1e9:.0f} billion numbers, of which a token reads {s['read'] / 1e9:.1f}: eight of 256 experts in 58 layers, the shared one,",
        "attention, three dense layers and the head.", "",
        "| weights | bits a number | all, GB | read a token, GB | of a read |", "|---|---|---|---|---|"]
    for name, (bits, share) in WEIGHTS.items():
        out.append(f"| {name} | {bits} | {gb(s['all'], bits)} | {gb(s['read'], bits)} | {share:.0%} |")
    out += ["", "A token keeps 576 numbers a layer, for all heads.", "",
            "| cache | bits a number | bytes a token | " + " | ".join(f"{c // 1024}k, GB" for c in CONTEXTS) + " |", "|---|---|---|---|---|---|"]
    for name, (bits, _) in CACHES.items():
        out.append(f"| {name} | {bits:.4g} | {s['latent'] * bits / 8:,.0f} | " + " | ".join(gb(c * s["latent"], bits) for c in CONTEXTS) + " |")
    out += ["", "Tokens a second of one stream. Weights are read once a token; then latents are read, or multiplied with the queries of 128",
            f"heads, {s['operations'] / 1e6:.0f} million operations for each cached token, whichever takes longer, which is the latter. A core",
            f"multiplies as one thread of Zen 4 did over latents, {CACHES['bf16'][1] / 1e9:.0f} GFLOP/s in bf16; f16 is taken as bf16.", "",
            "| weights | cache | " + " | ".join(f"behind {c // 1024}k" for c in CONTEXTS) + " |", "|---|---|---|---|---|"]
    for weights in WEIGHTS:
        for cache in CACHES:
            out.append(f"| {weights} | {cache} | " + " | ".join(f"{rate(s, weights, cache, c):.1f}" for c in CONTEXTS) + " |")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
