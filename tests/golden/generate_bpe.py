#!/usr/bin/env python3
"""Byte-level BPE learned by Hugging Face's tokenizers, for tests/text/bpe_trainer_test.cc: bpe.json.

    python3 tests/golden/generate_bpe.py

Each case: texts (or a file of the tree), the number of entries, the least count of a pair, and the merges in their order.
"""
import json
import re
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
SPECIAL = ["<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
PATTERN = next(iter(json.loads((TREE / "configs/demo/tokenizer.json").read_text())["pre_tokenizer"]["pretokenizers"]))["pattern"]["Regex"]
CASES = [
    {"file": "configs/demo/heldout.txt", "vocab": 640, "least": 1},
    {"file": "configs/demo/heldout.txt", "vocab": 4000, "least": 40},
    {"texts": ["aaaa aaaaaaa aaa aaaaaaaaaaaaaaa"], "vocab": 280, "least": 1},
    {"texts": ["ab ab abc abc bc bc abcabc", "cab cab abab babab aabb"], "vocab": 300, "least": 1},
    {"texts": ["größer Größe größte 你好 你好吗 你们好 🙂🙂 🙃 naïve", "12345 123 1234567 3.14 3.1415\r\n\r\n\t\tx  y   z"], "vocab": 320, "least": 1},
    {"texts": ["", "a", " "], "vocab": 300, "least": 1},
]


def generate(case):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    texts = case.get("texts") or [(TREE / case["file"]).read_text(encoding="utf-8")]
    trainer = trainers.BpeTrainer(vocab_size=case["vocab"], min_frequency=case["least"], special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {**case, "entries": len(model["vocab"]), "merges": model["merges"]}


if __name__ == "__main__":
    text = json.dumps([generate(c) for c in CASES], ensure_ascii=False)
    (HERE / "bpe.json").write_text(re.sub(r'\], \["', '],["', text) + "\n", encoding="utf-8")
