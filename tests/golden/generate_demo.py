#!/usr/bin/env python3
"""What the embedded default model (configs/demo) answers greedily, by transformers in float32: text in, ids, text out.

    python3 tests/golden/generate_demo.py              # needs torch, transformers; run after every retraining

Writes tests/golden/demo.json: {"cases": [{"kind", "messages" or "prompt", "prompt_text", "prompt_ids", "output_ids",
"output_text", "finish", "margin"}]}. `output_ids` are the greedy choices, the end token included where one came, at
most MAX_TOKENS; `output_text` leaves special tokens out. `margin` is the smallest lead of a chosen token's logit over the next
one: arithmetic that errs by less than half of it must choose the same tokens.
"""

import json
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
MAX_TOKENS = 48
# Cases whose margin is smaller are useless as goldens and are left out.
LEAST_MARGIN = 1e-3

CHATS = [
    [{"role": "user", "content": "Good morrow! What news from the palace?"}],
    [{"role": "user", "content": "Who are you?"}],
    [{"role": "system", "content": "You are Romeo."}, {"role": "user", "content": "What is love?"}],
    [{"role": "user", "content": "Is the king dead?"}, {"role": "assistant", "content": "Ay, my lord."},
     {"role": "user", "content": "Then who shall wear the crown?"}],
    [{"role": "user", "content": "  Tell me about the sea.\n"}],
    [{"role": "user", "content": "Goodbye!"}],
]
TEXTS = ["", "ROMEO:\n", "KING RICHARD III:\nNow is the winter", "I was standing by the window when the principal"]


def main() -> None:
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(ROOT / "configs/demo")
    model = transformers.AutoModelForCausalLM.from_pretrained(ROOT / "configs/demo", dtype=torch.float32).eval()
    stops = set(model.generation_config.eos_token_id)
    cases = []
    for source in [{"kind": "chat", "messages": m} for m in CHATS] + [{"kind": "text", "prompt": t} for t in TEXTS]:
        if source["kind"] == "chat":
            text = tokenizer.apply_chat_template(source["messages"], tokenize=False, add_generation_prompt=True)
            prompt = tokenizer.encode(text, add_special_tokens=False)  # the template has written <|bos|>
        else:
            text = tokenizer.bos_token + source["prompt"]
            prompt = tokenizer.encode(source["prompt"])
        ids, margin = list(prompt), float("inf")
        with torch.no_grad():
            while len(ids) < len(prompt) + MAX_TOKENS and not (len(ids) > len(prompt) and ids[-1] in stops):
                best = model(torch.tensor([ids])).logits[0, -1].topk(2)
                margin = min(margin, (best.values[0] - best.values[1]).item())
                ids.append(best.indices[0].item())
        output = ids[len(prompt):]
        print(f"{margin:.4f} {tokenizer.decode(output)!r}")
        if margin < LEAST_MARGIN: continue
        cases.append({**source, "prompt_text": text, "prompt_ids": prompt, "output_ids": output,
                      "output_text": tokenizer.decode(output, skip_special_tokens=True),
                      "finish": "stop" if output[-1] in stops else "length", "margin": round(margin, 5)})
    text = "{\"cases\": [\n  " + ",\n  ".join(json.dumps(c) for c in cases) + "\n]}\n"
    Path(__file__).with_name("demo.json").write_text(text)


if __name__ == "__main__":
    main()
