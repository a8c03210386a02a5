#!/usr/bin/env python3
"""The tokenizers of tests/data/vocab, trained on the held-out text of the demo model, with the ids that independent packages
give for texts of every awkward kind: generate_vocabularies.py. Needs `pip install tokenizers sentencepiece gguf` (made with
0.23.3, 0.2.3 and 0.19.0).

spm        SentencePiece BPE with byte fallback: spm.model, the same as GGUF and as llama2.c's tokenizer.bin
gpt2       byte-level BPE: vocab.json + merges.txt, the same as GGUF, and as tokenizer.json with the markers of a chat
bert       WordPiece, lower case: vocab.txt, the same as tokenizer.json and as GGUF

NAME.gguf.inp holds the texts, NAME.gguf.out their ids, one text per line, without special tokens (the layout of llama.cpp's vectors)."""
import collections
import io
import json
import pathlib
import re
import struct

import sentencepiece
from gguf import GGUFWriter, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/data/vocab"
TRAINING = ROOT / "configs/demo/heldout.txt"
SEPARATOR = "\n__ggml_vocab_test__\n"
TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", "\t\n", " \n ", "Hello world", " Hello world", "Hello World", " Hello World!",
    "Hello, world!", "this is a test", "w048 7tuijk dsdfhu", "3", "33", "333", "3333", "33333", "333333", "1,234,567.89 and -0.5e10",
    "don't you'll I've WE'RE it's 'tis o'clock", "ROMEO:\nBut, soft! what light through yonder window breaks?", "a" * 70, "=" * 70,
    "!!!!!!??? ... --- ((([[[{{{", "snake_case camelCase kebab-case path/to/file.txt", "user@example.org https://example.org/?q=1&r=%20",
    "if (x < 10) { return x++; }\n\t// done\r\n", "\u00e9t\u00e9 na\u00efve Stra\u00dfe \u00c5ngstr\u00f6m \u0130stanbul", "e\u0301te\u0301 decomposed",
    "\u0416\u0438\u0437\u043d\u044c \u043f\u0440\u0435\u043a\u0440\u0430\u0441\u043d\u0430", "\u65e5\u672c\u8a9e\u3068\u4e2d\u6587\u3001\uff12\uff10\uff12\uff16\u5e74",
    "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8", "\u0627\u0644\u0633\u0644\u0627\u0645 \u0639\u0644\u064a\u0643\u0645", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u1780\u17b6\u1793\u17cb\u178f\u17c2", "\U0001f680 (normal) \U0001f636\u200d\U0001f32b\ufe0f (multiple emojis concatenated) \u2705", "\u200bzero\u200bwidth\u00a0spaces\u3000wide",
    "\U0001d54c\U0001d7d8 astral", "Cou\u0323ld yo\u0301u", "trailing spaces   ", "   leading spaces", "a  b   c    d", "line one\nline two\r\nline three\n",
    "<|user|>not a marker<|end|>", "\u00bd \u2167 \u2460 \u00b2 \u4e09", "\u2581underscore\u2581like", "the the the the The THE tHe", "\ufffd replaced",
]


def utf8_of_bytelevel():
    """GPT-2's printable stand-ins of the 256 bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + k) for k, b in enumerate(rest)}}


def write_texts(name, encode):
    (OUT / f"{name}.gguf.inp").write_text(SEPARATOR.join(TEXTS) + SEPARATOR, newline="")
    (OUT / f"{name}.gguf.out").write_text("".join(" ".join(map(str, encode(t))) + "\n" for t in TEXTS))


def gguf(name, architecture, model, pre, tokens, types, scores=None, merges=None, **ids):
    w = GGUFWriter(OUT / f"{name}.gguf", architecture)
    w.add_tokenizer_model(model)
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    if scores:
        w.add_token_scores(scores)
    w.add_token_types(types)
    if merges:
        w.add_token_merges(merges)
    for key, value in ids.items():
        w.add_bool(f"tokenizer.ggml.{key}", value) if isinstance(value, bool) else w.add_uint32(f"tokenizer.ggml.{key}", value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def spm_pieces(sp):
    """Texts, scores and kinds of the pieces, in the order of their ids."""
    ids = range(sp.vocab_size())
    kind = [TokenType.UNKNOWN if sp.is_unknown(i) else TokenType.CONTROL if sp.is_control(i) else
            TokenType.BYTE if sp.is_byte(i) else TokenType.NORMAL for i in ids]
    return [sp.id_to_piece(i) for i in ids], [sp.get_score(i) for i in ids], kind


def spm():
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING.read_text().splitlines()), model_writer=written, model_type="bpe", vocab_size=512,
        byte_fallback=True, split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, character_coverage=1.0, unk_id=0, bos_id=1, eos_id=2, num_threads=1, minloglevel=2)
    model = written.getvalue()
    (OUT / "spm.model").write_bytes(model)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces, scores, kind = spm_pieces(sp)
    gguf("spm", "llama", "llama", "default", pieces, kind, scores=scores, bos_token_id=1, eos_token_id=2, unknown_token_id=0,
         separator_token_id=0xFFFFFFFF, padding_token_id=0xFFFFFFFF,  # as written by tools for "none"
         add_bos_token=True, add_eos_token=False)
    # llama2.c's tokenizer.bin: the longest piece, then score, length and text of each.
    texts = [f"\n{p}\n".encode() if i in (1, 2) else p.replace("\u2581", " ").encode() for i, p in enumerate(pieces)]
    (OUT / "spm.bin").write_bytes(struct.pack("<I", max(map(len, texts))) +
                                  b"".join(struct.pack("<fI", s, len(t)) + t for s, t in zip(scores, texts)))
    write_texts("spm", sp.encode)


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([TRAINING.read_text()], trainers.BpeTrainer(
        vocab_size=768, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    trained = json.loads(t.to_str())["model"]
    end = len(trained["vocab"])
    (OUT / "gpt2").mkdir(exist_ok=True)
    merges = [" ".join(m) for m in trained["merges"]]
    (OUT / "gpt2/vocab.json").write_text(json.dumps({**trained["vocab"], "<|endoftext|>": end}, ensure_ascii=False))
    (OUT / "gpt2/merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    by_id = sorted(trained["vocab"], key=trained["vocab"].get) + ["<|endoftext|>"]
    gguf("gpt2", "gpt2", "gpt2", "gpt-2", by_id, [TokenType.NORMAL] * end + [TokenType.CONTROL], merges=merges,
         bos_token_id=end, eos_token_id=end)
    write_texts("gpt2", lambda text: t.encode(text).ids)
    # The same with the markers of a chat behind the vocabulary, some special, some not.
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    (OUT / "chat").mkdir(exist_ok=True)
    (OUT / "chat/tokenizer.json").write_text(t.to_str())
    added = {str(i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": special}
             for i, text, special in [(end, "<|endoftext|>", True), (end + 1, "<|im_start|>", True), (end + 2, "<|im_end|>", True),
                                      (end + 3, "<think>", False), (end + 4, "</think>", False)]}
    (OUT / "chat/tokenizer_config.json").write_text(json.dumps(
        {"add_bos_token": False, "add_eos_token": False, "added_tokens_decoder": added, "bos_token": "<|im_start|>",
         "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"},
        indent=1))


def bert():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    # The package's trainer breaks ties at random: letters, frequent words and frequent ends of words do as well.
    words = collections.Counter(re.findall("[a-z]+", TRAINING.read_text().lower()))
    ends = collections.Counter()
    for word, count in words.items():
        ends.update({"##" + word[k:]: count for k in range(1, len(word) - 1)})
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()] + list("\u00fc\u4e2d\u6587\u65e5\u20ac\u0436\u0438")
    order = lambda counter, n: [w for w, _ in sorted(counter.items(), key=lambda x: (-x[1], x[0]))[:n] if len(w) > 1]
    by_id = special + letters + ["##" + c for c in letters if c.isalnum()] + order(words, 400) + order(ends, 200)
    t = Tokenizer(models.WordPiece({p: i for i, p in enumerate(by_id)}, unk_token="[UNK]", max_input_chars_per_word=100))
    t.add_special_tokens(special)
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                     special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    (OUT / "bert").mkdir(exist_ok=True)
    (OUT / "bert/tokenizer.json").write_text(t.to_str())
    (OUT / "bert/vocab.txt").write_text("\n".join(by_id) + "\n")
    # GGUF's convention: pieces that begin a word carry U+2581, those that continue one carry nothing.
    pieces = [p if p in special else p[2:] if p.startswith("##") else "\u2581" + p for p in by_id]
    gguf("bert", "bert", "bert", "bert-bge", pieces,
         [TokenType.UNKNOWN if p == "[UNK]" else TokenType.CONTROL if p in special else TokenType.NORMAL for p in by_id],
         unknown_token_id=1, seperator_token_id=3, padding_token_id=0, cls_token_id=2, mask_token_id=4, token_type_count=2)
    write_texts("bert", lambda text: t.encode(text, add_special_tokens=False).ids)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    spm()
    gpt2()
    bert()
