"""A language model inside this process, through liboar.so."""
from __future__ import annotations

import ctypes
import json
import os
import weakref
from typing import Any, Dict, Generator, Iterator, List, Optional, Sequence, Tuple, Union, overload

from oar._library import ChatOptions, Event, HANDLE, ModelOptions, Sampling, check, library
from oar._wire import Answer, Choice, Chunk, Messages, OarError, ToolCall, Usage

_FINISH = {1: "stop", 2: "length", 3: "cancelled", 4: "deadline", 5: "error", 6: "tool_calls"}
_INTS = {"logprobs", "max_tokens", "min_tokens", "top_k", "n", "ignore_eos", "keep_special_tokens", "include_stop", "timeout_ms"}
_CONSTRAINTS = {"json_object": 1, "json_schema": 2, "regex": 3, "grammar": 4, "choice": 5, "structural_tag": 6}
_FLOATS = {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}


class Model:
    """    with Model("demo") as model:
            print(model.generate("Once upon a time", max_tokens=32).text)
            for chunk in model.stream_chat("Good morrow!"):
                print(chunk.text, end="")

    Options of generating: temperature, top_p, min_p, top_k, repetition_penalty, presence_penalty, frequency_penalty,
    max_tokens, min_tokens, n, seed, stop, ignore_eos, timeout_ms, logprobs (True: each choice has its tokens' natural
    logarithms of probability). One of json_schema (a dictionary or JSON), json_object (True), regex, grammar (GBNF), choice
    (a list of texts) and structural_tag says what the text has to be. A Model may be used by many threads at once.

    Conversations (chat, stream_chat) also take tools, tool_choice, parallel_tool_calls as OpenAI's clients write them, and
    inline_reasoning and thinking_budget. What the model writes of reasoning and calls is then apart from its text: `reasoning`, `tool_calls`.

    speculative="ngram" (prompt lookup) changes no text and takes fewer steps where text repeats; "draft" has draft_model,
    a smaller model of the same tokenizer, say what may follow. num_speculative_tokens,
    prompt_lookup_min and prompt_lookup_max are as of `oar serve`; `usage` counts the drafts that were right and wrong.

    With max_loras (slots) and max_lora_rank, adapters as PEFT saves them are loaded and unloaded at any time (load_lora,
    unload_lora, loras), and lora="NAME" of a generation chooses one; different ones run together.

    Of models with a recurrent state, state_snapshots are bytes for states at which prompts are found again (0: an eighth of
    the cache's), and snapshot_tokens how many tokens lie between two, beside those at the ends of prompts and answers.

    Of models with a latent (MLA), mla="absorbed" is one formula for every row. With "expanded" prompts make keys and values
    of every head, which is faster where steps are long. Prefill then differs from decode by roundings, and an answer that
    comes again in a prompt is computed once more.

    Control tokens in the text of chat messages stay text, unless allow_special_in_text is true.
    """

    def __init__(self, path: str = "demo", *, threads: int = 0, weights: Optional[str] = None, kv: Optional[str] = None,
                 max_context: int = 0, memory_bytes: int = 0, deterministic: bool = False, cache_dir: Optional[str] = None,
                 cache_bytes: int = 0, no_cache: bool = False, allow_special_in_text: bool = False,
                 device: Optional[str] = None, tool_parser: Optional[str] = None,
                 reasoning_parser: Optional[str] = None, speculative: Optional[str] = None,
                 num_speculative_tokens: int = 0, prompt_lookup_min: int = 0, prompt_lookup_max: int = 0,
                 draft_model: Optional[str] = None, max_loras: int = 0, max_lora_rank: int = 0, state_snapshots: int = 0,
                 snapshot_tokens: int = 0, mla: Optional[str] = None):
        self._lib, self._handle = library(), HANDLE()
        o = ModelOptions()
        check(self._lib.oar_model_options_init(o, ctypes.sizeof(o)))
        o.threads, o.max_context, o.memory_bytes, o.deterministic = threads, max_context, memory_bytes, int(deterministic)
        o.weights = weights.encode() if weights else None
        o.kv = kv.encode() if kv else None
        o.mla = mla.encode() if mla is not None else None
        o.cache_dir, o.cache_bytes, o.no_cache = os.fsencode(cache_dir) if cache_dir else None, cache_bytes, int(no_cache)
        o.allow_special_in_text = int(allow_special_in_text)
        o.device = device.encode() if device else None
        o.tool_parser = tool_parser.encode() if tool_parser else None
        o.reasoning_parser = reasoning_parser.encode() if reasoning_parser else None
        o.speculative = speculative.encode() if speculative else None
        o.draft_model = os.fsencode(draft_model) if draft_model else None
        o.num_speculative_tokens = num_speculative_tokens
        o.max_loras, o.max_lora_rank = max_loras, max_lora_rank
        o.state_snapshots, o.snapshot_tokens = state_snapshots, snapshot_tokens
        o.prompt_lookup_min, o.prompt_lookup_max = prompt_lookup_min, prompt_lookup_max
        check(self._lib.oar_model_load(path.encode(), o, self._handle))

    def close(self) -> None:
        if self._handle:
            handle, self._handle = self._handle, HANDLE()
            check(self._lib.oar_model_close(handle))

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.oar_model_close(self._handle)

    def describe(self) -> Dict[str, Any]:
        facts: Dict[str, Any] = json.loads(self._text(self._lib.oar_model_describe, self._handle))
        return facts

    def load_lora(self, name: str, path: Union[str, "os.PathLike[str]"]) -> None:
        """An adapter from a folder on this machine. Blocks until lora=`name` can be asked for; what runs goes on."""
        check(self._lib.oar_model_load_lora(self._handle, name.encode(), os.fsencode(path)))

    def unload_lora(self, name: str) -> None:
        """What runs with it ends with the text it would have had; its slot is free after that."""
        check(self._lib.oar_model_unload_lora(self._handle, name.encode()))

    def loras(self) -> List[Dict[str, Any]]:
        """The loaded adapters by name, each with name, path, rank and the base that it says it is of."""
        facts: List[Dict[str, Any]] = json.loads(self._text(self._lib.oar_model_list_loras, self._handle))
        return facts

    def tokenize(self, text: str, *, add_special: bool = True) -> List[int]:
        data, count = text.encode(), ctypes.c_size_t()
        check(self._lib.oar_tokenize(self._handle, data, len(data), int(add_special), None, 0, count))
        ids = (ctypes.c_int32 * count.value)()
        check(self._lib.oar_tokenize(self._handle, data, len(data), int(add_special), ids, count.value, count))
        return list(ids)

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        array = (ctypes.c_int32 * len(ids))(*ids)
        return self._text(self._lib.oar_detokenize, self._handle, array, len(ids), int(skip_special))

    def chat_prompt(self, messages: Messages) -> str:
        return self._text(self._lib.oar_chat_prompt, self._handle, _messages(messages), None)

    @overload
    def generate(self, prompt: Union[str, Sequence[int]], **options: Any) -> Answer: ...

    @overload
    def generate(self, prompt: Union[List[str], List[List[int]]], **options: Any) -> List[Answer]: ...

    def generate(self, prompt: Any, **options: Any) -> Any:
        """Of one prompt (a text or token ids) its answer; of a list of prompts, which run together, the list of theirs."""
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            streams = [self.stream(p, **options) for p in prompt]
            try:
                return [_collect(s) for s in streams]
            finally:
                for s in streams:
                    s.close()
        return _collect(self.stream(prompt, **options))

    def chat(self, messages: Messages, **options: Any) -> Answer:
        return _collect(self.stream_chat(messages, **options))

    def stream(self, prompt: Union[str, Sequence[int]], **options: Any) -> Generator[Chunk, None, None]:
        sampling, _keep = _sampling(self._lib, options)
        handle = HANDLE()
        if isinstance(prompt, str):
            check(self._lib.oar_generate_text(self._handle, prompt.encode(), sampling, None, None, handle))
        else:
            ids = (ctypes.c_int32 * len(prompt))(*prompt)
            check(self._lib.oar_generate_tokens(self._handle, ids, len(prompt), sampling, None, None, handle))
        return self._events(handle)

    def stream_chat(self, messages: Messages, **options: Any) -> Generator[Chunk, None, None]:
        chat = _chat_options(self._lib, options)
        sampling, _keep = _sampling(self._lib, options)
        handle = HANDLE()
        check(self._lib.oar_generate_conversation(self._handle, _messages(messages), chat, sampling, None, None, handle))
        return self._events(handle)

    def _events(self, handle: HANDLE) -> Generator[Chunk, None, None]:
        events = self._read(handle)
        weakref.finalize(events, self._lib.oar_generation_close, handle)  # also where nobody took the first
        return events

    def _read(self, handle: HANDLE) -> Generator[Chunk, None, None]:
        event = ctypes.POINTER(Event)()
        try:  # leaving early closes the generation, and that cancels it
            while True:
                check(self._lib.oar_generation_next(handle, -1, event))
                if not event:
                    return
                e = event.contents
                if e.finish == 5:
                    raise OarError(e.message.decode(), self._lib.oar_status_name(e.status).decode())
                usage = Usage(e.prompt_tokens, e.completion_tokens, e.cached_tokens, e.accepted_prediction_tokens,
                              e.rejected_prediction_tokens) if e.finish else None
                text = ctypes.string_at(e.text, e.text_length).decode()
                logprobs = e.logprobs[:e.token_count] if e.logprobs else None
                reasoning = ctypes.string_at(e.reasoning, e.reasoning_length).decode()
                calls = [ToolCall(c.id.decode(), c.name.decode(), c.arguments.decode(), c.index)
                         for c in e.tool_calls[:e.tool_call_count]]
                if text or e.finish or logprobs or reasoning or calls:
                    yield Chunk(text, e.index, _FINISH.get(e.finish), usage, e.tokens[:e.token_count], logprobs, reasoning, calls)
        finally:
            self._lib.oar_generation_close(handle)

    def _text(self, function: Any, *arguments: Any) -> str:
        length = ctypes.c_size_t()
        check(function(*arguments, None, 0, length))
        buffer = ctypes.create_string_buffer(length.value + 1)
        check(function(*arguments, buffer, length.value + 1, length))
        return buffer.raw[:length.value].decode()


def _messages(messages: Messages) -> bytes:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return json.dumps(list(messages)).encode()


# Takes its own out of `options`; the others are of sampling.
def _chat_options(lib: Any, options: Dict[str, Any]) -> ChatOptions:
    o = ChatOptions()
    check(lib.oar_chat_options_init(o, ctypes.sizeof(o)))
    if (tools := options.pop("tools", None)) is not None:
        o.tools = json.dumps(tools).encode()
    if (choice := options.pop("tool_choice", None)) is not None:
        o.tool_choice = json.dumps(choice).encode()
    o.parallel_tool_calls = int(options.pop("parallel_tool_calls", True))
    o.inline_reasoning = int(options.pop("inline_reasoning", False))
    o.thinking_budget = int(options.pop("thinking_budget", -1))
    return o


# Also gives what the structure points at, to be kept until the call has copied it.
def _sampling(lib: Any, options: Dict[str, Any]) -> Tuple[Sampling, List[Any]]:
    s = Sampling()
    keep: List[Any] = []
    check(lib.oar_sampling_init(s, ctypes.sizeof(s)))
    for name, value in options.items():
        if name in _INTS:
            setattr(s, name, int(value))
        elif name in _FLOATS:
            setattr(s, name, float(value))
        elif name == "seed":
            s.has_seed, s.seed = 1, value
        elif name == "lora":
            s.lora = None if value is None else value.encode()
        elif name == "stop":
            stops = [value] if isinstance(value, str) else list(value)
            array = (ctypes.c_char_p * len(stops))(*(t.encode() for t in stops))
            keep.append(array)
            s.stop, s.stop_count = array, len(stops)
        elif name == "stop_token_ids":
            ids = (ctypes.c_int32 * len(value))(*value)
            keep.append(ids)
            s.stop_tokens, s.stop_token_count = ids, len(value)
        elif name == "logit_bias":  # by token id
            ids = (ctypes.c_int32 * len(value))(*(int(k) for k in value))
            added = (ctypes.c_float * len(value))(*value.values())
            keep += [ids, added]
            s.bias_tokens, s.bias_values, s.bias_count = ids, added, len(value)
        elif name in _CONSTRAINTS:
            if not value and name != "json_schema":
                continue
            if s.constraint_kind:
                raise TypeError(f"{name}: a generation has one constraint")
            s.constraint_kind = _CONSTRAINTS[name]
            s.constraint = (value if isinstance(value, str) else json.dumps(value)).encode()
        else:
            known = _INTS | _FLOATS | {"seed", "lora", "stop", "stop_token_ids", "logit_bias"} | set(_CONSTRAINTS)
            raise TypeError(f"there is no option '{name}'; options are {', '.join(sorted(known))}")
    return s, keep


def _collect(chunks: Iterator[Chunk]) -> Answer:
    choices: Dict[int, Choice] = {}
    usage = Usage()
    for chunk in chunks:
        choices.setdefault(chunk.index, Choice()).add(chunk)
        if chunk.usage:  # each choice tells the prompt's tokens and its own
            usage = Usage(chunk.usage.prompt_tokens, usage.completion_tokens + chunk.usage.completion_tokens,
                          max(usage.cached_tokens, chunk.usage.cached_tokens),
                          usage.accepted_prediction_tokens + chunk.usage.accepted_prediction_tokens,
                          usage.rejected_prediction_tokens + chunk.usage.rejected_prediction_tokens)
    ordered = [choices[k] for k in sorted(choices)]
    return Answer(ordered[0].text, ordered[0].finish_reason, usage, {}, ordered)
