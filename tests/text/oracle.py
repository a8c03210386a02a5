#!/usr/bin/env python3
"""Compares Oar's tokenizers with the PyPI packages `tokenizers` and `sentencepiece` on random Unicode.

    tests/text/oracle.py --dump build/release/bin/tokenize_dump --data ../shared/data --points 1000000
    tests/text/oracle.py ... --only qwen2 --seed 7
    tests/text/oracle.py ... --every-code-point        each code point, in four surroundings
    tests/text/oracle.py ... --golden tests/text/golden/oracle.json   rewrites the committed sample

Every configuration is written as a file, read by both sides, and fed the same texts; ids must be equal, and so must
the text decoded from them. The packages carry Unicode tables of several versions (the newest is theirs or ours, the
oldest is Unicode 8), so random texts draw from code points assigned in Unicode 8 whose properties have not changed
since; --every-code-point shows what that leaves out.
"""
import argparse
import base64
import json
import random
import re
import struct
import subprocess
import sys
import tempfile
import unicodedata
import zipfile
from pathlib import Path

import sentencepiece as spm
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
TAIL = r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTION + r"|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER +
         "*" + CONTRACTION + TAIL)
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        + CONTRACTION + TAIL)
DEEPSEEK3 = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
             r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
             r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
BAILING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
EXAONE = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+"
          r"[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+")


# Assigned in Unicode 8, but with another general category since 9, 12 or 14 (Lo, Mc and Mn; Po to Mn or So).
CHANGED = {0x166D, 0x1734, 0x1885, 0x1886, 0x1CF2, 0x1CF3, 0xA9BD, 0x111C9}


class Case:
    """One configuration: a file for our side, functions text -> ids and ids -> text for the other."""

    def __init__(self, name, args, encode, decode, kind, prepare=lambda text: text):
        self.name, self.args, self.encode, self.decode, self.kind, self.prepare = name, args, encode, decode, kind, prepare


class Suite:
    """`small`: tiny vocabularies trained here in place of the published ones, for the committed sample."""

    def __init__(self, data, tmp, small=False):
        self.data, self.tmp, self.cases, self.small = Path(data), Path(tmp), [], small
        self.lines = (self.data / "text/tinyshakespeare.txt").read_text().splitlines()[:4000]
        self.spm_bpe = self.data / "tokenizers/mistral/tokenizer.model.v1"
        self.spm_unigram = self.data / "tokenizers/unigram/test_model.model"
        if small:
            # Rules of one's own keep precompiled_charsmap to a few hundred bytes.
            rules = self.tmp / "rules.tsv"
            pairs = {"\u00a0": " ", "\u3000": " ", "\u2003": " ", "ﬁ": "fi", "e\u0301": "é", "ſ": "s", "㎏": "kg", "İ": "i̇",
                     "\r\n": "\n", "\u1100\u1161": "가", "\u200b": ""}
            rules.write_text("".join(
                f"{' '.join(f'{ord(c):X}' for c in a)}\t{' '.join(f'{ord(c):X}' for c in b)}\n" for a, b in pairs.items()))
            self.spm_bpe = self.train("bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
                                      remove_extra_whitespaces=False)
            self.spm_unigram = self.train("unigram", vocab_size=700, normalization_rule_tsv=str(rules))

    def train(self, model_type, name=None, text="text/tinyshakespeare.txt", **options):
        prefix = str(self.tmp / (name or f"small-{model_type}"))
        spm.SentencePieceTrainer.train(input=str(self.data / text), model_prefix=prefix, minloglevel=2, num_threads=1,
                                       model_type=model_type, **options)
        return Path(prefix + ".model")

    def add_hf(self, name, tok, flags=()):
        tok.no_truncation()
        tok.no_padding()
        path = self.tmp / f"{name}.json"
        tok.save(str(path))
        special = "--special" in flags
        self.cases.append(Case(name, [*flags, "json", str(path)],
                               lambda t: tok.encode(t, add_special_tokens=special).ids,
                               lambda ids: tok.decode(ids), "hf"))

    def add_spm(self, name, path):
        sp = spm.SentencePieceProcessor(model_file=str(path))
        self.cases.append(Case(name, ["--raw", "spm", str(path)], lambda t: sp.encode(t), lambda ids: sp.decode(ids), "spm"))
        return sp

    # ---- tokenizer.json -------------------------------------------------------------------------------------------
    def gpt2(self):
        if self.small:
            tok = Tokenizer(models.BPE())
            tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tok.train_from_iterator(self.lines, trainers.BpeTrainer(
                vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
            return tok.model
        base = self.data / "tokenizers/gpt2"
        return models.BPE.from_file(str(base / "vocab.json"), str(base / "merges.txt"))

    def byte_level(self, name, steps, normalizer=None, model=None, flags=(), prepare=None):
        tok = Tokenizer(model or self.gpt2())
        if normalizer is not None:
            tok.normalizer = normalizer
        tok.pre_tokenizer = pre_tokenizers.Sequence(steps)
        tok.decoder = decoders.ByteLevel()
        if prepare:
            prepare(tok)
        self.add_hf(name, tok, flags)

    def patterns(self):
        byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        split = lambda p, b="isolated", invert=False: pre_tokenizers.Split(Regex(p), b, invert)
        for name, chain in {"llama3": [LLAMA3], "qwen2": [QWEN2], "o200k": [O200K], "kimi": [KIMI], "deepseek3": DEEPSEEK3,
                            "bailing": [BAILING], "exaone": [EXAONE], "aya": [r"\d{1,3}(?=(?:\d{3})*\b)", O200K],
                            "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"]}.items():
            normalizer = normalizers.NFC() if name == "qwen2" else None
            self.byte_level(f"pattern-{name}", [*map(split, chain), byte], normalizer)
        for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
            for invert in (False, True):
                self.byte_level(f"split-{behavior}-{invert}", [split(r"\s|[aeiou\p{P}]", behavior, invert), byte])
            self.byte_level(f"punctuation-{behavior}", [pre_tokenizers.Punctuation(behavior), byte])
        self.byte_level("split-string", [pre_tokenizers.Split("e ", "merged_with_previous"), byte])
        self.byte_level("lazy", [split(r"a.*?e|\w+?\b|(?<=\s)\S|(?<!\w)\d"), byte])
        singles = {"whitespace": pre_tokenizers.Whitespace(), "whitespace-split": pre_tokenizers.WhitespaceSplit(),
                   "bert-pre": pre_tokenizers.BertPreTokenizer(), "digits": pre_tokenizers.Digits(False),
                   "digits-one": pre_tokenizers.Digits(True), "delimiter": pre_tokenizers.CharDelimiterSplit("e"),
                   "fixed": pre_tokenizers.FixedLength(5)}
        for name, step in singles.items():
            self.byte_level(name, [step, byte])
        for scheme in ("always", "first", "never"):
            for cut in (True, False):
                self.byte_level(f"metaspace-{scheme}-{cut}", [pre_tokenizers.Metaspace("▁", scheme, cut), byte])
        for prefix in (False, True):
            self.byte_level(f"gpt2-{prefix}", [pre_tokenizers.ByteLevel(add_prefix_space=prefix)])
        self.byte_level("bytes-then-digits", [pre_tokenizers.ByteLevel(add_prefix_space=True), pre_tokenizers.Digits(True)])

    def normalizers(self):
        steps = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
        n = normalizers
        named = {"nfc": n.NFC(), "nfd": n.NFD(), "nfkc": n.NFKC(), "nfkd": n.NFKD(), "lowercase": n.Lowercase(),
                 "strip-accents": n.Sequence([n.NFD(), n.StripAccents()]), "nmt": n.Nmt(), "strip": n.Strip(),
                 "lstrip": n.Strip(True, False), "bert": n.BertNormalizer(),
                 "bert-cased": n.BertNormalizer(lowercase=False), "bert-no-clean": n.BertNormalizer(clean_text=False),
                 "bert-lower": n.BertNormalizer(strip_accents=False),
                 "replace": n.Sequence([n.Replace(Regex(r" {2,}|\s(?=\S)"), "_"), n.Replace("e", "<>"), n.Prepend("^")])}
        for name, normalizer in named.items():
            self.byte_level(f"normalizer-{name}", steps, normalizer)
        tok = Tokenizer(self.gpt2())
        tok.normalizer = n.ByteLevel()
        tok.decoder = decoders.ByteLevel()
        self.add_hf("normalizer-byte-level", tok)

    def added(self):
        def prepare(tok):
            tok.add_tokens([AddedToken("hello", single_word=True), AddedToken("wor", lstrip=True, normalized=False),
                            AddedToken("É", rstrip=True), AddedToken("ab ab", normalized=True)])
            tok.add_special_tokens(["<|im_start|>", "<|im_end|>", AddedToken("<mask>", lstrip=True, rstrip=True)])
            tok.post_processor = processors.TemplateProcessing(
                single="<|im_start|> $A <|im_end|>",
                special_tokens=[(t, tok.token_to_id(t)) for t in ("<|im_start|>", "<|im_end|>")])
        byte = [pre_tokenizers.ByteLevel(add_prefix_space=True)]
        self.byte_level("added", byte, prepare=prepare)
        self.byte_level("added-template", byte, normalizers.Lowercase(), prepare=prepare, flags=("--special",))

    def sentencepiece_bpe(self):
        """Llama 2's conversion of a .model into merges."""
        sp = spm.SentencePieceProcessor(model_file=str(self.spm_bpe))
        vocab = {sp.id_to_piece(i): i for i in range(sp.get_piece_size())}
        merges = []
        for piece, score in ((sp.id_to_piece(i), sp.get_score(i)) for i in range(len(vocab))):
            local = [(piece[:k], piece[k:], score) for k in range(1, len(piece)) if piece[:k] in vocab and piece[k:] in vocab]
            merges.extend(sorted(local, key=lambda x: (vocab[x[0]], vocab[x[1]])))
        merges = [(a, b) for a, b, _ in sorted(merges, key=lambda x: x[2], reverse=True)]
        for name in ("legacy", "metaspace", "no-fallback", "ignore-merges"):
            fallback = name != "no-fallback"
            tok = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=fallback,
                                       ignore_merges=name == "ignore-merges"))
            if name == "metaspace":
                tok.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
            else:
                tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                             decoders.Strip(" ", 1, 0)])
            tok.add_special_tokens(["<unk>", "<s>", "</s>"])
            tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
            self.add_hf(f"llama2-{name}", tok, ("--special",))

    def unigram(self):
        path = self.spm_unigram
        sp = spm.SentencePieceProcessor(model_file=str(path))
        pieces = [(sp.id_to_piece(i), sp.get_score(i)) for i in range(sp.get_piece_size())]
        charsmap = precompiled_charsmap(path.read_bytes())
        for name in ("precompiled", "nmt-nfkc", "fallback"):
            vocab = pieces + [(f"<0x{b:02X}>", -50.0) for b in range(256)] if name == "fallback" else pieces
            tok = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=name == "fallback"))
            squeeze = normalizers.Replace(Regex(" {2,}"), " ")
            first = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()]) if name == "nmt-nfkc" else \
                normalizers.Precompiled(charsmap)
            tok.normalizer = normalizers.Sequence([first, squeeze])
            tok.pre_tokenizer = pre_tokenizers.Metaspace()
            tok.decoder = decoders.Metaspace()
            tok.add_special_tokens(["<unk>", "<s>", "</s>"])
            self.add_hf(f"unigram-{name}", tok)

    def trained(self):
        """Small models with the decorations that no file at hand has."""
        size = 400 if self.small else 2000
        for name, options in {"clip": {"end_of_word_suffix": "</w>"}, "prefixed": {"continuing_subword_prefix": "##"}}.items():
            tok = Tokenizer(models.BPE(unk_token="[UNK]", **options))
            tok.pre_tokenizer = pre_tokenizers.Whitespace()
            tok.train_from_iterator(self.lines, trainers.BpeTrainer(vocab_size=size, special_tokens=["[UNK]"],
                                                               show_progress=False, **options))
            if name == "clip":
                tok.decoder = decoders.BPEDecoder("</w>")
            self.add_hf(f"bpe-{name}", tok)
        tok = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        tok.pre_tokenizer = pre_tokenizers.Whitespace()
        tok.train_from_iterator(self.lines, trainers.WordLevelTrainer(vocab_size=size, special_tokens=["[UNK]"], show_progress=False))
        self.add_hf("word-level", tok)

    def files(self):
        self.add_hf("minimind", Tokenizer.from_file(str(self.data / "tokenizers/minimind/tokenizer.json")))
        self.add_hf("bert", Tokenizer.from_file(str(self.data / "tokenizers/bert_hf/tokenizer.json")), ("--special",))
        for name in () if self.small else ("bert_vocab", "ernie"):
            path = self.data / f"tokenizers/{name}/vocab.txt"
            plain = self.tmp / f"{name}.txt"  # ERNIE's lines are token<TAB>id, which the package does not read
            plain.write_text("".join(line.split("\t")[0] + "\n" for line in path.read_text().split("\n") if line))
            tok = tokenizers.BertWordPieceTokenizer(str(plain))
            self.cases.append(Case(f"vocab-txt-{name}", ["--special", "vocab", str(path)],
                                   lambda t, tok=tok: tok.encode(t).ids, lambda ids, tok=tok: tok.decode(ids), "hf"))
        archive = self.data / "onnx/bert_like_graphs/TinyXLMRoberta-CE-onnx.zip"
        if archive.exists():
            tok = Tokenizer.from_str(zipfile.ZipFile(archive).read("tokenizer.json").decode())
            self.add_hf("xlm-roberta", tok, ("--special",))

    # ---- .model ---------------------------------------------------------------------------------------------------
    def sentencepiece(self):
        self.add_spm("spm-bpe", self.spm_bpe)
        self.add_spm("spm-unigram", self.spm_unigram)
        if not self.small:
            tok512 = self.add_spm("spm-tok512", self.data / "llm/stories260K/tok512.model")
            # tokenizer.bin does not say that the model squeezes spaces: do it to the text, on both sides.
            squeeze = lambda t: re.sub("[ ▁]+", " ", t).strip(" ")
            self.cases.append(Case("llama2c-tok512",
                                   ["--raw", "llama2c", str(self.data / "llm/stories260K/tok512.bin"), "512"],
                                   tok512.encode, tok512.decode, "spm", squeeze))
        size = 400 if self.small else 1200
        variants = {
            "bpe-fallback": dict(byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False),
            "bpe-user": dict(user_defined_symbols="the,▁▁,<sep>,\u00e9\u00e9", split_digits=True),
            "bpe-nfkc-cf": dict(normalization_rule_name="nfkc_cf", add_dummy_prefix=False),
            "unigram-fallback": dict(byte_fallback=True, remove_extra_whitespaces=False),
            "unigram-user": dict(user_defined_symbols="the,▁▁,<sep>,\u00e9\u00e9"),
            "unigram-suffix": dict(treat_whitespace_as_suffix=True),
            "bpe-whole-lines": dict(split_by_whitespace=False, max_sentencepiece_length=32),
        }
        for name, options in variants.items():
            if self.small:
                if name == "bpe-nfkc-cf":
                    continue  # its rules take 200 KB
                options.setdefault("normalization_rule_name", "identity")
            self.add_spm(f"spm-{name}", self.train(name.split("-")[0], name, "text/botchan.txt",
                                                   vocab_size=size + 256 * options.get("byte_fallback", False), **options))

    def build(self):
        for part in (() if self.small else (self.files,)) + (self.patterns, self.normalizers, self.added, self.sentencepiece_bpe, self.unigram,
                     self.trained, self.sentencepiece):
            part()
        return self.cases


def precompiled_charsmap(model):
    """normalizer_spec.precompiled_charsmap of a serialized ModelProto."""
    def fields(b):
        i = 0
        def varint():
            nonlocal i
            v = s = 0
            while True:
                v |= (b[i] & 0x7F) << s
                s += 7
                i += 1
                if b[i - 1] < 0x80:
                    return v
        while i < len(b):
            tag = varint()
            if tag & 7 == 2:
                n = varint()
                yield tag >> 3, b[i:i + n]
                i += n
            elif tag & 7 == 0:
                yield tag >> 3, varint()
            else:
                i += 4 if tag & 7 == 5 else 8
    spec = next(v for k, v in fields(model) if k == 3)
    return next(v for k, v in fields(spec) if k == 2)


class Texts:
    """Random texts, biased towards what splits and merges care about."""

    def __init__(self, rng, data, newest):
        self.rng = rng
        age = {}
        for line in Path("/usr/share/unicode/DerivedAge.txt").read_text().splitlines():
            line = line.split("#")[0].strip()
            if line:
                span, version = (x.strip() for x in line.split(";"))
                lo, _, hi = span.partition("..")
                for c in range(int(lo, 16), int(hi or lo, 16) + 1):
                    age[c] = float(version)
        self.age = age
        stable = [c for c, v in age.items() if v <= newest and c not in CHANGED and unicodedata.category(chr(c)) not in ("Cs", "Co", "Cn")]
        self.pools = [
            [ord(c) for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"],
            [ord(c) for c in "0123456789"],
            [ord(c) for c in " \t\n\r\u00a0\u2003\u3000\u200b\u0085\x0b\x0c\u2028"],
            [ord(c) for c in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~’“”…¿«»"],
            [c for c in stable if unicodedata.category(chr(c))[0] == "M"],
            [c for c in stable if unicodedata.category(chr(c))[0] == "N"],
            [c for c in stable if unicodedata.category(chr(c)) in ("Lu", "Ll", "Lt", "Lm")],
            [c for c in stable if unicodedata.category(chr(c))[0] in "PSZC"],
            [c for c in stable if 0x1F300 <= c < 0x1F9FF or 0x2600 <= c < 0x27C0] + [0x200D, 0xFE0F, 0x1F1E6, 0x1F1EA],
            [c for c in stable if 0x4E00 <= c < 0xA000 or 0x3040 <= c < 0x3100 or 0xAC00 <= c < 0xD7A4],
            [c for c in stable if 0x1100 <= c < 0x1200 or 0xA960 <= c < 0xA980],
            stable,
        ]
        self.words = ["'s", "'S", "'ll", "'LL", "’s", "'ſ", "'re", "'VE", "n't", "  ", "   ", "\n\n", "\r\n", " \n", "\n ",
                      "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<mask>", " <mask> ", "[CLS]", "[MASK]", "hello",
                      "hello world", "Hello", "É", "é", "ab ab", "AB ab", "▁", "▁▁", "<0x0A>", "the", "<sep>", "éé", "ﬁ", "ſ",
                      "İ", "ß", "ﬀ", "㎏", "1234567", "3.14", "١٢٣", "Ǆ", "가각", "각", "e\u0301\u0327", "\0", "\ufeff", "\ufffd",
                      "http://x.y/z?a=1", "__init__", "don't", "日本語", "คำ", "नमस्ते", "👨‍👩‍👧", "🇩🇪🇫🇷"]
        self.prose = (Path(data) / "text/tinyshakespeare.txt").read_text()

    def one(self):
        rng, out = self.rng, []
        for _ in range(rng.choice((1, 2, 4, 8, 16, 40))):
            kind = rng.random()
            if kind < 0.2:
                out.append(rng.choice(self.words))
            elif kind < 0.35:
                start = rng.randrange(len(self.prose) - 60)
                out.append(self.prose[start:start + rng.randrange(1, 60)])
            elif kind < 0.42:
                out.append(chr(rng.choice(rng.choice(self.pools))) * rng.randrange(1, 40))
            else:
                pool = rng.choice(self.pools)
                out.append("".join(chr(rng.choice(pool)) for _ in range(rng.randrange(1, 9))))
            if rng.random() < 0.3:
                out.append(" ")
        return "".join(out)


def ours(dump, case, texts):
    data = b"".join(struct.pack("<I", len(b)) + b for b in (t.encode() for t in texts))
    run = subprocess.run([dump, *case.args], input=data, capture_output=True)
    if run.returncode:
        sys.exit(f"{case.name}: {run.stderr.decode()}")
    out, i = [], 0
    for _ in texts:
        n, = struct.unpack_from("<I", run.stdout, i)
        ids = list(struct.unpack_from(f"<{n}i", run.stdout, i + 4))
        i += 4 + 4 * n
        m, = struct.unpack_from("<I", run.stdout, i)
        out.append((ids, run.stdout[i + 4:i + 4 + m].decode()))
        i += 4 + m
    return out


def compare(dump, case, texts, show):
    bad = []
    texts = [case.prepare(t) for t in texts]
    for text, (ids, back) in zip(texts, ours(dump, case, texts)):
        want = case.encode(text)
        if ids != want:
            bad.append(text)
            if len(bad) <= show:
                k = next((i for i, (a, b) in enumerate(zip(ids, want)) if a != b), min(len(ids), len(want)))
                print(f"  {case.name}: {text!r}\n    ours {ids[max(0, k-3):k+6]}\n    want {want[max(0, k-3):k+6]} at {k}")
            continue
        # ByteFallback of `tokenizers` gives up on a whole run of byte tokens when one of them is ill-formed; ours, like
        # sentencepiece, keeps the characters. Encoded text has no ill-formed runs, so decoding is compared in full.
        expect = case.decode(want)
        if back != expect:
            bad.append(text)
            if len(bad) <= show:
                print(f"  {case.name} decode: {text!r}\n    ours {back!r}\n    want {expect!r}")
    return bad


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dump", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--points", type=int, default=200000, help="code points per configuration")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", default="")
    p.add_argument("--show", type=int, default=3)
    p.add_argument("--newest", type=float, default=8.0)
    p.add_argument("--every-code-point", action="store_true")
    p.add_argument("--golden")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        cases = [c for c in Suite(a.data, tmp, small=a.golden is not None).build() if a.only in c.name]
        texts = Texts(random.Random(a.seed), a.data, a.newest)
        if a.golden:
            return write_golden(cases, texts, a)
        total = points = 0
        for case in cases:
            if a.every_code_point:
                chars = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
                batch = [f"{c}a{c}b 1 {c}{c}'s" for c in chars]
            else:
                batch, n = [], 0
                while n < a.points:
                    batch.append(texts.one())
                    n += len(batch[-1])
            bad = compare(a.dump, case, batch, 0 if a.every_code_point else a.show)
            n = sum(map(len, batch))
            points += n
            total += len(bad)
            note = ""
            if a.every_code_point and bad:
                odd = sorted({ord(c) for t in bad for c in t if c not in "ab1 's"})
                old = [c for c in odd if texts.age.get(c, 99) <= a.newest and c not in CHANGED]
                note = f"; {len(odd)} code points, {len(old)} of them in Unicode {a.newest}: " + \
                    " ".join(f"U+{c:04X}" for c in old[:12])
            print(f"{case.name}: {len(batch)} texts, {n} code points, {len(bad)} differ{note}", flush=True)
        print(f"total: {len(cases)} configurations, {points} code points, {total} texts differ")
        return 1 if total and not a.every_code_point else 0


def fnv1a(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def write_golden(cases, texts, a):
    """Texts, and for every configuration the hashes of the packages' ids and of the text decoded from them."""
    batch = [texts.one() for _ in range(48)] + ["", " ", "  ", "\n", "Hello, world!"]
    shared, out = {}, []
    for case in cases:
        kind, path = case.args[-2:]
        entry = {"name": case.name, "special": "--special" in case.args, "raw": "--raw" in case.args}
        if kind == "json":
            document = json.loads(Path(path).read_text())
            model = document.pop("model")
            text = json.dumps(model, ensure_ascii=False, separators=(",", ":"))
            entry["model"] = shared.setdefault(text, f"model{len(shared)}")
            entry["tokenizer"] = document
        else:
            entry["sentencepiece"] = base64.b64encode(Path(path).read_bytes()).decode()
        ids = [case.encode(t) for t in batch]
        entry["ids"] = [fnv1a(struct.pack(f"<{len(i)}i", *i)) for i in ids]
        entry["decoded"] = [fnv1a(case.decode(i).encode()) for i in ids]
        out.append(entry)
    document = {"made_with": {"tokenizers": tokenizers.__version__, "sentencepiece": spm.__version__, "seed": a.seed},
                "texts": batch, "models": {name: json.loads(text) for text, name in shared.items()}, "cases": out}
    Path(a.golden).write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")).replace('{"name":', '\n{"name":') + "\n")
    print(f"{a.golden}: {len(out)} configurations, {len(batch)} texts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
