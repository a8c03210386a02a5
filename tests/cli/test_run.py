#!/usr/bin/env python3
"""`oar run` as a person uses it, through a pseudo-terminal, and its commands through a pipe. Standard library only.

$OAR_BIN names the program.
"""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import tempfile
import termios
import time
import unittest

OAR = os.environ.get("OAR_BIN", str(pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/oar"))
TIMEOUT = 240  # seconds; a sanitizer build on a busy machine
UP, LEFT, PASTE, END_OF_PASTE = "\033[A", "\033[D", "\033[200~", "\033[201~"


class Terminal:
    """`oar run demo` on a terminal of 80 columns; what it writes is read until something is seen."""

    def __init__(self, *args, env=None):
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", **(env or {})})
            short = [] if "--max-tokens" in args else ["--max-tokens", "4"]
            os.execv(OAR, [OAR, "run", "demo", "--seed", "1", *short, *args])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.until("> ")

    def until(self, text):
        deadline = time.monotonic() + TIMEOUT
        while text not in self.seen:
            if time.monotonic() > deadline or not select.select([self.fd], [], [], TIMEOUT)[0]:
                raise AssertionError(f"no {text!r} in {self.seen!r}")
            try:
                piece = os.read(self.fd, 4096)
            except OSError:  # the other end is closed
                piece = b""
            if not piece:
                raise AssertionError(f"ended without {text!r}: {self.seen!r}")
            self.seen += piece.decode(errors="replace")
        begin, self.seen = self.seen.split(text, 1)
        return begin

    def send(self, text):
        os.write(self.fd, text.encode())

    def say(self, text):
        """A message or command, and the prompt after it."""
        self.send(text + "\r")
        self.until("\n")  # what was typed
        self.until("> ")

    def close(self):
        """The exit code."""
        try:
            while os.read(self.fd, 4096):
                pass
        except OSError:
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class OnATerminal(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.env = {"XDG_STATE_HOME": str(self.folder / "state"), "HOME": str(self.folder)}
        self.history = self.folder / "state/oar/history"

    def said(self, *keys, env=None):
        """The user's messages of a run in which these were typed, Enter behind each."""
        file = self.folder / f"{time.monotonic_ns()}.json"
        terminal = Terminal(env={**self.env, **(env or {})})
        for text in keys:
            terminal.say(text)
        terminal.say(f"/save {file}")
        terminal.send("/exit\r")
        self.assertEqual(terminal.close(), 0)
        return [m["content"] for m in json.loads(file.read_text(encoding="utf-8"))["messages"] if m["role"] == "user"]

    def test_arrows_edit_the_line(self):
        self.assertEqual(self.said("Hllo" + LEFT * 3 + "e"), ["Hello"])
        self.assertEqual(self.said("what newz" + "\x7f" + "s?" + "\x01" + "So, "), ["So, what news?"])  # Ctrl-A: to the front

    def test_characters_beyond_ascii_whatever_the_locale(self):
        for locale in ("C", "C.UTF-8"):
            self.assertEqual(self.said("Gr\u00fcxe \u4e16!" + LEFT * 4 + "\x7f" + "\u00df", env={"LC_ALL": locale}),
                             ["Gr\u00fc\u00dfe \u4e16!"])

    def test_a_pasted_block_is_one_message(self):
        block = "first line\n\n  second\tline\n/help is no command here\n"
        self.assertEqual(self.said(PASTE + block + END_OF_PASTE), [block.rstrip("\n")])
        # Terminals send the Enter key's code within a block; more can be typed around it.
        self.assertEqual(self.said("Read: " + PASTE + "a\rb\r" + END_OF_PASTE + " Well?"), ["Read: a\nb Well?"])
        many = "\n".join(f"{k} and on" for k in range(40))  # more than the screen holds
        self.assertEqual(self.said(PASTE + many + END_OF_PASTE), [many])

    def test_messages_of_several_lines(self):
        self.assertEqual(self.said("one\033\rtwo"), ["one\ntwo"])  # Alt-Enter
        terminal = Terminal(env=self.env)
        terminal.send("three\\\r")
        terminal.until("... ")
        terminal.say("four")
        terminal.say(f"/save {self.folder}/lines.json")
        terminal.send("\x04")
        self.assertEqual(terminal.close(), 0)
        saved = json.loads((self.folder / "lines.json").read_text(encoding="utf-8"))
        self.assertEqual(saved["messages"][0], {"role": "user", "content": "three\nfour"})
        self.assertEqual([m["role"] for m in saved["messages"]], ["user", "assistant"])

    def test_history_across_runs(self):
        block = "a block\nof two lines"
        self.said("Good morrow!", PASTE + block + END_OF_PASTE)
        self.assertEqual(stat.S_IMODE(self.history.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(self.history.parent.stat().st_mode), 0o700)
        # /exit and /save of the first run are above what was said.
        self.assertEqual(self.said(UP * 3, UP * 5), [block, "Good morrow!"])
        self.assertEqual(self.said("\x12morrow\033"), ["Good morrow!"])  # Ctrl-R looks for it

    def test_without_a_history(self):
        terminal = Terminal("--history", "", env=self.env)
        terminal.say("Good morrow!")
        terminal.send("/exit\r")
        self.assertEqual(terminal.close(), 0)
        self.assertFalse(self.history.exists())
        (self.folder / "file").write_text("")
        terminal = Terminal("--history", f"{self.folder}/file/history", env=self.env)
        terminal.send("Good morrow!\r")
        terminal.until("the history cannot be kept in ")
        terminal.until("> ")
        terminal.send("/exit\r")
        self.assertEqual(terminal.close(), 0)

    def test_interrupt(self):
        terminal = Terminal("--max-tokens", "1900", "--temperature", "5", env=self.env)
        terminal.send("never sent\x03")
        terminal.until("once more")
        terminal.until("> ")
        terminal.send("Speak!\r")
        terminal.until("\n")
        terminal.until("a")  # the answer has begun
        terminal.send("\x03")
        terminal.until("[stopped]")
        terminal.until("> ")
        terminal.say(f"/save {self.folder}/kept.txt")
        terminal.send("\x03")
        terminal.until("once more")
        terminal.send("\x03")
        self.assertEqual(terminal.close(), 128 + signal.SIGINT)
        kept = (self.folder / "kept.txt").read_text(encoding="utf-8")
        self.assertTrue(kept.startswith("user:\nSpeak!\n\nassistant:\n"), kept)


class Piped(unittest.TestCase):
    def run_oar(self, text, *args):
        done = subprocess.run([OAR, *args], input=text, capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_commands(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_oar(f"/system\n/system Speak as a king.\n/params\nWho art thou?\n/save {folder}/a.json\n"
                                f"/save {folder}/a.json\n/save\n/system \"\"\n/reset\nAgain?\n/save {folder}/b.txt\n",
                                "run", "demo", "--seed", "1", "--max-tokens", "6")
            for words in ("system: (none)", "system: Speak as a king.", "temperature 0.8, ", "seed 1", f"Saved in {folder}/a.json.",
                          f"cannot create {folder}/a.json: File exists", "/save needs the name", "starts anew"):
                self.assertIn(words, done.stderr)
            first = json.loads(pathlib.Path(folder, "a.json").read_text(encoding="utf-8"))
            self.assertEqual(first["model"], "demo")
            self.assertEqual([m["role"] for m in first["messages"]], ["system", "user", "assistant"])
            self.assertEqual(first["messages"][0]["content"], "Speak as a king.")
            answers = done.stdout.rstrip("\n")
            self.assertTrue(answers.startswith(first["messages"][2]["content"]))
            second = pathlib.Path(folder, "b.txt").read_text(encoding="utf-8")
            self.assertRegex(second, r"\Auser:\nAgain\?\n\nassistant:\n")

    def test_the_system_message_counts(self):
        args = ("run", "demo", "--temperature", "0", "--max-tokens", "16")
        want = self.run_oar("Who art thou?\n", *args, "--system", "Speak as a king.").stdout
        self.assertEqual(self.run_oar("/system Speak as a king.\nWho art thou?\n", *args).stdout, want)

    def test_params(self):
        args = ("run", "demo", "--max-tokens", "12", "--seed", "5")
        want = self.run_oar("Who art thou?\n", *args, "--temperature", "0", "--top-k", "3").stdout
        for line in ("temperature 0 top-k 3", "temperature=0 top_k=3", "--temperature 0 --top_k 3"):
            self.assertEqual(self.run_oar(f"/params {line}\nWho art thou?\n", *args).stdout, want, line)
        told = self.run_oar("/params temprature 1\n/params temperature\n/params temperature 500 top-k 1\n/params\n", *args).stderr
        for words in ("no option --temprature; did you mean --temperature?", "--temperature: 500 must be in 0..100", "top-k 0"):
            self.assertIn(words, told)
        self.assertEqual(told.count("temperature 0.8, "), 1)

    def test_a_long_conversation_drops_its_oldest_turns_and_says_so(self):
        args = ("run", "demo", "--temperature", "0", "--max-context", "160", "--max-tokens", "16")
        long = "What news of the king and of his men, " * 5
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_oar(f"{long} one?\n{long} two?\n{long} three?\n/save {folder}/all.json\n", *args)
            dropped = re.findall(r"outgrew the context of 160 tokens: its oldest (\d) turns? (?:is|are) left out", done.stderr)
            self.assertEqual(sum(map(int, dropped)), 2, done.stderr)
            saved = json.loads(pathlib.Path(folder, "all.json").read_text(encoding="utf-8"))["messages"]
            self.assertEqual(len(saved), 6, "nothing that was said is lost")
        # What the model sees is the last turn alone.
        alone = self.run_oar(f"{long} three?\n", *args)
        self.assertNotIn("outgrew", alone.stderr)
        self.assertTrue(done.stdout.endswith(alone.stdout))

    def test_generate_reads_what_is_piped_in(self):
        args = ("generate", "demo", "--max-tokens", "12")
        want = self.run_oar(None, *args, "--prompt", "HAMLET:\n").stdout
        self.assertEqual(self.run_oar("HAMLET:\n", *args).stdout, want)
        with tempfile.TemporaryFile("w+") as file:
            file.write("HAMLET:\n")
            file.seek(0)
            done = subprocess.run([OAR, *args], stdin=file, capture_output=True, text=True, timeout=TIMEOUT)
            self.assertEqual(done.stdout, want)
        # A prompt on the command line wins, and neither a terminal nor /dev/null is waited for.
        self.assertEqual(self.run_oar("OTHELLO:\n", *args, "--prompt", "HAMLET:\n").stdout, want)
        empty = self.run_oar(None, *args, "--prompt", "").stdout
        done = subprocess.run([OAR, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.stdout, empty)
        ours, theirs = pty.openpty()
        done = subprocess.run([OAR, *args], stdin=theirs, capture_output=True, text=True, timeout=TIMEOUT)
        os.close(ours), os.close(theirs)
        self.assertEqual(done.stdout, empty)

    def test_reasoning_is_apart_from_the_answer(self):
        args = ["run", "demo", "--seed", "1", "--max-tokens", "60", "--regex", "<think>so[a-c]{3}</think>be it"]
        apart = self.run_oar("Good morrow!\n", *args, "--reasoning-parser", "think")
        self.assertIn("be it", apart.stdout)
        self.assertNotIn("think", apart.stdout)
        self.assertRegex(apart.stderr, "so[a-c]{3}")
        self.assertRegex(self.run_oar("Good morrow!\n", *args).stdout, "<think>so[a-c]{3}</think>be it")


if __name__ == "__main__":
    unittest.main(verbosity=1)
