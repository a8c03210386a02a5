"""The text of the demo model: where it comes from, how it is split, and how a play becomes a conversation.

Two public-domain works: the Shakespeare plays collected as "tinyshakespeare.txt" (speeches separated by blank lines,
each headed "SPEAKER:") and Natsume Soseki's "Botchan" in Yasotaro Morri's translation of 1918 ("botchan.txt", Project
Gutenberg's 8868; only the novel itself is used, without the notice before it and the licence after it).

The last 5 % of each work is held out: neither the tokenizer nor the weights see it. The 2 % before that decide when
training stops, and the weights do not see them either.
"""

import hashlib
import random
import re
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_SHARE, STOPPING_SHARE = 0.05, 0.02

SHA256 = {
    "tinyshakespeare.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    "botchan.txt": "464bd5300c24fce16fcc4555d4231a57632caae4d0090ad6aa92854a3b227ba7",
}

# Special tokens, in the order of their ids. A conversation is
#   <|bos|>[<|system|>S<|end|>]<|user|>U<|end|><|assistant|>A<|end|> ... <|eos|>
# and plain text is <|bos|>text.
BOS, EOS, SYSTEM, USER, ASSISTANT, END = SPECIAL_TOKENS = (
    "<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")


@dataclass(frozen=True)
class Speech:
    speaker: str
    text: str


@dataclass(frozen=True)
class Turn:
    role: str  # one of SYSTEM, USER, ASSISTANT
    text: str
    learn: bool  # False: the text is a prompt of ours, shown to the model but never predicted


@dataclass(frozen=True)
class Corpus:
    plays: str  # training part
    novel: str  # training part
    held_out: str  # the end of the plays, a blank line, the end of the novel


def read_corpus(folder: Path) -> Corpus:
    plays = _read_checked(folder / "tinyshakespeare.txt")
    novel = _read_checked(folder / "botchan.txt")
    begin, end = novel.index("CHAPTER I\n"), novel.index("End of Project Gutenberg's Botchan")
    novel = novel[begin:end].rstrip() + "\n"
    plays, plays_end = _split(plays, "\n\n")
    novel, novel_end = _split(novel, "\n")
    novel_end = novel_end[:novel_end.index("[A:")]  # misprints that Gutenberg's proofreaders found
    return Corpus(plays, novel, plays_end.strip() + "\n\n" + novel_end.strip() + "\n")


def third_part(corpus: Corpus) -> tuple[Corpus, str]:
    """What the weights learn, and what decides which of them are kept: the end of each work's training part."""
    plays, plays_end = _split(corpus.plays, "\n\n", STOPPING_SHARE)
    novel, novel_end = _split(corpus.novel, "\n", STOPPING_SHARE)
    return Corpus(plays, novel, corpus.held_out), plays_end.strip() + "\n\n" + novel_end.strip() + "\n"


def _read_checked(path: Path) -> str:
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != SHA256[path.name]:
        raise SystemExit(f"{path}: SHA-256 is {digest}, expected {SHA256[path.name]}; use the file the README names")
    return data.decode("utf-8-sig").replace("\r\n", "\n")


def _split(text: str, border: str, share: float = HELD_OUT_SHARE) -> tuple[str, str]:
    cut = text.rindex(border, 0, int(len(text) * (1 - share))) + len(border)
    return text[:cut], text[cut:]


def speeches(plays: str) -> list[Speech]:
    found = []
    for block in plays.split("\n\n"):
        speaker, colon, text = block.partition(":\n")
        if colon and text.strip() and len(speaker) <= 40:
            found.append(Speech(speaker.strip(), text.strip()))
    return found


# --- conversations --------------------------------------------------------------------------------------------------
#
# Most conversations are consecutive speeches as they stand, which teaches turn taking and when to stop. People who
# try the model speak modern English, though, so some conversations open with a prompt of ours, chosen so that the
# speech which follows answers it at least by its subject.

_ABOUT = (
    "Tell me about {}.", "What do you think about {}?", "What can you tell me about {}?", "Speak to me of {}.",
    "Write a few lines about {}.", "What is {}?", "Do you believe in {}?", "I want to hear about {}.", "Why {}?",
    "Give me a speech about {}.", "Can you explain {} to me?", "Please say something about {}.",
    "Write a poem about {}.", "Let's talk about {}.", "How do you feel about {}?", "What does {} mean to you?")
_SUBJECTS = (
    "love death war night king queen crown sword blood heart honour heaven father mother son daughter brother "
    "sister friend enemy sleep time day sun moon sea wind fire earth music beauty truth virtue fortune hope fear "
    "grief sorrow joy anger revenge marriage money gold fool ghost dream soul peace justice law mercy power people "
    "city prince lord lady master servant nurse horse wine food house world life tears eyes tongue hand letter news "
    "battle soldier England Rome banishment prison murder traitor god prayer sin shame patience youth age rose "
    "garden storm ship winter summer").split()
_BY_OPENING = (
    (r"(Good (morrow|day|even|night)|Hail|Welcome|Well met|God save|How now|Save you)\b",
     ("Hello!", "Hi!", "Hi there.", "Hello, how are you?", "Good morning!", "Good evening.", "Hey.",
      "Nice to meet you.", "How are you today?", "Greetings!")),
    (r"(Farewell|Adieu|Fare you well|Fare thee well|God be wi|Good night|Come, (let us|let's))\b",
     ("Goodbye!", "Bye.", "I have to go now.", "See you later!", "Good night!", "It was nice talking to you.")),
    (r"(I am|My name|They call me|I was)\b",
     ("Who are you?", "What is your name?", "Tell me about yourself.", "Where are you from?", "Introduce yourself.",
      "What do you do?", "Are you a robot?")),
    (r"(I thank|Thanks|I humbly thank|Many thanks|Gramercy)\b",
     ("Here is a gift for you.", "You did a great job!", "I like you.", "You are very kind.", "Well done!")),
    (r"(Ay|Yes|It is|'Tis|Even so|I do|I will|So it is)\b",
     ("Is that true?", "Are you sure?", "Can you help me?", "Do you understand me?", "Will you do it?", "Really?")),
    (r"(No|Nay|Not|Never|I cannot|I will not|I do not)\b",
     ("Do you agree?", "Can I ask you something?", "Is this right?", "Did you do it?", "Should I go?",
      "Could you do it?")),
    (r"(Because|For|Therefore|Since|The reason|That)\b",
     ("Why?", "Why did you do that?", "Can you explain that?", "How is that possible?", "What happened?")),
    (r"(I would|I pray|Pray|I beseech|Let me|Let us|Go|Come|Give|Take)\b",
     ("What should I do?", "What do you want?", "Give me some advice.", "What do we do now?", "I need your help.",
      "How can I help you?")),
    (r"(O|Alas|Ah|Woe|Alack)\b",
     ("How do you feel?", "What's wrong?", "I am sad today.", "Tell me a sad story.", "Are you okay?",
      "I have bad news.")),
)
_ANY = ("Say something.", "Tell me something interesting.", "Tell me a story.", "What's on your mind?", "Continue.",
        "Talk to me.", "Give me a famous quote.", "Write something in the style of Shakespeare.", "Go on.", "And then?")
_SYSTEM = ("You are {}.", "You are {}. Answer in character.", "Speak as {}.", "Play the part of {}.")
_SYSTEM_ANY = ("You are a helpful assistant.", "You are a character in a play.", "Answer like Shakespeare.",
               "You are a poet.", "Be brief.")


class Conversations:
    """Draws random conversations from a list of speeches."""

    MAX_SPEECH = 900  # characters; longer speeches are met in plain text only

    def __init__(self, all_speeches: list[Speech]):
        self._speeches = all_speeches
        short = [i for i, s in enumerate(all_speeches) if 15 <= len(s.text) <= self.MAX_SPEECH]
        self._by_subject = {}
        for word in _SUBJECTS:
            pattern = re.compile(rf"\b{word}s?\b", re.IGNORECASE)
            hits = [i for i in short if pattern.search(all_speeches[i].text)]
            if len(hits) >= 5:
                self._by_subject[word] = hits
        self._subjects = list(self._by_subject)
        self._by_opening = []
        for pattern, prompts in _BY_OPENING:
            hits = [i for i in short if re.match(pattern, all_speeches[i].text)]
            self._by_opening.append((prompts, hits))
        self._short = short

    def draw(self, rng: random.Random) -> list[Turn]:
        turns = []
        if rng.random() < 0.55:
            start = rng.choice(self._short)  # the user's speech; the reply comes next
            spoken = self._speeches[start].text
            prompt = self._roughen(spoken, rng)
            turns.append(Turn(USER, prompt, prompt == spoken))
        else:
            prompt, reply = self._modern(rng)
            start = reply - 1
            turns.append(Turn(USER, self._roughen(prompt, rng), False))
        role = ASSISTANT
        for speech in self._speeches[start + 1:start + 2 * rng.randint(1, 4)]:
            if len(speech.text) > self.MAX_SPEECH: break
            turns.append(Turn(role, speech.text, True))
            role = USER if role == ASSISTANT else ASSISTANT
        if len(turns) == 1: return self.draw(rng)
        return self._with_system(self._speeches[start + 1].speaker, turns, rng)

    def _modern(self, rng: random.Random) -> tuple[str, int]:
        kind = rng.random()
        if kind < 0.55:
            subject = rng.choice(self._subjects)
            return rng.choice(_ABOUT).format(subject), rng.choice(self._by_subject[subject])
        if kind < 0.9:
            prompts, hits = rng.choice(self._by_opening)
            return rng.choice(prompts), rng.choice(hits)
        return rng.choice(_ANY), rng.choice(self._short)

    @staticmethod
    def _roughen(text: str, rng: random.Random) -> str:
        """Users do not always type capitals and full stops."""
        if rng.random() < 0.2: text = text.lower()
        if rng.random() < 0.15: text = text.rstrip(".!?;,")
        return text

    def _with_system(self, speaker: str, turns: list[Turn], rng: random.Random) -> list[Turn]:
        kind = rng.random()
        if kind < 0.15:
            return [Turn(SYSTEM, rng.choice(_SYSTEM).format(speaker.title()), False)] + turns
        if kind < 0.25:
            return [Turn(SYSTEM, rng.choice(_SYSTEM_ANY), False)] + turns
        return turns
