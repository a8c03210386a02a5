#!/usr/bin/env python3
"""The page at GET / in headless Chromium, as somebody uses it: numbers that move, a chat that streams and can be stopped, an
API key, a hostile model name; and its headers, without a browser. Environment: OAR_BIN, OAR_SOURCE_DIR; OAR_SCREENSHOT names
a file for a picture. Standard library and the Debian package chromium; the tests in the browser are skipped without it."""
import base64
import hashlib
import html.parser
import json
import os
import re
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from devtools import CHROMIUM, Browser  # noqa: E402

OAR = os.environ["OAR_BIN"]
DEMO = os.path.join(os.environ["OAR_SOURCE_DIR"], "configs/demo")
HOSTILE = "<img src=x onerror=document.title='caught'><script>document.title='caught'</script>\"'&amp;"


class Served:
    def __init__(self, *options):
        self.process = subprocess.Popen([OAR, "serve", DEMO, "--http", "127.0.0.1:0", "--grpc", "", "--threads", "2",
                                         "--memory", "512MiB", *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines = iter(self.process.stdout.readline, "")
        self.url = next(line.split()[1] for line in lines if line.startswith("http "))
        next(line for line in lines if line.startswith("ready"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=120)
        self.process.stdout.close()


class Page(unittest.TestCase):
    def test_headers_and_what_the_page_needs(self):
        with Served("--api-key", "secret") as s:
            with urllib.request.urlopen(s.url + "/") as answer:  # no key: the page holds nothing
                page, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
                self.assertTrue(answer.headers["Content-Type"].startswith("text/html"))
                self.assertEqual(answer.headers["X-Content-Type-Options"], "nosniff")
            rules = dict(r.strip().split(" ", 1) for r in policy.split(";"))
            self.assertEqual(rules["default-src"], "'none'")
            self.assertEqual(rules["connect-src"], "'self'")
            self.assertEqual(rules["frame-ancestors"], "'none'")
            for tag, rule in (("script", "script-src"), ("style", "style-src")):
                text = re.search(f"<{tag}>(.*?)</{tag}>", page, re.S)[1]
                digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
                self.assertEqual(rules[rule], f"'sha256-{digest}'")
            self.assertNotIn("unsafe", policy)
            found = []

            class Parser(html.parser.HTMLParser):
                def handle_starttag(self, tag, attributes):
                    for name, value in attributes:
                        found.append((tag, name, value))
            Parser().feed(page)
            for tag, name, value in found:
                self.assertFalse(name.startswith("on") or name == "style", (tag, name))
                if name in ("src", "href"):
                    self.assertTrue(value.startswith("data:image/svg+xml,"), value)
            self.assertNotIn("innerHTML", page)
            head = urllib.request.Request(s.url + "/", method="HEAD")
            with urllib.request.urlopen(head) as answer:
                self.assertEqual(int(answer.headers["Content-Length"]), len(page.encode()))
            with self.assertRaises(urllib.error.HTTPError) as e:
                urllib.request.urlopen(urllib.request.Request(s.url + "/", data=b"x", method="POST"))
            self.assertEqual(e.exception.code, 405)
            with self.assertRaises(urllib.error.HTTPError) as e:
                urllib.request.urlopen(s.url + "/metrics")
            self.assertEqual(e.exception.code, 401)


@unittest.skipIf(CHROMIUM is None, "skipped: chromium is not installed")
class InABrowser(unittest.TestCase):
    def setUp(self):
        self.browser = Browser()

    def tearDown(self):
        self.browser.close()

    def ask(self, question, tokens):
        self.browser.eval(f"document.getElementById('tokens').value = {tokens}; document.getElementById('temperature').value = 0; "
                          f"document.getElementById('question').value = {json.dumps(question)}; document.getElementById('send').click()")

    def last_note(self):
        return self.browser.eval("document.querySelector('#talk article:last-child small').textContent")

    def test_status_and_chat(self):
        b = self.browser
        with Served("--name", "demo") as s:
            b.open(s.url)
            b.wait("document.getElementById('health').textContent === 'ready'")
            b.wait("document.getElementById('model').value === 'demo'")
            self.assertEqual(b.eval("document.title"), "demo \u2013 Oar")
            self.assertRegex(b.eval("document.getElementById('version').textContent"), r"^\d+\.\d+\.\d+$")
            self.ask("Good morrow, friend!", 24)
            b.wait("/length|stop/.test(document.querySelector('#talk article:last-child small')?.textContent)")
            streamed = b.eval("document.querySelector('#talk article:last-child span').textContent")
            body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Good morrow, friend!"}], "temperature": 0,
                               "max_tokens": 24}).encode()
            with urllib.request.urlopen(urllib.request.Request(s.url + "/v1/chat/completions", body)) as answer:
                self.assertEqual(streamed, json.load(answer)["choices"][0]["message"]["content"])
            self.assertRegex(self.last_note(), r"first token after \d+ ms.* tokens")
            # The numbers move; Stop ends a long answer, in the server too.
            # (The default model is brief by nature: the request is made to go on behind the page's back.)
            b.eval("""{ const send = window.plainFetch = window.fetch; window.fetch = (url, o) => send(url, !o.body ? o :
                        { ...o, body: JSON.stringify({ ...JSON.parse(o.body), ignore_eos: true, temperature: 1 }) }); 0 }""")
            b.eval("window.number = name => parseFloat([...document.querySelectorAll('dt')].find(e => "
                   "e.textContent.startsWith(name)).nextSibling.textContent.replace(',', '')) || 0; 0")
            # A neighbour that asks without end, for the numbers are fetched only now and then.
            b.eval("""window.asking = true; (async () => { while (asking) await (await plainFetch('v1/completions', { method: 'POST',
                        headers: { 'content-type': 'application/json' }, body: JSON.stringify({ model: 'demo', prompt: 'ROMEO:',
                        max_tokens: 1500, ignore_eos: true, temperature: 1 }) })).text(); })(); 0""")
            b.wait("number('Running') >= 1 && number('Tokens written') > 1")
            b.eval("window.asking = false; 0")
            # Stop is pressed from within the page, for this process may be late.
            b.eval("""new MutationObserver((_, o) => {
                        if (document.querySelector('#talk article:last-child span')?.textContent.length > 100) {
                          o.disconnect(); document.getElementById('stop').click(); }
                      }).observe(document.getElementById('talk'), { subtree: true, childList: true, characterData: true }); 0""")
            self.ask("Tell me a long story.", 1500)
            b.wait("document.querySelector('#talk article:last-child small').textContent.endsWith('stopped')")
            b.wait("number('Running') === 0")
            if os.environ.get("OAR_SCREENSHOT"):
                b.screenshot(os.environ["OAR_SCREENSHOT"])
            self.assertTrue(b.eval("document.getElementById('stop').hidden"))
            self.assertEqual(b.eval("document.querySelectorAll('#talk article').length"), 4)
            # What the server refuses is said in its words.
            b.eval("window.fetch = window.plainFetch; document.getElementById('model').options[0].value = 'absent'; 0")
            self.ask("And now?", 8)
            b.wait("document.querySelector('#talk .error') !== null")
            self.assertIn("absent", b.eval("document.querySelector('#talk .error').textContent"))
            b.eval("document.getElementById('clear').click()")
            self.assertEqual(b.eval("document.querySelectorAll('#talk article').length"), 0)
            self.assertEqual([u for u in b.requests if not u.startswith((s.url, "about:", "data:"))], [])
            self.assertEqual([c for c in b.complaints if "404" not in c], [])
        b.wait("document.getElementById('health').dataset.state === 'unreachable'")

    def test_a_key_is_asked_for_and_a_hostile_name_is_text(self):
        b = self.browser
        with Served("--name", HOSTILE, "--api-key", "secret") as s:
            b.open(s.url)
            b.wait("!document.getElementById('login').hidden")
            self.assertEqual(b.eval("document.getElementById('model').options.length"), 0)
            b.eval("document.getElementById('key').value = 'wrong'; document.querySelector('#login button').click()")
            b.wait("document.getElementById('health').textContent === 'ready, an API key is needed'")
            b.eval("document.getElementById('key').value = 'secret'; document.querySelector('#login button').click()")
            b.wait("document.getElementById('login').hidden")
            b.wait("document.getElementById('model').options.length === 1")
            self.assertEqual(b.eval("document.getElementById('model').options[0].textContent"), HOSTILE)
            self.ask("<b>Good</b> morrow <script>document.title='caught'</script>", 8)
            b.wait("/length|stop/.test(document.querySelector('#talk article:last-child small')?.textContent)")
            self.assertEqual(b.eval("document.querySelectorAll('#talk b, #talk script, img').length"), 0)
            self.assertEqual(b.eval("document.title"), HOSTILE + " \u2013 Oar")
            # The policy holds: neither foreign script nor foreign address, whoever asks for them.
            self.assertFalse(b.eval("new Promise(r => { const s = document.createElement('script'); s.textContent = 'window.caught = 1'; "
                                    "document.body.append(s); setTimeout(() => r('caught' in window), 50); })"
                                    ".catch(() => false)"))
            self.assertEqual(b.eval("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')"), "refused")
            self.assertTrue(any("Content Security Policy" in c for c in b.complaints), b.complaints)
            # The key is this tab's: it is there after a reload.
            b.open(s.url)
            b.wait("document.getElementById('model').options.length === 1")


if __name__ == "__main__":
    unittest.main()
