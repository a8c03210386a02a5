"""Client libraries from PyPI against a server of ours: every call that their documentation shows. What this server does not offer
is to be refused as the library understands it: an exception of its own with a message. Run by `run.py sdks`.

OAR_HTTP is a server of any language model, OAR_ENCODER one of an encoder; a library that is not installed is skipped."""
import asyncio
import io
import json
import os

import pytest

BASE = os.environ.get("OAR_HTTP", "http://127.0.0.1:8000")
ENCODER = os.environ.get("OAR_ENCODER", "http://127.0.0.1:8001")
USER = [{"role": "user", "content": "Once upon a time"}]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ONE_OF_TWO = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
FUNCTION = {"name": "add_one", "description": "Adds one.", "parameters": SCHEMA}


# ---- openai ----

@pytest.fixture(scope="module")
def openai():
    return pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(openai):
    return openai.OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


@pytest.fixture
def chat(client, model):
    return lambda **o: client.chat.completions.create(**{"model": model, "messages": USER, "max_tokens": 8, **o})


@pytest.fixture
def respond(client, model):
    return lambda **o: client.responses.create(**{"model": model, "input": "Once upon a time", "max_output_tokens": 8, **o})


class TestOpenAi:
    def test_models(self, client, model):
        assert client.models.retrieve(model).id == model

    def test_models_delete(self, client, openai):
        with pytest.raises(openai.APIStatusError):
            client.models.delete("no-such-model")

    def test_chat(self, chat):
        assert chat().choices[0].message.content

    def test_chat_raw_response(self, client, model):
        raw = client.chat.completions.with_raw_response.create(model=model, messages=USER, max_tokens=2)
        assert raw.request_id and raw.parse().choices

    def test_chat_stream(self, chat):
        assert "".join(c.choices[0].delta.content or "" for c in chat(stream=True))

    def test_chat_stream_usage(self, chat):
        chunks = list(chat(stream=True, stream_options={"include_usage": True}))
        assert chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices

    def test_chat_stream_helper(self, client, model):
        with client.chat.completions.stream(model=model, messages=USER, max_tokens=100) as stream:
            kinds = {event.type for event in stream}
            assert {"chunk", "content.delta", "content.done"} <= kinds
            assert stream.get_final_completion().choices[0].message.content

    def test_chat_parse(self, client, model):
        pydantic = pytest.importorskip("pydantic")

        class Number(pydantic.BaseModel):
            n: bool
        done = client.chat.completions.parse(model=model, messages=USER, response_format=Number, max_tokens=200)
        assert isinstance(done.choices[0].message.parsed, Number)

    def test_chat_tools(self, chat):
        tools = [{"type": "function", "function": {**FUNCTION, "parameters": ONE_OF_TWO}}]
        first = chat(tools=tools, tool_choice="required", max_tokens=100, parallel_tool_calls=False)
        call = first.choices[0].message.tool_calls[0]
        assert call.function.name == "add_one" and json.loads(call.function.arguments)["n"] in (1, 2)
        messages = [*USER, first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "2"}]
        assert chat(messages=messages, tools=tools).choices

    def test_chat_tool_stream(self, chat):
        tools = [{"type": "function", "function": {**FUNCTION, "parameters": {"type": "object", "properties": {}}}}]
        text = ""
        choice = {"type": "function", "function": {"name": "add_one"}}
        for chunk in chat(tools=tools, tool_choice=choice, stream=True, max_tokens=80):
            for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                text += call.function.arguments or ""
        assert json.loads(text) == {}

    def test_chat_every_harmless_option(self, chat):
        assert chat(frequency_penalty=0.1, presence_penalty=0.1, logit_bias={"5": -1}, logprobs=True, top_logprobs=2, n=2, seed=1,
                    stop=["zzz"], temperature=0.5, top_p=0.9, user="u", metadata={"a": "b"}, store=False, service_tier="auto",
                    modalities=["text"], reasoning_effort="low", parallel_tool_calls=True, prompt_cache_key="k",
                    safety_identifier="s", verbosity="medium", response_format={"type": "text"}).choices[1].logprobs.content

    def test_chat_developer_message(self, chat):
        assert chat(messages=[{"role": "developer", "content": "Be brief."}, *USER]).choices

    def test_stored_completions(self, client, chat):
        done = chat(store=True, metadata={"a": "b"})
        assert client.chat.completions.retrieve(done.id).id == done.id
        assert done.id in [c.id for c in client.chat.completions.list()]
        assert client.chat.completions.messages.list(done.id).data
        assert client.chat.completions.update(done.id, metadata={"a": "c"}).metadata == {"a": "c"}
        assert client.chat.completions.delete(done.id).deleted

    def test_completions(self, client, model):
        done = client.completions.create(model=model, prompt=["a", "b"], max_tokens=4, logprobs=2, echo=True, n=1, suffix=None)
        assert [c.index for c in done.choices] == [0, 1]

    def test_completions_stream(self, client, model):
        assert "".join(c.choices[0].text for c in client.completions.create(model=model, prompt="Once upon a time", max_tokens=4, stream=True))

    @pytest.mark.parametrize("given", ["hello", ["hello", "world"], [5, 6, 7], [[5, 6], [7]]])
    def test_embeddings(self, openai, given):
        own = openai.OpenAI(base_url=ENCODER + "/v1", api_key="none", max_retries=0)
        name = own.models.list().data[0].id
        data = own.embeddings.create(model=name, input=given).data
        assert all(isinstance(d.embedding[0], float) for d in data)
        assert own.embeddings.create(model=name, input=given, encoding_format="float", dimensions=len(data[0].embedding)).usage

    def test_files(self, client):
        made = client.files.create(file=("a.jsonl", io.BytesIO(b'{"a":1}\n')), purpose="batch")
        assert client.files.retrieve(made.id).filename == "a.jsonl"
        assert made.id in [f.id for f in client.files.list(purpose="batch")]
        assert client.files.content(made.id).text == '{"a":1}\n'
        assert client.files.wait_for_processing(made.id).id == made.id
        assert client.files.delete(made.id).deleted

    @pytest.mark.parametrize("endpoint,body", [
        ("/v1/chat/completions", {"messages": USER, "max_tokens": 2}), ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 2})])
    def test_batches(self, client, model, endpoint, body):
        line = json.dumps({"custom_id": "1", "method": "POST", "url": endpoint, "body": {"model": model, **body}})
        made = client.files.create(file=("b.jsonl", line.encode()), purpose="batch")
        batch = client.batches.create(input_file_id=made.id, endpoint=endpoint, completion_window="24h")
        for _ in range(200):
            batch = client.batches.retrieve(batch.id)
            if batch.status in ("completed", "failed"):
                break
            asyncio.run(asyncio.sleep(0.05))
        assert batch.status == "completed" and batch.request_counts.completed == 1
        assert "status_code" in client.files.content(batch.output_file_id).text
        assert batch.id in [b.id for b in client.batches.list()]

    def test_responses(self, client, respond):
        made = respond(store=True, metadata={"a": "b"})
        assert made.output_text and made.status in ("completed", "incomplete")
        assert client.responses.retrieve(made.id).id == made.id
        assert client.responses.input_items.list(made.id).data
        assert respond(previous_response_id=made.id).previous_response_id == made.id
        assert client.responses.delete(made.id) is None

    def test_responses_stream(self, respond):
        kinds = [event.type for event in respond(stream=True)]
        assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")

    def test_responses_stream_helper(self, client, model):
        with client.responses.stream(model=model, input="a", max_output_tokens=100) as stream:
            assert "response.output_text.delta" in {event.type for event in stream}
            assert stream.get_final_response().output_text

    def test_responses_retrieve_stream(self, client, respond):
        made = respond(store=True)
        assert [event.type for event in client.responses.retrieve(made.id, stream=True)][0] == "response.created"

    def test_responses_parse(self, client, model):
        pydantic = pytest.importorskip("pydantic")

        class Yes(pydantic.BaseModel):
            yes: bool
        assert isinstance(client.responses.parse(model=model, input="a", text_format=Yes, max_output_tokens=200).output_parsed, Yes)

    def test_responses_tools(self, client, model):
        tool = {"type": "function", "name": "add_one", "parameters": ONE_OF_TWO, "strict": True}
        made = client.responses.create(model=model, input="a", tools=[tool], tool_choice="required", max_output_tokens=100)
        call = next(item for item in made.output if item.type == "function_call")
        again = [{"role": "user", "content": "a"}, call.model_dump(),
                 {"type": "function_call_output", "call_id": call.call_id, "output": "2"}]
        assert client.responses.create(model=model, input=again, tools=[tool], max_output_tokens=4).output

    def test_responses_input_tokens(self, client, model):
        assert client.responses.input_tokens.count(model=model, input="Once upon a time").input_tokens > 0

    def test_responses_cancel(self, client, openai, respond):
        with pytest.raises(openai.BadRequestError):  # it was not made in the background
            client.responses.cancel(respond(store=True).id)

    def test_conversations(self, client, respond):
        made = client.conversations.create(items=[{"type": "message", "role": "user", "content": "a"}], metadata={"a": "b"})
        assert client.conversations.retrieve(made.id).id == made.id
        assert client.conversations.items.list(made.id).data
        assert respond(conversation=made.id).output
        assert client.conversations.delete(made.id).deleted

    @pytest.mark.parametrize("call", [
        lambda c: c.moderations.create(input="a"),
        lambda c: c.images.generate(prompt="a", model="m"),
        lambda c: c.images.edit(image=b"a", prompt="a"),
        lambda c: c.audio.speech.create(input="a", model="m", voice="alloy"),
        lambda c: c.audio.transcriptions.create(file=("a.wav", b"a"), model="m"),
        lambda c: c.audio.translations.create(file=("a.wav", b"a"), model="m"),
        lambda c: c.fine_tuning.jobs.list(),
        lambda c: c.fine_tuning.jobs.create(model="m", training_file="f"),
        lambda c: c.vector_stores.create(name="a"),
        lambda c: c.uploads.create(bytes=1, filename="a", mime_type="text/plain", purpose="batch"),
        lambda c: c.beta.assistants.create(model="m"),
        lambda c: c.beta.threads.create(),
        lambda c: c.evals.list(),
        lambda c: c.containers.list(),
        lambda c: c.videos.create(prompt="a"),
    ])
    def test_not_offered(self, client, openai, call):
        with pytest.raises(openai.APIStatusError) as caught:
            call(client)
        assert caught.value.status_code in (404, 501) and caught.value.body["message"]

    def test_errors(self, client, openai, chat):
        for error, options in ((openai.BadRequestError, {"temperature": -1}), (openai.NotFoundError, {"model": "no-such-model"})):
            with pytest.raises(error) as caught:
                chat(**options)
            assert caught.value.param and caught.value.message

    def test_async(self, openai, model):
        async def run():
            async with openai.AsyncOpenAI(base_url=BASE + "/v1", api_key="none") as own:
                return [c async for c in await own.chat.completions.create(model=model, messages=USER, max_tokens=4, stream=True)]
        assert asyncio.run(run())

    def test_azure_paths(self, openai, model):
        own = openai.AzureOpenAI(azure_endpoint=BASE, api_key="none", api_version="2024-10-21", max_retries=0)
        assert own.chat.completions.create(model=model, messages=USER, max_tokens=2).choices


# ---- anthropic ----

@pytest.fixture(scope="module")
def anthropic():
    return pytest.importorskip("anthropic")


@pytest.fixture(scope="module")
def claude(anthropic):
    return anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0, timeout=60)


class TestAnthropic:
    def test_messages(self, claude, model):
        done = claude.messages.create(model=model, messages=USER, max_tokens=8)
        assert done.content[0].text and done.usage.output_tokens > 0 and done.stop_reason in ("max_tokens", "end_turn")

    def test_every_harmless_option(self, claude, model):
        assert claude.messages.create(
            model=model, max_tokens=8, stop_sequences=["zzz"], metadata={"user_id": "u"},
            extra_body={"temperature": 0.5, "top_k": 5, "top_p": 0.9},  # which not every version of the library names
            system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}], service_tier="auto",
            messages=[*USER, {"role": "assistant", "content": "There"}]).content

    def test_stream(self, claude, model):
        kinds = [e.type for e in claude.messages.create(model=model, messages=USER, max_tokens=8, stream=True)]
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop"

    def test_stream_helper(self, claude, model):
        with claude.messages.stream(model=model, messages=USER, max_tokens=8) as stream:
            assert "".join(stream.text_stream)
            assert stream.get_final_message().usage.output_tokens > 0

    def test_tools(self, claude, model):
        tool = {"name": "add_one", "input_schema": {"type": "object", "properties": {"n": {"enum": [1]}}, "required": ["n"]}}
        done = claude.messages.create(model=model, messages=USER, max_tokens=100, tools=[tool], tool_choice={"type": "any"})
        call = next(b for b in done.content if b.type == "tool_use")
        assert call.input == {"n": 1} and done.stop_reason == "tool_use"
        again = [*USER, {"role": "assistant", "content": done.content},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "2"}]}]
        assert claude.messages.create(model=model, messages=again, max_tokens=8, tools=[tool]).content

    def test_tool_stream(self, claude, model):
        tool = {"name": "add_one", "input_schema": {"type": "object", "properties": {}}}
        with claude.messages.stream(model=model, messages=USER, max_tokens=80, tools=[tool],
                                    tool_choice={"type": "tool", "name": "add_one"}) as stream:
            assert any(b.type == "tool_use" for b in stream.get_final_message().content)

    def test_thinking(self, claude, model):
        assert claude.messages.create(model=model, messages=USER, max_tokens=1100, stop_sequences=["."],
                                      thinking={"type": "disabled"}).content is not None

    def test_count_tokens(self, claude, model):
        assert claude.messages.count_tokens(model=model, messages=USER).input_tokens > 0

    def test_models(self, claude, model):
        listed = claude.models.list()
        assert [m.id for m in listed.data][0] and listed.data[0].type == "model" and listed.data[0].display_name
        assert claude.models.retrieve(model).id == model

    def test_beta(self, claude, model):
        assert claude.beta.messages.create(model=model, messages=USER, max_tokens=4,
                                           betas=["token-efficient-tools-2025-02-19"]).content
        assert claude.beta.messages.count_tokens(model=model, messages=USER).input_tokens > 0

    def test_parse(self, claude, model):
        pydantic = pytest.importorskip("pydantic")

        class Yes(pydantic.BaseModel):
            yes: bool
        assert isinstance(claude.messages.parse(model=model, messages=USER, max_tokens=200, output_format=Yes).parsed_output, Yes)

    def test_batches_are_refused(self, claude, anthropic, model):
        with pytest.raises(anthropic.APIStatusError) as caught:
            claude.messages.batches.create(
                requests=[{"custom_id": "1", "params": {"model": model, "messages": USER, "max_tokens": 2}}])
        assert caught.value.status_code in (404, 501) and caught.value.body["error"]["message"]

    def test_text_completions_are_refused(self, claude, anthropic):
        if not hasattr(claude, "completions"):
            pytest.skip("this version of the library has none")
        with pytest.raises(anthropic.APIStatusError):
            claude.completions.create(model="m", prompt="a", max_tokens_to_sample=2)

    def test_errors(self, claude, anthropic, model):
        for error, options in ((anthropic.BadRequestError, {"extra_body": {"temperature": -1}}),
                               (anthropic.NotFoundError, {"model": "no-such-model"})):
            with pytest.raises(error) as caught:
                claude.messages.create(**{"model": model, "messages": USER, "max_tokens": 2, **options})
            assert caught.value.body["type"] == "error"

    def test_async(self, anthropic, model):
        async def run():
            async with anthropic.AsyncAnthropic(base_url=BASE, api_key="none") as own:
                return await own.messages.create(model=model, messages=USER, max_tokens=2)
        assert asyncio.run(run()).content


# ---- those that stand on them ----

class TestLangchain:
    @pytest.fixture(params=["chat", "responses"])
    def llm(self, request, model):
        library = pytest.importorskip("langchain_openai")
        return library.ChatOpenAI(base_url=BASE + "/v1", api_key="none", model=model, max_tokens=100, max_retries=0,
                                  use_responses_api=request.param == "responses")

    def test_invoke(self, llm):
        assert llm.invoke("Once upon a time").content

    def test_stream(self, llm):
        assert list(llm.stream("Once upon a time"))

    def test_batch(self, llm):
        assert len(llm.batch(["a", "b"])) == 2

    def test_tools(self, llm):
        called = llm.bind_tools([{"type": "function", "function": FUNCTION}], tool_choice="required")
        assert called.invoke("a").tool_calls[0]["name"] == "add_one"

    @pytest.mark.parametrize("method", ["json_schema", "function_calling"])
    def test_structured(self, llm, method):
        schema = {"title": "yes", "type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"],
                  "additionalProperties": False}
        assert isinstance(llm.with_structured_output(schema, method=method).invoke("a")["yes"], bool)

    def test_completions(self, model):
        library = pytest.importorskip("langchain_openai")
        llm = library.OpenAI(base_url=BASE + "/v1", api_key="none", model=model, max_tokens=8)
        assert llm.invoke("a") and list(llm.stream("a"))

    def test_embeddings(self):
        library = pytest.importorskip("langchain_openai")
        own = library.OpenAIEmbeddings(base_url=ENCODER + "/v1", api_key="none", model="bert", check_embedding_ctx_length=False)
        assert len(own.embed_documents(["a", "b"])) == 2 and own.embed_query("a")

    def test_anthropic(self, model):
        library = pytest.importorskip("langchain_anthropic")
        llm = library.ChatAnthropic(base_url=BASE, api_key="none", model=model, max_tokens=60)
        assert llm.invoke("a").content and list(llm.stream("a"))
        called = llm.bind_tools([{"name": "f", "input_schema": {"type": "object", "properties": {}}}], tool_choice="any")
        assert called.invoke("a").tool_calls[0]["name"] == "f"


class TestLitellm:
    @pytest.fixture(scope="class")
    def litellm(self):
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        return pytest.importorskip("litellm")

    @pytest.mark.parametrize("kind,path", [("openai", "/v1"), ("hosted_vllm", "/v1"), ("anthropic", ""), ("ollama", ""),
                                           ("ollama_chat", ""),
                                           ("text-completion-openai", "/v1"), ("llamafile", "/v1"), ("lm_studio", "/v1")])
    @pytest.mark.parametrize("stream", [False, True])
    def test_completion(self, litellm, model, kind, path, stream):
        done = litellm.completion(model=f"{kind}/{model}", messages=USER, max_tokens=8, api_base=BASE + path, api_key="none",
                                  stream=stream, num_retries=0)
        if stream:
            assert "".join(c.choices[0].delta.content or "" for c in done)
        else:
            assert done.choices[0].message.content and done.usage.completion_tokens > 0

    @pytest.mark.parametrize("kind,path", [("openai", "/v1"), ("anthropic", ""), ("hosted_vllm", "/v1")])
    def test_tools(self, litellm, model, kind, path):
        done = litellm.completion(model=f"{kind}/{model}", messages=USER, max_tokens=100, api_base=BASE + path, api_key="none",
                                  tools=[{"type": "function", "function": FUNCTION}], tool_choice="required")
        assert done.choices[0].message.tool_calls[0].function.name == "add_one"

    def test_responses(self, litellm, model):
        done = litellm.responses(model=f"openai/{model}", input="a", max_output_tokens=8, api_base=BASE + "/v1", api_key="none")
        assert done.output

    @pytest.mark.parametrize("kind,path", [("openai", "/v1"), ("hosted_vllm", "/v1"), ("ollama", "")])
    def test_embedding(self, litellm, kind, path):
        done = litellm.embedding(model=f"{kind}/bert", input=["a", "b"], api_base=ENCODER + path, api_key="none")
        assert len(done.data) == 2

    @pytest.mark.parametrize("kind,path", [("hosted_vllm", ""), ("infinity", ""), ("jina_ai", "/v1/rerank"),
                                           ("cohere", "/v2/rerank")])
    def test_rerank(self, litellm, kind, path):
        done = litellm.rerank(model=f"{kind}/bert", query="a", documents=["a", "b"], top_n=2, api_base=ENCODER + path,
                              api_key="none")
        assert len(done.results) == 2

    def test_errors(self, litellm):
        with pytest.raises(litellm.NotFoundError):
            litellm.completion(model="openai/no-such-model", messages=USER, api_base=BASE + "/v1", api_key="none", num_retries=0)


class TestInstructor:
    @pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON", "PARALLEL_TOOLS",
                                      "RESPONSES_TOOLS"])
    def test_modes(self, openai, model, mode):
        instructor = pytest.importorskip("instructor")
        pydantic = pytest.importorskip("pydantic")
        from typing import Iterable

        class Yes(pydantic.BaseModel):
            yes: bool
        own = instructor.from_openai(openai.OpenAI(base_url=BASE + "/v1", api_key="none"), mode=instructor.Mode[mode])
        kind = Iterable[Yes] if mode == "PARALLEL_TOOLS" else Yes
        limit = {"max_output_tokens": 200} if mode == "RESPONSES_TOOLS" else {"max_tokens": 200}
        if mode == "MD_JSON":  # it asks for JSON in words alone, which is up to the model; what goes over the wire is chat
            limit["extra_body"] = {"guided_regex": '```json\n\\{"yes": true\\}\n```'}
        done = own.chat.completions.create(model=model, messages=USER, response_model=kind, max_retries=1, **limit)
        done = list(done)[0] if mode == "PARALLEL_TOOLS" else done
        assert isinstance(done, Yes)

    def test_partial(self, openai, model):
        instructor = pytest.importorskip("instructor")
        pydantic = pytest.importorskip("pydantic")

        class Yes(pydantic.BaseModel):
            yes: bool
        own = instructor.from_openai(openai.OpenAI(base_url=BASE + "/v1", api_key="none"), mode=instructor.Mode.JSON_SCHEMA)
        done = own.chat.completions.create_partial(model=model, messages=USER, response_model=Yes, max_tokens=100)
        assert list(done)[-1].yes in (True, False)

    def test_anthropic(self, anthropic, model):
        instructor = pytest.importorskip("instructor")
        pydantic = pytest.importorskip("pydantic")

        class Yes(pydantic.BaseModel):
            yes: bool
        own = instructor.from_anthropic(anthropic.Anthropic(base_url=BASE, api_key="none"))
        assert isinstance(own.messages.create(model=model, messages=USER, response_model=Yes, max_tokens=200, max_retries=1), Yes)


class TestAgents:
    @pytest.fixture(params=["chat", "responses"])
    def agent(self, request, openai, model):
        agents = pytest.importorskip("agents")
        agents.set_tracing_disabled(True)
        own = openai.AsyncOpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0)
        kind = agents.OpenAIChatCompletionsModel if request.param == "chat" else agents.OpenAIResponsesModel

        def make(**options):
            settings = agents.ModelSettings(max_tokens=100, **options.pop("settings", {}))
            return agents.Agent(name="a", instructions="Be brief.", model=kind(model=model, openai_client=own),
                                model_settings=settings, **options)
        return agents, make

    def test_run(self, agent):
        agents, make = agent
        assert agents.Runner.run_sync(make(), "Hello").final_output

    def test_tool(self, agent):
        agents, make = agent
        called = []

        @agents.function_tool
        def note(yes: bool) -> str:
            """Notes it."""
            called.append(yes)
            return "noted"
        agents.Runner.run_sync(make(tools=[note], settings={"tool_choice": "required"}), "Hello")
        assert called

    def test_output_type(self, agent):
        agents, make = agent
        pydantic = pytest.importorskip("pydantic")

        class Yes(pydantic.BaseModel):
            yes: bool
        assert isinstance(agents.Runner.run_sync(make(output_type=Yes), "Hello").final_output.yes, bool)

    def test_stream(self, agent):
        agents, make = agent

        async def run():
            streamed = agents.Runner.run_streamed(make(), "Hello")
            return [event.type async for event in streamed.stream_events()]
        assert "raw_response_event" in asyncio.run(run())
