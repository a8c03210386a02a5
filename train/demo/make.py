#!/usr/bin/env python3
"""Makes the embedded default model with `oar train`, from two texts to a folder that serves. One command does it all:

    python3 train/demo/make.py --text DIR --out configs/demo

DIR holds tinyshakespeare.txt and botchan.txt (corpus.py has their checksums). It needs Python alone and a built `oar`:
about half an hour on two idle cores with AVX-512 and bf16. Interrupted, the same command goes on where it stopped, to the
same bits. evaluate.py then records the perplexity of what was written.

The text is tiny (about 0.45 million tokens), so the enemy is memorizing it: dropout, weight decay, other cuts of the text
for each epoch, averaged weights. A third part of the text, neither trained on nor held out, decides which weights are kept.
"""

import argparse
import json
import random
import shutil
import subprocess
from pathlib import Path

from corpus import ASSISTANT, SYSTEM, USER, Conversations, read_corpus, speeches, third_part

ROOT = Path(__file__).resolve().parents[2]
NAMES = {SYSTEM: "system", USER: "user", ASSISTANT: "assistant"}
# How often an epoch, in which each conversation comes once, has the plays and the novel: 42 and 13 % of its tokens.
PLAYS, NOVEL = 19, 25
WARMUP = 150
GENERATION = {"bos_token_id": 0, "eos_token_id": [1, 5], "do_sample": True, "temperature": 0.8, "top_p": 0.95, "max_new_tokens": 256}


def conversation(drawn: list) -> dict:
    """As OpenAI writes it, up to the last answer."""
    last = max(k for k, turn in enumerate(drawn) if turn.role == ASSISTANT)
    return {"messages": [{"role": NAMES[turn.role], "content": turn.text} for turn in drawn[:last + 1]]}


def write_data(texts: Path, folder: Path, conversations: int, seed: int) -> None:
    """words/: what the tokenizer is learned from; and what the weights are."""
    corpus = read_corpus(texts)
    (folder / "words").mkdir(parents=True, exist_ok=True)
    (folder / "words/plays.txt").write_text(corpus.plays, encoding="utf-8")
    (folder / "words/novel.txt").write_text(corpus.novel, encoding="utf-8")
    learned, stopping = third_part(corpus)
    (folder / "plays.txt").write_text(learned.plays, encoding="utf-8")
    (folder / "novel.txt").write_text(learned.novel, encoding="utf-8")
    (folder / "stopping.txt").write_text(stopping, encoding="utf-8")
    (folder / "heldout.txt").write_text(corpus.held_out, encoding="utf-8")
    draw, rng = Conversations(speeches(learned.plays)).draw, random.Random(seed)
    with (folder / "chats.jsonl").open("w", encoding="utf-8") as out:
        for _ in range(conversations): out.write(json.dumps(conversation(draw(rng))) + "\n")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="folder with tinyshakespeare.txt and botchan.txt")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write; files of these names are replaced")
    parser.add_argument("--oar", type=Path, default=ROOT / "build/release/bin/oar", help="the program")
    parser.add_argument("--work", type=Path, help="where data and checkpoints lie meanwhile; OUT.making when left out")
    parser.add_argument("--config", type=Path, default=ROOT / "configs/demo/config.json", help="the model's shape")
    parser.add_argument("--steps", type=int, default=2200)
    parser.add_argument("--conversations", type=int, default=30000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    work = args.work or Path(f"{args.out}.making")
    data, words, model = work / "data", work / "words", work / "model"
    write_data(args.text, data, args.conversations, args.seed)

    def oar(*options) -> str:
        command = [str(args.oar), *map(str, options)]
        print(" ".join(command), flush=True)
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    if not words.exists():
        oar("train", "--tokenizer", "--data", data / "words/plays.txt", data / "words/novel.txt", "--vocab", 2048, "-o", words)
    if not model.exists():
        oar("train", "--config", args.config, "--words", words, "--data", f"{data}/plays.txt:{PLAYS}", f"{data}/novel.txt:{NOVEL}",
            data / "chats.jsonl", "--cuts", "drawn", "--length", 2048, "--tokens", 4096, "--dropout", 0.3, "--average", 0.995, "--decay", 0.3,
            "--rate", 2e-3, "--warmup", min(WARMUP, args.steps // 4), "--least-rate", 0.02, "--steps", args.steps, "--precision", "O1",
            "--eval", data / "stopping.txt", "--eval-every", 100, "--sample-tokens", 0, "--seed", args.seed, "--threads", args.threads,
            "--log", work / "log.jsonl", "--plot", work / "loss.svg", "-o", model)
    (model / "generation_config.json").write_text(json.dumps(GENERATION, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(data / "heldout.txt", model / "heldout.txt")
    told = json.loads(oar("eval", model, "--text", model / "heldout.txt", "--json"))
    args.out.mkdir(parents=True, exist_ok=True)
    for file in sorted(model.iterdir()):
        partial = args.out / f"{file.name}.part"
        shutil.copyfile(file, partial)
        partial.rename(args.out / file.name)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
