#!/usr/bin/env python3
"""The page at GET / in headless Chromium, as somebody uses it, with the mouse and keys: a chat that streams, can be stopped, edited
and asked again, its history, forms of answers, tools, models, an API key, hostile text; and its headers, without a browser.
Environment: OAR_BIN, OAR_SOURCE_DIR; OAR_SCREENSHOT names a folder for pictures. Standard library and the Debian package
chromium; the tests in the browser are skipped without it."""
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
            self.assertLessEqual(len(page.encode()), 150_000)
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

    def open(self, served):
        self.browser.open(served.url)
        self.browser.wait("document.getElementById('health').textContent === 'ready'")

    def picture(self, name):
        if os.environ.get("OAR_SCREENSHOT"):
            self.browser.screenshot(os.path.join(os.environ["OAR_SCREENSHOT"], name + ".png"))

    def set(self, **fields):
        """Fills fields of the settings, as typing does."""
        for name, value in fields.items():
            self.browser.eval(f"document.getElementById('{name}').value = {json.dumps(str(value))}; "
                              f"document.getElementById('{name}').dispatchEvent(new Event('input', {{ bubbles: true }}))")

    def ask(self, question, tokens):
        self.set(max_tokens=tokens, temperature=0)
        self.browser.click("#question")
        self.browser.type(question)
        self.browser.click("#send")

    def answered(self):
        self.browser.wait("document.getElementById('stop-answer').hidden && "
                          "/length|stop|tool_calls/.test(document.querySelector('#talk article:last-of-type small')?.textContent)")

    def texts(self):
        return self.browser.eval("[...document.querySelectorAll('#talk article')].map(e => e.message.content)")

    def completion(self, served, **body):
        body = json.dumps({"model": "demo", "temperature": 0, **body}).encode()
        with urllib.request.urlopen(urllib.request.Request(served.url + "/v1/chat/completions", body)) as answer:
            return json.load(answer)["choices"][0]["message"]

    def quiet(self, served, *expected):
        """Nothing went elsewhere, and the console has no error but those that were provoked."""
        b = self.browser
        self.assertEqual([u for u in b.requests if not u.startswith((served.url, "about:", "data:", "blob:"))], [])
        self.assertEqual([c for c in b.complaints if not any(e in c for e in expected)], [])

    def test_status_and_chat(self):
        b = self.browser
        with Served("--name", "demo") as s:
            self.open(s)
            b.wait("document.getElementById('model').value === 'demo'")
            self.assertEqual(b.eval("document.title"), "demo \u2013 Oar")
            self.assertRegex(b.eval("document.getElementById('version').textContent"), r"^\d+\.\d+\.\d+$")
            self.ask("Good morrow, friend!", 24)
            self.answered()
            said = self.completion(s, messages=[{"role": "user", "content": "Good morrow, friend!"}], max_tokens=24)["content"]
            self.assertEqual(self.texts(), ["Good morrow, friend!", said])
            self.assertEqual(b.eval("document.querySelector('#talk .assistant .text').textContent").split(), said.split())
            self.assertRegex(b.eval("document.querySelector('#talk .assistant small').textContent"), r"first token after \d+ ms.* tokens")
            self.picture("page-chat")
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
                        if (document.querySelector('#talk article:last-of-type .text')?.textContent.length > 100) {
                          o.disconnect(); document.getElementById('stop-answer').click(); }
                      }).observe(document.getElementById('talk'), { subtree: true, childList: true, characterData: true }); 0""")
            self.ask("Tell me a long story.", 1500)
            b.wait("document.querySelector('#talk article:last-of-type small')?.textContent.endsWith('stopped')")
            b.wait("number('Running') === 0")
            self.assertEqual(len(self.texts()), 4)
            # What the server refuses is said in its words, and is no part of what is asked next.
            b.eval("window.fetch = window.plainFetch; document.getElementById('model').selectedOptions[0].value = 'absent'; 0")
            self.ask("And now?", 8)
            b.wait("document.querySelector('#talk .error') !== null")
            self.assertIn("absent", b.eval("document.querySelector('#talk .error').textContent"))
            b.eval("document.getElementById('model').selectedOptions[0].value = 'demo'; 0")
            b.eval("{ const send = window.fetch; window.fetch = (url, o) => (o?.body && (window.sent = JSON.parse(o.body)), send(url, o)); 0 }")
            self.ask("Once more.", 8)
            self.answered()
            self.assertEqual([m["content"] for m in b.eval("sent.messages") if m["role"] == "user"],
                             ["Good morrow, friend!", "Tell me a long story.", "Once more."])
            b.click("#new")
            self.assertEqual(self.texts(), [])
            self.quiet(s, "404")
        b.wait("document.getElementById('health').dataset.state === 'unreachable'")

    def test_versions_and_history(self):
        b = self.browser
        with Served("--name", "demo") as s:
            self.open(s)
            self.ask("Good morrow!", 12)
            self.answered()
            first = self.texts()
            # Asked again, the answer has two versions; edited, the question has.
            b.click("#talk .assistant [aria-label='Answer again']")
            b.wait("/2\\/2/.test(document.querySelector('#talk .assistant footer')?.textContent)")
            self.answered()
            b.click("#talk .user [aria-label=Edit]")
            b.eval("document.querySelector('#talk .edit textarea').value = ''")
            b.click("#talk .edit textarea")
            b.type("Good night!")
            b.press("Enter")
            b.wait("/2\\/2/.test(document.querySelector('#talk .user footer')?.textContent)")
            self.answered()
            edited = self.texts()
            self.assertEqual(edited[0], "Good night!")
            b.click("#talk .user [aria-label='Version before']")
            self.assertEqual(self.texts(), first)
            b.click("#talk .user [aria-label='Next version']")
            self.assertEqual(self.texts(), edited)
            b.wait("(async () => (await (await store).all())[0].leaf === current.record.leaf)()")  # it is on disk
            # It is there after a reload, under the first question's words; another begins empty.
            self.open(s)
            b.wait("document.querySelectorAll('#history li button').length > 0")
            self.assertEqual(self.texts(), [])
            self.assertEqual(b.eval("document.querySelector('#history li:not(.day) button').textContent"), "Good morrow!")
            b.click("#history li:not(.day) button")
            b.wait("document.querySelectorAll('#talk article').length === 2")
            self.assertEqual(self.texts(), edited)
            # Out and in again, and deleted.
            exported = b.eval("(async () => { let text; const keep = URL.createObjectURL; URL.createObjectURL = b => (text = b.text(), keep(b)); "
                              "await exportHistory(); URL.createObjectURL = keep; return text; })()")
            self.assertEqual(len(json.loads(exported)["conversations"]), 1)
            b.eval("window.confirm = () => true; 0")
            b.click("#history li:not(.day) [aria-label=Delete]")
            b.wait("document.querySelectorAll('#history li').length === 0 && document.querySelectorAll('#talk article').length === 0")
            b.eval(f"importHistory(new File([{json.dumps(exported)}], 'x.json'))")
            b.click("#history li:not(.day) button")
            b.wait("document.querySelectorAll('#talk article').length === 2")
            b.eval("importHistory(new File(['{}'], 'wrong.json'))")
            b.wait("document.getElementById('notice').textContent.includes('wrong.json')")
            self.quiet(s)

    def test_markdown_is_drawn_and_markup_is_text(self):
        b = self.browser
        with Served() as s:
            self.open(s)

            def drawn(text):
                return b.eval(f"{{ const e = document.createElement('div'); new MarkdownView(e).set({json.dumps(text)}); e.innerHTML }}")
            for text, expected in (
                    ("# A\nB", "<h2>A</h2><p>B</p>"),
                    ("a **b** _c_ ~~d~~ `e*f*`", "<p>a <strong>b</strong> <em>c</em> <s>d</s> <code>e*f*</code></p>"),
                    ("snake_case_name 2*3*4 **open", "<p>snake_case_name 2<em>3</em>4 **open</p>"),
                    ("- a\n- b\n  - c\n\nd", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><p>d</p>"),
                    ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
                    ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
                    ("a\n\n---\nb", "<p>a</p><hr><p>b</p>"),
                    ("|a|b|\n|-|-:|\n|1|2\\|3|", '<div class="table"><table><tr><th>a</th><th class="right">b</th></tr>'
                     '<tr><td>1</td><td class="right">2|3</td></tr></table></div>'),
                    ("<b>x</b> &amp;", "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp;</p>"),
                    ("[x](javascript:alert(1))", '<p><span title="javascript:alert(1)">x</span></p>'),
                    ("![x](http://127.0.0.1:9/a.png)", '<p><a href="http://127.0.0.1:9/a.png" target="_blank" rel="noopener noreferrer">x</a></p>'),
                    ("see https://a.b/c_(d).", '<p>see <a href="https://a.b/c_(d" target="_blank" rel="noopener noreferrer">https://a.b/c_(d</a>).</p>')):
                with self.subTest(text):
                    self.assertEqual(drawn(text), expected)
            code = drawn("1. a:\n```py\nx = 'y' # <z>\n```\n2. b")
            self.assertIn("<figcaption>py", code)
            self.assertIn('x = <i class="string">\'y\'</i> <i class="comment"># &lt;z&gt;</i>', code)
            # Whatever is cut off anywhere while it streams, and text without end: no exception, in time that grows with its length.
            text = "# A\n\n- **b `c` [d](e)\n  1. ***f*** ~~g\n\n> h | i\n|-|-|\n```js\nk\n```\n" + "*_`[<(" * 20
            b.eval(f"for (let k = 0, t = {json.dumps(text)}, e = document.createElement('div'), v = new MarkdownView(e); k <= t.length; ++k) v.set(t.slice(0, k))")
            for piece in ("*a ", "`", "[", "> ", "- a\n", "  - a\n", "|a|\n|-|\n", "_a_ **b** ", "<http://", "![("):
                b.eval(f"new MarkdownView(document.createElement('div')).set({json.dumps(piece)}.repeat(20000))")
            self.quiet(s)

    def test_forms_of_answers_and_tools(self):
        b = self.browser
        tools = [{"type": "function", "function": {"name": "roll", "parameters": {
            "type": "object", "properties": {"sides": {"enum": [6, 20]}}, "required": ["sides"], "additionalProperties": False}}}]
        once = {"parallel_tool_calls": False}
        with Served("--name", "demo", "--tool-parser", "hermes") as s:
            self.open(s)
            b.click("#for-form summary")
            self.set(form="json_schema", shape='{"enum": ["yes", "no"]')
            self.assertNotEqual(b.eval("document.getElementById('shape-wrong').textContent"), "")
            self.set(shape='{"enum": ["yes", "no"]}')
            self.assertEqual(b.eval("document.getElementById('shape-wrong').textContent"), "")
            self.picture("page-schema")
            self.ask("Well?", 30)
            self.answered()
            self.assertIn(json.loads(self.texts()[1]), ("yes", "no"))
            self.set(form="regex", shape="[0-9]{4}")
            self.ask("When?", 30)
            self.answered()
            self.assertRegex(self.texts()[3], r"^\d{4}$")
            self.set(form="text")
            b.click("#new")
            b.click("#for-tools summary")
            self.set(tools=json.dumps(tools), tool_choice="required")
            b.eval(f"{{ const send = window.fetch; window.fetch = (url, o) => send(url, !o?.body ? o : "
                   f"{{ ...o, body: JSON.stringify({{ ...(window.sent = JSON.parse(o.body)), ...{json.dumps(once)} }}) }}); 0 }}")
            self.ask("Roll a die.", 200)
            b.wait("document.querySelector('#results textarea') !== null")
            self.assertIn("calls roll", b.eval("document.querySelector('#talk .call').textContent"))
            self.picture("page-tools")
            self.set(tool_choice="none")
            b.click("#results textarea")
            b.type("it shows 4")
            b.click("#results button")
            # The default model's template knows no tools, and says so; the request is what counts here.
            b.wait("document.querySelectorAll('#talk article').length === 4 && document.querySelector('#talk .error') !== null")
            self.assertIn("tool", b.eval("document.querySelector('#talk .error').textContent"))
            roles = [(m["role"], m.get("content")) for m in b.eval("sent.messages")]
            self.assertEqual([r for r, _ in roles], ["user", "assistant", "tool"])
            self.assertEqual(roles[2][1], "it shows 4")
            self.assertEqual(b.eval("sent.messages[1].tool_calls[0].id === sent.messages[2].tool_call_id"), True)
            self.set(tools="{")
            self.ask("Again", 8)
            b.wait("document.getElementById('notice').textContent.startsWith('tools')")
            self.quiet(s, "400")

    def test_models_are_loaded_and_unloaded(self):
        b = self.browser
        with Served("--name", "demo", "--model-control", "explicit", "--max-loras", "1") as s:
            self.open(s)
            b.wait("document.getElementById('model').value === 'demo'")
            b.click("#open-models")
            b.wait("document.querySelector('#models-table .ready') !== null")
            self.picture("page-models")
            b.click("#models-table button")
            b.wait("document.querySelector('#models-table button')?.textContent === 'Load'")
            b.wait("document.getElementById('model').options.length === 0")
            b.click("#models-table button")
            b.wait("document.getElementById('model').value === 'demo'")
            b.wait("document.getElementById('adapter-base').value === 'demo'")
            for id, value in (("adapter-name", "x"), ("adapter-path", "/nowhere")):
                b.click("#" + id)
                b.type(value)
            b.click("#adapter button")
            b.wait("document.getElementById('models-note').className === 'error'")
            self.assertIn("/nowhere", b.eval("document.getElementById('models-note').textContent"))
            b.press("Escape")
            b.wait("!document.getElementById('models').open")
            self.quiet(s, "400", "404")
        with Served("--name", "demo") as s:  # where clients may not, they are told
            self.open(s)
            b.click("#open-models")
            b.click("#models-table button")
            b.wait("/--model-control/.test(document.getElementById('models-note').textContent)")

    def test_keys_colors_and_a_phone(self):
        b = self.browser
        with Served("--name", "demo") as s:
            self.open(s)
            self.ask("Good morrow!", 8)
            self.answered()
            b.eval("document.activeElement.blur()")
            b.press("?", 8)
            b.wait("document.getElementById('help').open")
            b.press("Escape")
            b.wait("!document.getElementById('help').open")
            b.press("/")
            self.assertEqual(b.eval("document.activeElement.id"), "question")
            b.press("r", 1)
            b.wait("/2\\/2/.test(document.querySelector('#talk .assistant footer')?.textContent)")
            self.answered()
            b.press("e", 1)
            b.wait("document.activeElement.closest('.edit') !== null")
            b.press("Escape")
            b.press("n", 1)
            b.wait("document.querySelectorAll('#talk article').length === 0")
            page = "getComputedStyle(document.body).backgroundColor"
            b.click("#theme")
            light = b.eval(page)
            b.click("#theme")
            self.assertNotEqual(b.eval(page), light)
            self.picture("page-dark")
            self.open(s)  # colors and settings are kept
            self.assertNotEqual(b.eval(page), light)
            self.assertEqual(b.eval("document.getElementById('max_tokens').value"), "8")
            b.call("Emulation.setDeviceMetricsOverride", width=390, height=780, deviceScaleFactor=1, mobile=True)
            b.wait("!document.querySelector('nav').checkVisibility()")
            self.assertLessEqual(b.eval("document.documentElement.scrollWidth"), 390)
            b.click("#open-left")
            b.wait("document.querySelector('nav').checkVisibility()")
            b.click("#history li:not(.day) button")
            b.wait("!document.querySelector('nav').checkVisibility() && document.querySelectorAll('#talk article').length === 2")
            self.picture("page-phone")
            b.click("#open-right")
            b.wait("document.querySelector('aside').checkVisibility()")
            b.press("Escape")
            b.wait("!document.querySelector('aside').checkVisibility()")
            self.quiet(s)

    def test_ten_thousand_messages(self):
        b = self.browser
        with Served("--name", "demo") as s:
            self.open(s)
            b.eval("""(async () => { const c = Conversation.fresh(), all = [];
                for (let k = 0; k < 10000; ++k) all.push(c.add(c.record.leaf, { role: k % 2 ? 'assistant' : 'user', content: '**Message** ' + k,
                                                                              reasoning: '', calls: [] }));
                await keep(c, all); })()""")
            b.click("#history li:not(.day) button")
            b.wait("document.querySelectorAll('#talk article').length === 10000", 60)
            # Only what is near is filled, at the end and wherever one scrolls to.
            b.wait("document.querySelector('#talk article:last-of-type strong')?.checkVisibility()")
            self.assertLess(b.eval("document.querySelectorAll('#talk .here').length"), 200)
            first = b.eval("""(async () => { document.getElementById('talk').scrollTop = 0;
                await new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)));
                return document.querySelector('#talk article .text')?.textContent; })()""")
            self.assertEqual(first, "**Message** 0")  # a jump leaves no frame with empty boxes
            self.assertLess(b.eval("document.querySelectorAll('#talk .here').length"), 400)
            self.ask("One more", 8)  # more than a server takes at once, which is said
            b.wait("/10001 elements/.test(document.querySelector('#talk article:last-of-type .error')?.textContent)")
            self.assertEqual(b.eval("document.querySelectorAll('#talk article').length"), 10002)
            self.quiet(s, "400")

    def test_a_key_is_asked_for_and_a_hostile_name_is_text(self):
        b = self.browser
        with Served("--name", HOSTILE, "--api-key", "secret") as s:
            b.open(s.url)
            b.wait("!document.getElementById('login').hidden")
            self.assertEqual(b.eval("document.getElementById('model').options.length"), 0)
            b.click("#key")
            b.type("wrong")
            b.click("#login button")
            b.wait("document.getElementById('health').textContent === 'ready, an API key is needed'")
            b.eval("document.getElementById('key').value = ''")
            b.click("#key")
            b.type("secret")
            b.click("#login button")
            b.wait("document.getElementById('login').hidden")
            b.wait("document.getElementById('model').options.length === 1")
            self.assertEqual(b.eval("document.getElementById('model').options[0].textContent"), HOSTILE)
            self.ask("<b>Good</b> morrow <script>document.title='caught'</script>", 8)
            self.answered()
            self.assertEqual(b.eval("document.querySelectorAll('#talk b, #talk script, #history b, img').length"), 0)
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
