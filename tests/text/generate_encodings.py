#!/usr/bin/env python3
"""Token ids of tiktoken and of a GGUF pre-tokenizer, computed by the PyPI packages `tiktoken` and `tokenizers`.

    python3 tests/text/generate_encodings.py       # needs tiktoken, tokenizers

Writes tests/text/golden/encodings.json: a small byte-level vocabulary trained on the texts below (`tokens`, base64, by
rank: one file serves tiktoken's ranks and, cut into merges, a GGUF), and for each encoding the ids of every text.
tiktoken merges by the rank of the result, tokenizers by a list of pairs; `merges` has that list for the GGUF.
"""
import base64
import json
from pathlib import Path

import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Letters that have case, by the list of deepseek-llm's tokenizer.json.
LETTERS = (
    "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373\u0376"
    "\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-"
    "\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A"
    "\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4"
    "\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC"
    "\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F"
    "\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B"
    "\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A"
    "\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2"
    "\U000118A0-\U000118DF\U0001E900-\U0001E943")
DEEPSEEK = ["[\r\n]", r"\s?[" + LETTERS + "]+",
            r"\s?" + "[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+", r"\s+$", "[一-龥\u0800-一가-\uD7FF]+", r"\p{N}+"]
TEXTS = [
    "The quick brown fox jumps over the lazy dog, and the dog isn't amused; he'LL sleep.",
    "  two spaces, a\ttab\n\nand two lines  \r\nthen 1234567 and 3.14159, I'D say.   ",
    "naïve Ελληνικά Привет мир! 𐐀𐐁 ﬁne ＡＢＣ　「你好，世界」한국어 ﷺ १२३ ٣٤٥ ½ Ⅷ",
    "x = [i**2 for i in range(10)]  # squares\n\tif not x:\n\t\treturn None\n", "e\u0301 é Å K ſ 🙂👩‍👩‍👧 �", "'S 'ſ don't DON'T we'Ve",
    "\u3000\u3000全角 空白\u2003\u00a0x \u2028y", "", " ", "\n", "0", "999 1000 10000", "the the the thethethe",
]
# Kimi K2's: cased words, with what is contracted, apart from Han.
HAN_APART = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", \
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", "{0}{1}*{2}+{3}".format(*HAN_APART), "{0}{1}+{2}*{3}".format(*HAN_APART), r"\p{N}{1,3}",
                 r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
# Tokens that are whole pieces of one pattern and none of another, and texts of them. They have the ranks behind `tokens`.
KIMI_TOKENS = ["don't", "HelloWorld", "Hello", "World", "HTTPServer", "HTTPS", "erver", "\u4f60\u597da", "a\u4f60",
               " we'Ve", "\u304b\u306a", "\u304b\u306a\u6f22", "\u6f22", "Na\u0308", "12", "123", "(foo", "foo", "\uff21\uff22",
               "'tis"]
KIMI_TEXTS = TEXTS + [
    "don't DON'T HelloWorld helloWorld HTTPServer (foo) 'tis we'Ve", "\u4f60\u597da\u4f60 \u304b\u306a\u6f22\u304b\u306a",
    "Na\u0308Na\u0308 12345 \uff21\uff22\uff43",
    "x\u6f22y \u6f22's \u3007\u3005\u3006", "\u01c5ab\u01c5 \u02b0\u02b0A \u05d0\u05d1a"]


def train(count):
    """The most frequent pair becomes the next token; ranks 0 to 255 are the bytes in tiktoken's usual order."""
    tokens = [bytes([b]) for b in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)) +
              list(range(0, 33)) + list(range(127, 161)) + [173]]
    words = [[bytes([b]) for b in w.encode()] for t in TEXTS * 2 for w in tiktoken_split(t)]
    merges = []
    while len(tokens) < count:
        pairs = {}
        for w in words:
            for pair in zip(w, w[1:]): pairs[pair] = pairs.get(pair, 0) + 1
        left, right = max(pairs, key=lambda p: (pairs[p], p))
        merges.append((left, right))
        if left + right not in tokens: tokens.append(left + right)
        for w in words:
            i = 0
            while i + 1 < len(w):
                if (w[i], w[i + 1]) == (left, right): w[i:i + 2] = [left + right]
                i += 1
    return tokens, merges


def tiktoken_split(text):
    import regex
    return regex.findall(R50K, text)


def alphabet():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in keep]
    return {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def main():
    tokens, merges = train(480)
    ranks = {t: i for i, t in enumerate(tokens)}
    out = {"made_with": f"tiktoken {tiktoken.__version__}", "texts": TEXTS,
           "tokens": [base64.b64encode(t).decode() for t in tokens], "ids": {}}
    for name, pattern in {"Llama 3": LLAMA3, "Qwen": QWEN, "cl100k_base": LLAMA3, "r50k_base": R50K}.items():
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        prepare = (lambda t: __import__("unicodedata").normalize("NFC", t)) if name == "Qwen" else (lambda t: t)
        out["ids"][name] = [encoding.encode(prepare(t)) for t in TEXTS]
    letters = alphabet()
    spell = lambda b: "".join(letters[x] for x in b)
    model = Tokenizer(models.BPE({spell(t): i for i, t in enumerate(tokens)}, [(spell(a), spell(b)) for a, b in merges]))
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in DEEPSEEK] + [pre_tokenizers.ByteLevel(False, use_regex=False)])
    out["merges"] = [f"{spell(a)} {spell(b)}" for a, b in merges]
    out["ids"]["deepseek-llm"] = [model.encode(t).ids for t in TEXTS]
    more = tokens + [t.encode() for t in KIMI_TOKENS]
    kimi = tiktoken.Encoding("Kimi K2", pat_str=KIMI, mergeable_ranks={t: i for i, t in enumerate(more)}, special_tokens={})
    out["kimi"] = {"tokens": [base64.b64encode(t.encode()).decode() for t in KIMI_TOKENS], "texts": KIMI_TEXTS,
                   "ids": [kimi.encode(t) for t in KIMI_TEXTS]}
    path = Path(__file__).resolve().parent / "golden/encodings.json"
    path.write_text("{" + ",\n".join(f'"{k}":{json.dumps(v, separators=(",", ":"))}' for k, v in out.items()) + "}\n")


if __name__ == "__main__":
    main()
