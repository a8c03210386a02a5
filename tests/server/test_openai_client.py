#!/usr/bin/env python3
"""The official `openai` package against a running server.

    OAR_HTTP=http://127.0.0.1:8000 [OAR_API_KEY=...] python tests/server/test_openai_client.py

Needs any language model, the first that GET /v1/models lists; no assertion depends on its weights. What greedy decoding
says first is the reference for everything else (streaming, stop strings, seeds, log-probabilities).
"""
import asyncio
import json
import math
import os
import shutil
import subprocess
import time
import unittest
import urllib.error
import urllib.request

import openai

BASE = os.environ.get("OAR_HTTP", "http://127.0.0.1:8000").rstrip("/")
KEY = os.environ.get("OAR_API_KEY", "none")
TIMEOUT = float(os.environ.get("OAR_TEST_TIMEOUT", "60"))

MESSAGES = [{"role": "system", "content": "Tell short stories."},
            {"role": "user", "content": "Once upon a time, there was a little girl named Lily."}]
PROMPT = "Once upon a time, there was"
ERROR_KEYS = {"message", "type", "param", "code"}


def http(path, body=None, method=None, headers=None, raw=None):
    """(status, headers, text) of one request; `body` is sent as JSON, `raw` as it is."""
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(BASE + path, data=data, method=method or ("GET" if data is None else "POST"))
    request.add_header("Content-Type", "application/json")
    if KEY != "none":
        request.add_header("Authorization", "Bearer " + KEY)
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.headers, e.read().decode()


class OpenAITest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = openai.OpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT)
        cls.model = cls.client.models.list().data[0].id

    def chat(self, **options):
        options = {"model": self.model, "messages": MESSAGES, "temperature": 0, "max_tokens": 12, **options}
        return self.client.chat.completions.create(**options)

    def complete(self, **options):
        options = {"model": self.model, "prompt": PROMPT, "temperature": 0, "max_tokens": 12, **options}
        return self.client.completions.create(**options)

    def assert_error_object(self, status, text, expected_status=None, param=None):
        self.assertGreaterEqual(status, 400, text)
        if expected_status is not None:
            self.assertEqual(status, expected_status, text)
        body = json.loads(text)
        self.assertEqual(set(body), {"error"}, text)
        self.assertEqual(set(body["error"]), ERROR_KEYS, text)
        self.assertIsInstance(body["error"]["message"], str)
        self.assertTrue(body["error"]["message"], text)
        self.assertIsInstance(body["error"]["type"], str)
        if param is not None:
            self.assertEqual(body["error"]["param"], param, text)
        return body["error"]


class Models(OpenAITest):
    def test_list(self):
        models = self.client.models.list()
        self.assertEqual(models.object, "list")
        self.assertGreaterEqual(len(models.data), 1)
        for m in models.data:
            self.assertEqual(m.object, "model")
            self.assertIsInstance(m.created, int)
            self.assertIsInstance(m.owned_by, str)

    def test_retrieve(self):
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)

    def test_retrieve_unknown(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("no-such-model")
        self.assertEqual(set(caught.exception.body), ERROR_KEYS)


class Chat(OpenAITest):
    def test_answer(self):
        before = int(time.time())
        r = self.chat()
        self.assertEqual(r.object, "chat.completion")
        self.assertTrue(r.id.startswith("chatcmpl-"), r.id)
        self.assertEqual(r.model, self.model)
        self.assertLessEqual(abs(r.created - before), TIMEOUT + 5)
        self.assertEqual(len(r.choices), 1)
        choice = r.choices[0]
        self.assertEqual(choice.index, 0)
        self.assertEqual(choice.message.role, "assistant")
        self.assertIsInstance(choice.message.content, str)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        self.assertIsNone(choice.logprobs)
        self.assertGreater(r.usage.prompt_tokens, 0)
        self.assertEqual(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens)
        self.assertLessEqual(r.usage.completion_tokens, 12)
        if choice.finish_reason == "length":
            self.assertEqual(r.usage.completion_tokens, 12)

    def test_greedy_repeats_itself(self):
        self.assertEqual(self.chat().choices[0].message.content, self.chat().choices[0].message.content)

    def test_ids_differ(self):
        self.assertNotEqual(self.chat(max_tokens=1).id, self.chat(max_tokens=1).id)

    def test_max_completion_tokens(self):
        r = self.chat(max_tokens=openai.omit, max_completion_tokens=3)
        self.assertLessEqual(r.usage.completion_tokens, 3)

    def test_content_parts(self):
        parts = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in MESSAGES]
        self.assertEqual(self.chat(messages=parts).choices[0].message.content, self.chat().choices[0].message.content)

    def test_several_choices(self):
        r = self.chat(n=3, temperature=1.0, seed=7)
        self.assertEqual([c.index for c in r.choices], [0, 1, 2])
        self.assertLessEqual(r.usage.completion_tokens, 36)

    def test_seed_decides(self):
        options = {"temperature": 1.0, "seed": 1234, "max_tokens": 24}
        self.assertEqual(self.chat(**options).choices[0].message.content, self.chat(**options).choices[0].message.content)

    def test_harmless_and_neutral_fields(self):
        r = self.chat(user="somebody", metadata={"a": "b"}, store=False, top_p=1.0, presence_penalty=0, frequency_penalty=0,
                      service_tier="auto", parallel_tool_calls=True, modalities=["text"], prompt_cache_key="k",
                      extra_body={"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "cache_prompt": True, "mirostat": 0,
                                  "typical_p": 1.0, "dry_multiplier": 0.0, "length_penalty": 1.0, "use_beam_search": False,
                                  "guided_json": None})
        self.assertEqual(r.choices[0].message.content, self.chat().choices[0].message.content)

    def test_what_is_not_honoured_is_refused_by_name(self):
        for name, value in (("mirostat", 2), ("return_hidden_states", True), ("some_new_field", {"x": [1]}), ("temprature", 0.5)):
            with self.subTest(field=name):
                with self.assertRaises(openai.BadRequestError) as caught:
                    self.chat(extra_body={name: value})
                self.assertEqual(caught.exception.body["param"], name)

    def test_constraints(self):
        schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}}, "required": ["age"],
                  "additionalProperties": False}
        asked = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
        answer = json.loads(self.chat(response_format=asked, max_tokens=200).choices[0].message.content)
        self.assertEqual(list(answer), ["age"])
        self.assertTrue(1 <= answer["age"] <= 99)
        text = self.chat(extra_body={"regex": "a[bc]{4}"}, max_tokens=20).choices[0].message.content
        self.assertRegex(text, "^a[bc]{4}$")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"propertyNames": {}}}})
        self.assertIn("propertyNames", str(caught.exception))

    def test_unicode_prompt(self):
        r = self.chat(messages=[{"role": "user", "content": "Grüße, 世界 🙂\u0000\u200b\n\"quoted\" \\ <b>&amp;"}])
        self.assertIsInstance(r.choices[0].message.content, str)

    def test_async_client(self):
        async def many():
            async with openai.AsyncOpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT) as client:
                calls = [client.chat.completions.create(model=self.model, messages=MESSAGES, temperature=0, max_tokens=6)
                         for _ in range(12)]
                return await asyncio.gather(*calls)

        for r in asyncio.run(many()):
            self.assertIn(r.choices[0].finish_reason, ("stop", "length"))


class Tools(OpenAITest):
    TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "strict": True,
              "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
                             "required": ["city"], "additionalProperties": False}}},
             {"type": "function", "function": {"name": "now"}}]

    def setUp(self):
        try:
            self.chat(tools=self.TOOLS, max_tokens=1)
        except openai.BadRequestError as e:
            self.assertEqual(e.body["param"], "tools")
            self.skipTest("the server does not know how its model writes calls; start it with --tool-parser hermes")

    def call(self, choice, **options):
        r = self.chat(tools=self.TOOLS, tool_choice=choice, parallel_tool_calls=False, max_tokens=150, **options)
        named = isinstance(choice, dict) and choice["type"] == "function"
        self.assertEqual(r.choices[0].finish_reason, "stop" if named else "tool_calls")
        self.assertIsNone(r.choices[0].message.content)
        self.assertEqual(len(r.choices[0].message.tool_calls), 1)
        return r.choices[0].message

    def test_demanded(self):
        self.assertIn(self.call("required").tool_calls[0].function.name, ("get_weather", "now"))
        weather = {"type": "function", "function": {"name": "get_weather"}}
        for choice in (weather, {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [weather]}}):
            function = self.call(choice).tool_calls[0].function
            self.assertEqual(function.name, "get_weather")
            self.assertIn(json.loads(function.arguments), ({"city": "Oslo"}, {"city": "Rome"}))

    def test_streamed(self):
        weather = {"type": "function", "function": {"name": "get_weather"}}
        whole = self.call(weather).tool_calls[0]
        name, arguments, ids, finish = "", "", set(), None
        for chunk in self.chat(tools=self.TOOLS, tool_choice=weather, max_tokens=150, stream=True):
            for piece in chunk.choices[0].delta.tool_calls or []:
                self.assertEqual(piece.index, 0)
                name += piece.function.name or ""
                arguments += piece.function.arguments or ""
                ids |= {piece.id} - {None}
            finish = chunk.choices[0].finish_reason or finish
        self.assertEqual((name, arguments, len(ids), finish), (whole.function.name, whole.function.arguments, 1, "stop"))

    def test_the_client_puts_streams_together(self):
        with self.client.chat.completions.stream(model=self.model, messages=MESSAGES, tools=self.TOOLS[:1], tool_choice="required",
                                                 parallel_tool_calls=False, temperature=0, max_tokens=150) as stream:
            done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        self.assertEqual([e.name for e in done], ["get_weather"])
        self.assertIn(done[0].parsed_arguments, ({"city": "Oslo"}, {"city": "Rome"}))

    def test_a_turn_with_its_results(self):
        message = self.call("required")
        answered = [*MESSAGES, message.model_dump(exclude_none=True),
                    {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "cold"}]
        try:
            r = self.chat(messages=answered, tools=self.TOOLS)
            self.assertIn(r.choices[0].finish_reason, ("stop", "length", "tool_calls"))
        except openai.BadRequestError as e:  # templates without tools say so
            self.assertIn("unknown role tool", e.body["message"])

    def test_none_and_refusals(self):
        none = self.chat(tools=self.TOOLS, tool_choice="none").choices[0].message
        self.assertEqual(none.content, self.chat().choices[0].message.content)
        for options, param in (({"tool_choice": "required"}, "tool_choice"),
                               ({"tools": self.TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
                               ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type")):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**options)
            self.assertEqual(caught.exception.body["param"], param)


class Responses(OpenAITest):
    def respond(self, **options):
        options = {"model": self.model, "input": "Once upon a time", "temperature": 0, "max_output_tokens": 12, **options}
        return self.client.responses.create(**options)

    def test_answer_and_stream(self):
        r = self.respond()
        chat = self.chat(messages=[{"role": "user", "content": "Once upon a time"}])
        self.assertEqual(r.output_text, chat.choices[0].message.content)
        self.assertEqual(r.usage.input_tokens, chat.usage.prompt_tokens)
        with self.client.responses.stream(model=self.model, input="Once upon a time", temperature=0, max_output_tokens=12) as stream:
            events = list(stream)
        self.assertEqual([e.type for e in events[:2]], ["response.created", "response.in_progress"])
        self.assertEqual((events[-1].type, events[-1].response.status), ("response." + r.status, r.status))
        self.assertEqual(events[-1].response.output_text, r.output_text)
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"), r.output_text)

    def test_goes_on(self):
        first = self.respond(instructions="Speak.")
        second = self.respond(input="And then?", previous_response_id=first.id)
        whole = self.chat(messages=[{"role": "user", "content": "Once upon a time"}, {"role": "assistant", "content": first.output_text},
                                    {"role": "user", "content": "And then?"}])
        self.assertEqual((second.output_text, second.usage.input_tokens), (whole.choices[0].message.content, whole.usage.prompt_tokens))
        with self.assertRaises(openai.NotFoundError) as caught:
            self.respond(previous_response_id="resp_none")
        self.assertEqual(caught.exception.body["param"], "previous_response_id")

    def test_format(self):
        schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}}, "required": ["age"],
                  "additionalProperties": False}
        asked = {"format": {"type": "json_schema", "name": "person", "schema": schema, "strict": True}}
        self.assertEqual(list(json.loads(self.respond(text=asked, max_output_tokens=200).output_text)), ["age"])

    def test_logprobs(self):
        asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        chat = self.chat(messages=[{"role": "user", "content": "Once upon a time"}], logprobs=True, top_logprobs=2)
        expected = [(t.token, len(t.top_logprobs)) for t in chat.choices[0].logprobs.content]
        whole = self.respond(**asked).output[0].content[0]
        self.assertEqual([(t.token, len(t.top_logprobs)) for t in whole.logprobs], expected)
        with self.client.responses.stream(model=self.model, input="Once upon a time", temperature=0, max_output_tokens=12, **asked) as stream:
            events = list(stream)
        deltas = [e for e in events if e.type == "response.output_text.delta"]
        self.assertEqual([t.token for e in deltas for t in e.logprobs], [t for t, _ in expected])
        self.assertEqual([t.token for t in events[-1].response.output[0].content[0].logprobs], [t for t, _ in expected])
        self.assertEqual(self.respond().output[0].content[0].logprobs, [])

    def test_raw_messages(self):
        r = self.respond(extra_body={"enable_response_messages": True})
        given, made = r.model_extra["input_messages"][0], r.model_extra["output_messages"][0]
        self.assertIn("Once upon a time", given["message"])
        self.assertEqual(len(given["tokens"]), r.usage.input_tokens)
        self.assertEqual(len(made["tokens"]), r.usage.output_tokens)
        self.assertIn(r.output_text.strip(), made["message"])
        self.assertNotIn("input_messages", self.respond().model_extra)

    def test_refusals(self):
        for options, param in (({"background": True}, "background"), ({"truncation": "auto"}, "truncation"),
                               ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"max_output_tokens": 10**6}, "max_output_tokens")):
            with self.subTest(field=param), self.assertRaises(openai.BadRequestError) as caught:
                self.respond(**options)
            self.assertEqual(caught.exception.body["param"], param)


class Stored(OpenAITest):
    def test_chats(self):
        made = self.chat(store=True, metadata={"who": "tests"}, max_tokens=4)
        chats = self.client.chat.completions
        self.assertIn(made.id, [c.id for c in chats.list(model=self.model)])
        kept = chats.retrieve(made.id)
        self.assertEqual(kept.metadata, {"who": "tests"})
        self.assertEqual(kept.choices[0].message.content, made.choices[0].message.content)
        self.assertTrue(chats.delete(made.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            chats.retrieve(made.id)

    def test_conversations(self):
        talk = self.client.conversations.create(metadata={"who": "tests"})
        options = {"model": self.model, "temperature": 0, "max_output_tokens": 8, "conversation": talk.id}
        first = self.client.responses.create(input="Once upon a time", **options)
        second = self.client.responses.create(input="And then?", **options)
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens)
        items = list(self.client.conversations.items.list(talk.id, order="asc"))
        self.assertEqual([i.role for i in items], ["user", "assistant"] * 2)
        self.assertTrue(self.client.conversations.delete(talk.id).deleted)

    def test_a_response_streams_again(self):
        made = self.client.responses.create(model=self.model, input="Once upon a time", temperature=0, max_output_tokens=8)
        events = list(self.client.responses.retrieve(made.id, stream=True))
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"), made.output_text)
        self.assertEqual(events[-1].response.id, made.id)


class ChatStream(OpenAITest):
    def collect(self, **options):
        """Checks the frame of a stream; returns ({index: text}, {index: finish_reason}, usage, chunks)."""
        texts, finish, usage, chunks = {}, {}, None, []
        for chunk in self.chat(stream=True, **options):
            chunks.append(chunk)
            self.assertEqual(chunk.object, "chat.completion.chunk")
            self.assertEqual((chunk.id, chunk.created, chunk.model), (chunks[0].id, chunks[0].created, chunks[0].model))
            if not chunk.choices:
                self.assertIsNone(usage, "two usage chunks")
                usage = chunk.usage
                continue
            for choice in chunk.choices:
                self.assertNotIn(choice.index, finish, "a chunk after the finish chunk of its choice")
                if choice.index not in texts:
                    self.assertEqual(choice.delta.role, "assistant")
                    texts[choice.index] = ""
                else:
                    self.assertIsNone(choice.delta.role)
                texts[choice.index] += choice.delta.content or ""
                if choice.finish_reason is not None:
                    finish[choice.index] = choice.finish_reason
        self.assertEqual(set(texts), set(finish), "each choice finishes exactly once")
        return texts, finish, usage, chunks

    def test_equals_unary(self):
        whole = self.chat(max_tokens=24).choices[0]
        texts, finish, usage, _ = self.collect(max_tokens=24)
        self.assertEqual(texts, {0: whole.message.content})
        self.assertEqual(finish, {0: whole.finish_reason})
        self.assertIsNone(usage)

    def test_usage(self):
        whole = self.chat()
        _, _, usage, chunks = self.collect(stream_options={"include_usage": True})
        self.assertIsNotNone(usage, "no usage chunk")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens),
                         (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens))
        for chunk in chunks[:-1]:
            self.assertIsNone(chunk.usage)

    def test_several_choices(self):
        options = {"n": 2, "temperature": 1.0, "seed": 5}
        texts, _, _, _ = self.collect(**options)
        whole = self.chat(**options)
        self.assertEqual(texts, {c.index: c.message.content for c in whole.choices})

    def test_stop(self):
        text = self.chat(max_tokens=24).choices[0].message.content
        if len(text) < 8:
            self.skipTest("the model says too little")
        stop = text[4:7]
        texts, finish, _, _ = self.collect(max_tokens=24, stop=[stop])
        self.assertEqual(texts[0], text[:text.index(stop)])
        self.assertEqual(finish, {0: "stop"})

    def test_raw_frames(self):
        body = {"model": self.model, "messages": MESSAGES, "max_tokens": 4, "stream": True}
        status, headers, text = http("/v1/chat/completions", body)
        self.assertEqual(status, 200, text)
        self.assertTrue(headers["Content-Type"].startswith("text/event-stream"), headers["Content-Type"])
        events = [e for e in text.split("\n\n") if e and not e.startswith(":")]
        self.assertTrue(all(e.startswith("data: ") for e in events), text)
        self.assertEqual(events[-1], "data: [DONE]")
        for e in events[:-1]:
            self.assertIn("choices", json.loads(e[6:]))

    def test_disconnect(self):
        for _ in range(5):
            stream = self.chat(stream=True, max_tokens=200, extra_body={"ignore_eos": True})
            next(iter(stream))
            stream.close()
        self.assertIn(self.chat().choices[0].finish_reason, ("stop", "length"))
        # The abandoned requests leave the engine soon.
        deadline = time.time() + 20
        running = None
        while time.time() < deadline:
            status, _, text = http("/metrics")
            self.assertEqual(status, 200)
            lines = [l for l in text.splitlines() if l.startswith("vllm:num_requests_running")]
            self.assertTrue(lines, "no vllm:num_requests_running in /metrics")
            running = sum(float(l.rsplit(" ", 1)[1]) for l in lines)
            if running == 0:
                return
            time.sleep(0.2)
        self.fail(f"{running} requests still run 20 s after their clients left")

    def test_async_streams(self):
        async def one(client):
            stream = await client.chat.completions.create(model=self.model, messages=MESSAGES, temperature=0, max_tokens=8,
                                                          stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

        async def many():
            async with openai.AsyncOpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT) as client:
                return await asyncio.gather(*[one(client) for _ in range(8)])

        self.assertEqual(len(asyncio.run(many())), 8)


class StopAndLogprobs(OpenAITest):
    def test_stop_string(self):
        text = self.chat(max_tokens=24).choices[0].message.content
        if len(text) < 8:
            self.skipTest("the model says too little")
        for stop in (text[4:7], ["\u0001never", text[5:8]]):
            wanted = stop if isinstance(stop, str) else stop[1]
            r = self.chat(max_tokens=24, stop=stop).choices[0]
            self.assertEqual(r.message.content, text[:text.index(wanted)])
            self.assertEqual(r.finish_reason, "stop")

    def test_chat_logprobs(self):
        r = self.chat(logprobs=True, top_logprobs=3)
        choice = r.choices[0]
        content = choice.logprobs.content
        self.assertGreater(len(content), 0)
        self.assertLessEqual(len(content), r.usage.completion_tokens)
        said = b"".join(bytes(t.bytes) if t.bytes is not None else t.token.encode() for t in content)
        text = choice.message.content
        if "\ufffd" not in text:
            self.assertTrue(said.startswith(text.encode()), (said, text))
        for t in content:
            self.assertLessEqual(t.logprob, 0)
            self.assertEqual(len(t.top_logprobs), 3)
            values = [x.logprob for x in t.top_logprobs]
            self.assertEqual(values, sorted(values, reverse=True))
            # Greedy decoding takes the likeliest token.
            self.assertAlmostEqual(t.logprob, values[0], places=4)

    def test_streamed_logprobs(self):
        whole = [t.token for t in self.chat(logprobs=True).choices[0].logprobs.content]
        streamed = []
        for chunk in self.chat(logprobs=True, stream=True):
            for choice in chunk.choices:
                if choice.logprobs is not None and choice.logprobs.content:
                    streamed += [t.token for t in choice.logprobs.content]
        self.assertEqual(streamed, whole)

    def test_completion_logprobs(self):
        r = self.complete(logprobs=2)
        lp = r.choices[0].logprobs
        n = len(lp.tokens)
        self.assertGreater(n, 0)
        self.assertEqual((len(lp.token_logprobs), len(lp.top_logprobs), len(lp.text_offset)), (n, n, n))
        self.assertTrue(all(0 < len(t) <= 3 for t in lp.top_logprobs))
        self.assertEqual(lp.text_offset, sorted(lp.text_offset))


class Completions(OpenAITest):
    def test_answer(self):
        r = self.complete()
        self.assertEqual(r.object, "text_completion")
        self.assertTrue(r.id.startswith("cmpl-"), r.id)
        self.assertIsInstance(r.choices[0].text, str)
        self.assertIn(r.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens)

    def test_stream_equals_unary(self):
        whole = self.complete(max_tokens=24)
        chunks = list(self.complete(max_tokens=24, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), whole.choices[0].text)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], whole.choices[0].finish_reason)

    def test_several_prompts(self):
        alone = [self.complete(prompt=p).choices[0].text for p in (PROMPT, "The dog")]
        r = self.complete(prompt=[PROMPT, "The dog"])
        self.assertEqual([c.index for c in r.choices], [0, 1])
        self.assertEqual([c.text for c in r.choices], alone)

    def test_prompts_times_choices(self):
        r = self.complete(prompt=[PROMPT, "The dog"], n=2, temperature=1.0, seed=3, max_tokens=4)
        self.assertEqual([c.index for c in r.choices], [0, 1, 2, 3])

    def test_token_prompt(self):
        status, _, text = http("/tokenize", {"model": self.model, "prompt": PROMPT})
        self.assertEqual(status, 200, text)
        tokens = json.loads(text)["tokens"]
        self.assertEqual(self.complete(prompt=tokens).choices[0].text, self.complete().choices[0].text)
        self.assertEqual(self.complete(prompt=[tokens, tokens]).choices[1].text, self.complete().choices[0].text)

    def test_truncated_prompts(self):
        def read(prompt, **fields):
            made = self.client.completions.create(model=self.model, prompt=prompt, max_tokens=1,
                                                  extra_body={"return_token_ids": True, **fields})
            return made.choices[0].prompt_token_ids
        self.assertEqual(read([5, 6, 7], truncate_prompt_tokens=2), [6, 7])
        self.assertEqual(read([5, 6, 7], truncate_prompt_tokens=2, truncation_side="right"), [5, 6])
        whole = read(PROMPT)
        self.assertEqual(read(PROMPT, truncate_prompt_tokens=3)[1:], whole[-2:])

    def test_echo(self):
        r = self.complete(echo=True)
        self.assertEqual(r.choices[0].text, PROMPT + self.complete().choices[0].text)

    def test_min_tokens_and_ignore_eos(self):
        r = self.complete(max_tokens=40, extra_body={"ignore_eos": True})
        self.assertEqual((r.usage.completion_tokens, r.choices[0].finish_reason), (40, "length"))
        self.assertGreaterEqual(self.complete(extra_body={"min_tokens": 5}).usage.completion_tokens, 5)

    def test_logit_bias(self):
        status, _, text = http("/tokenize", {"model": self.model, "prompt": "a", "add_special_tokens": False})
        token = json.loads(text)["tokens"][-1]
        r = self.complete(max_tokens=3, logit_bias={str(token): 100})
        status, _, text = http("/detokenize", {"model": self.model, "tokens": [token] * 3})
        self.assertEqual(status, 200, text)
        # +100 outweighs any model's opinion.
        self.assertEqual(r.choices[0].text.strip(), json.loads(text)["prompt"].strip())


class Others(OpenAITest):
    """What other servers answer under OpenAI's paths."""

    def ask(self, path, **body):
        status, _, text = http(path, {"model": self.model, **body})
        return status, json.loads(text)

    def test_labels_are_scored(self):
        ids = [self.ask("/tokenize", prompt=word, add_special_tokens=False)[1]["tokens"][0] for word in (" the", " a", " river")]
        asked = {"query": "He went to", "label_token_ids": ids}
        status, plain = self.ask("/v1/score", items=[" see", " do"], **asked)
        self.assertEqual(status, 200, plain)
        self.assertEqual([len(s) for s in plain["scores"]], [3, 3])
        status, shares = self.ask("/v1/score", items=[" see", " do"], apply_softmax=True, **asked)
        for scores, whole in zip(shares["scores"], plain["scores"]):
            self.assertAlmostEqual(sum(scores), 1, places=6)
            for score, p in zip(scores, whole):
                self.assertAlmostEqual(score, p / sum(whole), places=5)
        # The same by hand: the likelihood of a token behind a prompt.
        r = self.complete(prompt="He went to see", max_tokens=1, logprobs=0, extra_body={"logprob_token_ids": ids, "return_tokens_as_token_ids": True})
        known = r.choices[0].logprobs.top_logprobs[0]
        for k, token in enumerate(ids):
            self.assertAlmostEqual(plain["scores"][0][k], math.exp(known[f"token_id:{token}"]), places=5)
        self.assertEqual(shares["usage"]["completion_tokens"], 0)
        tokens = {name: self.ask("/tokenize", prompt=text, add_special_tokens=False)[1]["tokens"] for name, text in (("q", "He went to"), ("i", " see"))}
        status, by_ids = self.ask("/v1/score", query=tokens["q"], items=[tokens["i"]], label_token_ids=ids)
        self.assertEqual((status, len(by_ids["scores"])), (200, 1))
        for wrong, field in (({"items": []}, "items"), ({"items": ["x"], "label_token_ids": [10**6]}, "label_token_ids"), ({"items": [[1]]}, "items")):
            status, refused = self.ask("/v1/score", **{"query": "x", "label_token_ids": ids, **wrong})
            self.assertEqual((status, refused["error"]["param"].split("[")[0]), (400, field))

    def test_decisions(self):
        asked = {"input": "The package arrived with a broken screen.",
                 "questions": [{"type": "predicate", "instructions": "Is the screen broken?"},
                               {"type": "choice", "name": "to", "instructions": "Who handles this?",
                                "choices": [{"value": "returns"}, {"value": "billing"}, {"value": False}]}]}
        status, made = self.ask("/v1/decisions", **asked)
        self.assertEqual(status, 200, made)
        predicate, choice = made["answers"]
        self.assertTrue(0 < predicate["probability"] < 1)
        shares = {str(p["value"]): p["probability"] for p in choice["probabilities"]}
        self.assertAlmostEqual(sum(shares.values()), 1, places=6)
        self.assertEqual(choice["choice"], max(choice["probabilities"], key=lambda p: p["probability"])["value"])
        self.assertLessEqual(choice["confidence"], max(shares.values()) + 1e-6)
        # Other questions beside it change nothing, and what they have in common is read once.
        status, alone = self.ask("/v1/decisions", input=asked["input"], questions=asked["questions"][1:])
        self.assertEqual(alone["answers"][0]["choice"], choice["choice"])
        for p in alone["answers"][0]["probabilities"]:
            self.assertAlmostEqual(p["probability"], shares[str(p["value"])], places=3)

    def test_the_token_that_ends_a_text_has_a_log_probability(self):
        extra = {"return_token_ids": True, "ignore_eos": True}
        whole = self.complete(max_tokens=6, logprobs=0, extra_body=extra).choices[0]
        stop = whole.token_ids[-1]
        at = whole.token_ids.index(stop)
        ended = self.complete(max_tokens=6, logprobs=0, extra_body={**extra, "stop_token_ids": [stop]}).choices[0]
        self.assertEqual(ended.finish_reason, "stop")
        self.assertEqual(ended.token_ids, whole.token_ids[:at + 1])
        self.assertEqual(len(ended.logprobs.token_logprobs), at + 1)
        self.assertAlmostEqual(ended.logprobs.token_logprobs[at], whole.logprobs.token_logprobs[at], places=3)
        plain = self.complete(max_tokens=6, logprobs=0, extra_body={"ignore_eos": True, "stop_token_ids": [stop]}).choices[0]
        self.assertEqual(len(plain.logprobs.token_logprobs), at)

    def test_metrics_of_a_request(self):
        r = self.chat(extra_body={"request_metrics": True, "ignore_eos": True}, max_tokens=4)
        self.assertEqual(sorted(r.model_extra["metrics"]),
                         ["generation_time_ms", "mean_itl_ms", "queue_time_ms", "time_to_first_token_ms", "tokens_per_second"])
        chunks = list(self.chat(extra_body={"request_metrics": True}, max_tokens=1, stream=True, stream_options={"include_usage": True}))
        self.assertEqual([("metrics" in c.model_extra) for c in chunks], [False] * (len(chunks) - 1) + [True])
        self.assertNotIn("mean_itl_ms", chunks[-1].model_extra["metrics"])
        self.assertNotIn("metrics", self.chat().model_extra)


class TextTools(OpenAITest):
    def test_round_trip(self):
        status, _, text = http("/tokenize", {"model": self.model, "prompt": PROMPT, "add_special_tokens": False})
        self.assertEqual(status, 200, text)
        body = json.loads(text)
        self.assertEqual(body["count"], len(body["tokens"]))
        status, _, text = http("/detokenize", {"model": self.model, "tokens": body["tokens"]})
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["prompt"].strip(), PROMPT)

    def test_chat_messages(self):
        status, _, text = http("/tokenize", {"model": self.model, "messages": MESSAGES})
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["count"], self.chat(max_tokens=1).usage.prompt_tokens)

    def test_health_and_metrics(self):
        for path in ("/health", "/health/live", "/health/ready"):
            status, _, text = http(path)
            self.assertEqual(status, 200, (path, text))
        status, headers, text = http("/metrics")
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/plain"))
        for name in ("vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
                     "vllm:time_to_first_token_seconds_bucket", "vllm:request_success_total"):
            self.assertIn(name, text)


class Callers(OpenAITest):
    """Programs are served whatever they send as a type; pages of other sites are not."""
    BODY = {"prompt": PROMPT, "max_tokens": 1}

    def test_programs(self):
        own = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}
        for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}, own):
            with self.subTest(headers=headers):
                status, _, text = http("/v1/completions", {"model": self.model, **self.BODY}, headers=headers)
                self.assertEqual(status, 200, text)

    @unittest.skipUnless(shutil.which("curl"), "no curl")
    def test_curl(self):
        command = ["curl", "-s", "-o", os.devnull, "-w", "%{http_code}", "-H", f"Authorization: Bearer {KEY}", "-d",
                   json.dumps({"model": self.model, **self.BODY})]

        def status(path, *headers):
            options = [part for header in headers for part in ("-H", header)]
            return subprocess.run([*command, *options, BASE + path], capture_output=True, text=True, timeout=TIMEOUT).stdout

        self.assertEqual(status("/v1/completions"), "200")
        self.assertEqual(status("/v2/repository/models/m/unload", "Origin: http://evil.example", "Host: evil.example",
                                "Content-Type: text/plain"), "403")

    def test_pages_of_other_sites(self):
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            for content_type in ("text/plain", "application/json"):
                with self.subTest(headers=headers, content_type=content_type):
                    status, answer, text = http("/v1/completions", {"model": self.model, **self.BODY},
                                                headers={**headers, "Content-Type": content_type})
                    self.assert_error_object(status, text, 403)
                    self.assertNotIn("Access-Control-Allow-Origin", answer)
        status, _, _ = http("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate",
                                          "Sec-Fetch-Dest": "document"})
        self.assertEqual(status, 200)


class Errors(OpenAITest):
    def test_exceptions(self):
        cases = [
            (openai.NotFoundError, {"model": "no-such-model"}),
            (openai.BadRequestError, {"messages": []}),
            (openai.BadRequestError, {"temperature": -1}),
            (openai.BadRequestError, {"top_p": 2}),
            (openai.BadRequestError, {"n": 0}),
            (openai.BadRequestError, {"max_tokens": -1}),
            (openai.BadRequestError, {"top_logprobs": 3}),
            (openai.BadRequestError, {"messages": [{"role": "nobody", "content": "x"}]}),
        ]
        for kind, options in cases:
            with self.subTest(options=options):
                with self.assertRaises(kind) as caught:
                    self.chat(**options)
                self.assertEqual(set(caught.exception.body), ERROR_KEYS)
                self.assertTrue(caught.exception.body["message"])

    def test_the_field_is_named(self):
        good = {"model": self.model, "messages": MESSAGES, "max_tokens": 2}
        bad = [("temperature", "hot"), ("temperature", 1e308), ("top_p", -1), ("top_p", [1]), ("n", 2**31), ("n", 1.5), ("max_tokens", 2**63),
               ("max_tokens", "many"), ("seed", "x"), ("stop", 5), ("stop", [[]]), ("stream", "yes"), ("logprobs", 3), ("top_k", "x"),
               ("min_tokens", -1), ("logit_bias", [1]), ("messages", "hello"), ("messages", None), ("messages", [5]),
               ("frequency_penalty", 1000), ("stream_options", 7)]
        for name, value in bad:
            with self.subTest(field=name, value=value):
                status, _, text = http("/v1/chat/completions", {**good, name: value})
                error = self.assert_error_object(status, text, 400)
                self.assertIsNotNone(error["param"], text)
                self.assertEqual(error["param"].split(".")[0].split("[")[0], name, text)

    def test_nested_field_is_named(self):
        body = {"model": self.model, "messages": [{"role": "user", "content": 5}]}
        status, _, text = http("/v1/chat/completions", body)
        error = self.assert_error_object(status, text, 400)
        self.assertTrue(error["param"].startswith("messages"), text)

    def test_bad_bodies(self):
        for raw in (b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"model": "' + b"\xff" + b'"}', b"[" * 100000,
                    b'{"a":' * 5000, b'{"model": 1e999}', b"{} trailing"):
            with self.subTest(raw=raw[:40]):
                status, _, text = http("/v1/chat/completions", raw=raw, method="POST")
                self.assert_error_object(status, text, 400)

    def test_missing_fields(self):
        for path, field in (("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")):
            status, _, text = http(path, {"model": self.model})
            self.assert_error_object(status, text, 400, field)

    def test_too_long(self):
        status, _, text = http("/v1/completions", {"model": self.model, "prompt": "word " * 200_000, "max_tokens": 1})
        self.assert_error_object(status, text)
        self.assertIn(status, (400, 413), text[:300])

    def test_paths_and_methods(self):
        status, _, text = http("/v1/nope")
        self.assert_error_object(status, text, 404)
        status, _, text = http("/v1/completions", method="GET")
        self.assert_error_object(status, text)
        self.assertIn(status, (404, 405))

    def test_error_in_a_stream_request_is_a_plain_error(self):
        status, headers, text = http("/v1/chat/completions", {"model": self.model, "messages": MESSAGES, "stream": True, "n": -1})
        self.assert_error_object(status, text, 400, "n")
        self.assertTrue(headers["Content-Type"].startswith("application/json"))

    def test_template_kwargs_cannot_replace_messages(self):
        body = {"model": self.model, "messages": MESSAGES, "chat_template_kwargs": {"messages": []}}
        status, _, text = http("/v1/chat/completions", body)
        self.assert_error_object(status, text, 400, "chat_template_kwargs")


class FilesAndBatches(OpenAITest):
    """Needs a server with --files."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        try:
            cls.client.files.list()
        except openai.InternalServerError as e:
            raise unittest.SkipTest(f"the server has no folder for files: {e}") from e

    def upload(self, lines, **options):
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        return self.client.files.create(file=("requests.jsonl", text.encode()), purpose="batch", **options)

    def line(self, name, url="/v1/chat/completions", **body):
        body = {"model": self.model, "messages": MESSAGES, "temperature": 0, "max_tokens": 8, **body}
        return {"custom_id": name, "method": "POST", "url": url, "body": body}

    def run_batch(self, file, endpoint="/v1/chat/completions", **options):
        batch = self.client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **options)
        end = time.monotonic() + TIMEOUT
        while batch.status not in ("completed", "failed", "cancelled", "expired") and time.monotonic() < end:
            time.sleep(0.02)
            batch = self.client.batches.retrieve(batch.id)
        return batch

    def test_file(self):
        file = self.upload([self.line("a")], expires_after={"anchor": "created_at", "seconds": 3600})
        self.assertEqual(file.object, "file")
        self.assertEqual(file.purpose, "batch")
        self.assertEqual(file.filename, "requests.jsonl")
        self.assertEqual(file.expires_at, file.created_at + 3600)
        self.assertEqual(self.client.files.retrieve(file.id), file)
        self.assertEqual(json.loads(self.client.files.content(file.id).text), self.line("a"))
        other = self.upload([self.line("b")])
        self.assertEqual({f.id for f in self.client.files.list(limit=1)} & {file.id, other.id}, {file.id, other.id})  # pages
        for f in (file, other):
            self.assertTrue(self.client.files.delete(f.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.content(file.id)

    def test_batch(self):
        file = self.upload([self.line("one"), self.line("two", max_tokens=-1), self.line("three", seed=1)])
        batch = self.run_batch(file, metadata={"who": "test"})
        self.assertEqual(batch.status, "completed", batch)
        self.assertEqual((batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed), (3, 2, 1))
        self.assertEqual(batch.metadata, {"who": "test"})
        answers = {a["custom_id"]: a for a in map(json.loads, self.client.files.content(batch.output_file_id).text.splitlines())}
        self.assertEqual(set(answers), {"one", "three"})
        content = answers["one"]["response"]["body"]["choices"][0]["message"]["content"]
        self.assertEqual(content, self.chat(max_tokens=8).choices[0].message.content)
        error, = map(json.loads, self.client.files.content(batch.error_file_id).text.splitlines())
        self.assertEqual((error["custom_id"], error["response"]["status_code"]), ("two", 400))
        self.assertIn(batch.id, {b.id for b in self.client.batches.list(limit=1)})
        with self.assertRaises(openai.BadRequestError):
            self.client.batches.cancel(batch.id)

    def test_completions(self):
        line = {"custom_id": "c", "method": "POST", "url": "/v1/completions",
                "body": {"model": self.model, "prompt": PROMPT, "temperature": 0, "max_tokens": 8}}
        batch = self.run_batch(self.upload([line]), "/v1/completions")
        answer = json.loads(self.client.files.content(batch.output_file_id).text)
        self.assertEqual(answer["response"]["body"]["choices"][0]["text"], self.complete(max_tokens=8).choices[0].text)

    def test_wrong_lines(self):
        batch = self.run_batch(self.upload([self.line("a"), self.line("a"), self.line("b", url="/v1/completions"), "{"]))
        self.assertEqual(batch.status, "failed")
        self.assertEqual([e.line for e in batch.errors.data], [2, 3, 4])

    def test_cancel(self):
        file = self.upload([self.line(str(i), max_tokens=400, ignore_eos=True) for i in range(200)])
        batch = self.client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        self.assertIn(self.client.batches.cancel(batch.id).status, ("cancelling", "cancelled"))
        end = time.monotonic() + TIMEOUT
        while batch.status != "cancelled" and time.monotonic() < end:
            time.sleep(0.02)
            batch = self.client.batches.retrieve(batch.id)
        self.assertEqual(batch.status, "cancelled")

    def test_refused_by_name(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.files.create(file=b"x", purpose="vision")
        self.assertEqual(caught.exception.param, "purpose")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.batches.create(input_file_id=self.upload(["x"]).id, endpoint="/v1/moderations", completion_window="24h")
        self.assertEqual(caught.exception.param, "endpoint")


if __name__ == "__main__":
    unittest.main(verbosity=2)
