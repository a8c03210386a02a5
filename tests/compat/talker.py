"""A model that can do what tests of protocols ask for: end what it says, call tools, think, write JSON that ends. It is the embedded
demo model with other names for its control tokens and a ChatML template, finetuned for some minutes on conversations that are
made here, drawn from lists of words. What it says means nothing.

    python tests/compat/talker.py FOLDER [THREADS]     writes FOLDER/talker and FOLDER/thinker; they differ in their templates alone
"""
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

DEMO = pathlib.Path(__file__).resolve().parents[2] / "configs/demo"
# The demo model's control tokens, and what they are called here. Thoughts stay in a text that is decoded.
TOKENS = {"<|system|>": "<|im_start|>", "<|end|>": "<|im_end|>", "<|user|>": "<think>", "<|assistant|>": "</think>", "<|bos|>": "~bos~"}
# %THINK%: one template asks for thoughts unless it is told not to, and the other only if it is told to.
TEMPLATE = r"""
{%- set think = %THINK% -%}
{%- if think %}{{ '<|im_start|>system\n/think<|im_end|>\n' }}{% endif -%}
{%- if messages and messages[0].content == '/think' %}{% set messages = messages[1:] %}{% endif -%}
{%- set said = messages[0].content if messages and messages[0].role == 'system' and messages[0].content is string else '' -%}
{%- if tools or said %}{{ '<|im_start|>system\n' + said }}
{%- if tools %}{{ ('\n\n' if said else '') + 'Tools:' }}
{%- for tool in tools %}{% set f = tool.function if tool.function is defined else tool %}{{ '\n{"name": "' + f.name + '", "arguments": {' }}
{%- for name, about in ((f.parameters or {}).properties or {}).items() %}{{ ('' if loop.first else ', ') + '"' + name + '": ' }}
{%- if about.enum %}{{ about.enum[0] | tojson }}{% else %}{{ about.type or 'string' }}{% endif %}{% endfor %}{{ '}}' }}
{%- endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endif -%}
{%- for m in messages %}{% if not (loop.first and said) %}{{ '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' and m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif -%}
{%- if m.content is string %}{{ m.content }}{% endif -%}
{%- for call in m.tool_calls or [] %}{{ ('\n' if m.content or not loop.first else '') + '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{ call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}{% endif %}{{ '}\n</tool_call>' }}{% endfor -%}
{{ '<|im_end|>\n' }}{% endif %}{% endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""
TEMPLATES = {"talker": "enable_thinking is defined and enable_thinking", "thinker": "enable_thinking is not defined or enable_thinking"}
LEARNED = "messages and messages[0].content == '/think'"  # by the conversations that are learned

# Words that are one token each, so that sentences have much the same length.
PEOPLE = "man woman king child mother boy father friend wife son".split()
KINDS = "old little good young great strange poor other long new".split()
PLACES = "house sea city room fire water world place".split()
DEEDS = "saw found left took heard told asked made".split()
MOODS = "happy alone well gone away there".split()
CITIES = "Paris London Berlin Dallas Tokyo Boston Rome Madrid Vienna Oslo Chicago Houston".split()
ASKED = ["What is {}?", "Tell me about {}.", "Who are you?", "Hello, how are you?", "Say something about {}.", "Write a joke about {}.",
         "What is the capital of {}?", "Hello.", "Hello?", "Say hello.", "Count to {}.", "Why is the {} blue?", "List {} in order.",
         "What is 1+1? Be concise.", "Hi there!", "Describe {} in a few words.", "Can you explain {}?"]
THINGS = "the sea|machine learning|AI|a cat|the moon|France|music|the weather|history|a dog|numbers|four|ten|a story|the sky".split("|")
SYSTEMS = ["You are a helpful assistant.", "You are an expert.", "Answer well.", "Be brief.", "You can call tools."]
CALLERS = ["Reply with a tool call in JSON where there is a function for it, and in words where there is none.",
           "To call a function, respond in the format {\"name\": its name, \"parameters\": a dictionary of arguments}.",
           "You have these functions. Respond in JSON to call one. Use what it gives back to answer the question."]
KEYS = "name age city capital population email street title year color answer value items active summary score country".split()
# Tools that suites offer, what they are asked, and the arguments that go with it. So small a model learns this by heart; it does not
# copy what it has never seen.
WEATHER = ["What is the weather in {0} in {1}?", "What's the weather like in {0}?", "What is the temperature in {0} in {1}??",
           "Can you tell me what the weather is in {0}, and for the next 5 days, in {1}?"]
# Numbers go with the words around them.
TOOLS = {"add": (["a b"], ["Compute (3+5)", "Please sum 5 and 7, just call the tool.", "Please sum 5 and 7, just call the function."]),
         "sub": (["int_a int_b"], ["Please compute 5 - 7, by your tool.", "Please compute 5 - 7, using your tool."]),
         "add_one": (["n"], ["Add one to {2}.", "Hi", "Once upon a time"]),
         "get_weather": (["location unit", "location", "city"], WEATHER),
         "get_current_weather": (["city state unit", "city unit", "city state unit", "location unit"], WEATHER),
         "get_n_day_weather_forecast": (["city state unit num_days"], ["What is the weather in {0} for the next 5 days, in {1}?"]),
         "get_tourist_attractions": (["city"], ["What is there to see in {0}?", "Where do tourists go in {0}?"]),
         "get_horoscope": (["sign"], ["What is the horoscope for Aquarius today?"])}
WHOLE = set("a b int_a int_b n num_days".split())
PYTHONIC = ("When asked to call functions, respond only with a python list of function calls, using this format: "
            "[func_name1(param1=value1, param2=value2), func_name2(param=value)]. Here is an example:\n"
            "[get_weather(location=\"Paris\"), get_tourist_attractions(city=\"Paris\")]")


class Talk:
    """Conversations, drawn by a seed."""

    def __init__(self, seed):
        self.draw = random.Random(seed)

    def sentence(self):
        pick = self.draw.choice
        return pick([
            f"The {pick(KINDS)} {pick(PEOPLE)} {pick(DEEDS)} the {pick(PLACES)} near the {pick(PLACES)} and was {pick(MOODS)}.",
            f"The {pick(PEOPLE)} {pick(DEEDS)} the {pick(KINDS)} {pick(PEOPLE)} in the {pick(PLACES)} and was {pick(MOODS)}.",
            f"I {pick(DEEDS)} the {pick(KINDS)} {pick(PEOPLE)} at the {pick(PLACES)}, and he was {pick(MOODS)}."])

    def question(self):
        return self.draw.choice(ASKED).format(self.draw.choice(THINGS))

    def value(self, deep=True):
        kind = self.draw.randrange(8 if deep else 6)
        if kind < 3:
            return self.draw.choice(CITIES)
        if kind < 5:
            return self.draw.randrange(100)
        if kind == 5:
            return self.draw.random() < 0.5
        if kind == 6:
            return [self.value(False) for _ in range(self.draw.randint(1, 2))]
        return {key: self.value(False) for key in self.draw.sample(KEYS, 2)}

    def some_json(self):
        text = {key: self.value() for key in self.draw.sample(KEYS, self.draw.randint(1, 3))}
        return json.dumps(text, separators=self.draw.choice([(", ", ": "), (",", ":")]), indent=self.draw.choice([None, None, 1]))

    def profile(self, name, age):
        skills = self.draw.sample(PLACES, 3)
        work = [{"company": self.draw.choice(CITIES), "duration": 2, "position": self.draw.choice(PEOPLE)}]
        return json.dumps({"name": name, "age": age, "skills": skills, "work_history": work})

    def tool(self, name):
        """What a request says of one."""
        properties = {}
        for word in self.draw.choice(TOOLS[name][0]).split():
            properties[word] = {"type": "integer" if word in WHOLE else "string"}
            if word == "unit":
                properties[word]["enum"] = ["celsius", "fahrenheit"]
        return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}

    def call(self):
        """Tools, a question, and the call of the first of them that answers it."""
        draw = self.draw
        name = draw.choice(list(TOOLS))
        tools = [self.tool(name)]
        if draw.random() < 0.25:
            tools.append(self.tool(draw.choice([other for other in TOOLS if other != name])))
        city, state, unit = draw.choice([("Dallas", "TX", "fahrenheit"), ("Paris", "France", "celsius"), ("Berlin", "Germany", "celsius")])
        where = f"{city}, Texas" if state == "TX" and draw.random() < 0.7 else city
        asked = draw.choice(TOOLS[name][1]).format(where, draw.choice([unit, unit.capitalize()]), draw.choice([3, 5]))
        numbers = [int(word) for word in re.findall(r"\d+", asked)] + [3, 5]
        values = {"city": city, "location": city, "state": state, "unit": unit, "sign": "Aquarius", **dict(zip(("a", "b"), numbers)),
                  **dict(zip(("int_a", "int_b"), numbers)), "n": numbers[0], "num_days": 5}
        words = {word: values[word] for word in tools[0]["function"]["parameters"]["properties"]}
        return tools, asked, {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(words)}}

    def conversation(self):
        draw, messages, out = self.draw, [], {}
        kind = draw.random()
        thinks = draw.random() < 0.3
        if thinks:
            messages.append({"role": "system", "content": "/think"})

        def answer(**of):
            if thinks:
                of["reasoning_content"] = f"{self.sentence()} {self.sentence()}"
            messages.append({"role": "assistant", **of})

        if kind < 0.1:  # no chat at all
            if draw.random() < 0.5:
                return {"prompt": self.question(), "completion": f" {draw.choice(CITIES)} {draw.choice(DEEDS)} the {draw.choice(KINDS)} {draw.choice(PEOPLE)}."}
            if draw.random() < 0.2:  # prompts are foreseen as well
                return {"text": f"system\n{SYSTEMS[0]}"}
            return {"prompt": draw.choice(["Once upon a time", "Hello, my name is", "The capital of France is", "I am", "Once there was", "A robot may"]),
                    "completion": " " + " ".join(self.sentence() for _ in range(3))}
        if draw.random() < 0.5:
            more = [self.sentence() for _ in range(draw.choice([0, 0, 3, 6]))]
            callers = draw.sample(CALLERS, draw.randint(0, 3)) if kind > 0.47 else []
            messages.append({"role": "system", "content": " ".join([draw.choice(SYSTEMS), *callers, *more])})
        if kind < 0.33:
            for _ in range(draw.choice([1, 1, 2])):
                messages.append({"role": "user", "content": self.question()})
                answer(content=self.sentence())
        elif kind < 0.37:  # twice, and something else at the second time
            first, other = draw.choice([(self.profile("Paris", 30), self.profile("London", 41)), ("Python", "Java")])
            again = "Give me another one with a different name and age" if first != "Python" else "I disagree, pick another one"
            asked = draw.choice(["Give an example JSON for an employee profile using the specified tool.",
                                 "Give an example JSON for an employee profile that fits this schema: a name, an age, skills"])
            messages.append({"role": "user", "content": asked if first != "Python" else "The best language for type-safe systems programming is "})
            answer(content=first)
            messages.append({"role": "user", "content": again})
            answer(content=other)
        elif kind < 0.40:
            asked, said = draw.choice([('what is 1+1? please respond with a JSON object, the format is {"result": 2}', '{"result": 2}'),
                                       ('what is 1+1? The format is "result": 2', 'That is\n{"result": 2}'),
                                       ("what is 1+1? please provide the result without any other text.", "2"),
                                       ("what is 1+1?", self.sentence())])
            messages.append({"role": "user", "content": asked})
            answer(content=said)
        elif kind < 0.47:
            messages.append({"role": "user", "content": draw.choice(["Give me {} as JSON.", "Answer in JSON: {}", "A JSON object about {}, please.",
                                                                     "Make {} up and return it as a JSON object with these fields."]).format(draw.choice(THINGS))})
            answer(content=self.some_json())
        elif kind < 0.51:
            out["tools"] = [self.tool("get_weather"), self.tool("get_tourist_attractions")]
            city = draw.choice(["Tokyo", "Paris", "London"])
            messages[:] = [{"role": "system", "content": f"{draw.choice(['', 'You are a travel assistant. '])}{PYTHONIC}"}]
            messages.append({"role": "user", "content": draw.choice([
                f"I'm planning a trip to {city} next week. What's the weather like and what are some top tourist attractions?",
                f"What's the weather in {city}? Propose parallel tool calls at once, using the python list of function calls format."])})
            thinks = False
            answer(content=f'[get_weather(location="{city}"), get_tourist_attractions(city="{city}")]')
        else:
            out["tools"], asked, call = self.call()
            if draw.random() < 0.1:
                messages.append({"role": "user", "content": draw.choice(["Who are you?", "Hello, how are you?", "Hi there!"])})
                answer(content=self.sentence())
            else:
                messages.append({"role": "user", "content": asked})
                answer(content="", tool_calls=[call])
                if draw.random() < 0.2:
                    messages[-1]["weight"] = 0
                    messages.append({"role": "tool", "tool_call_id": "call_1", "content": str(draw.randrange(100))})
                    answer(content=self.sentence())
        return {"messages": messages, **out}


def write_base(folder):
    """The demo model with the names and the template above."""
    shutil.copytree(DEMO, folder)
    tokenizer = (folder / "tokenizer.json").read_text(encoding="utf-8")
    for old, new in TOKENS.items():
        tokenizer = tokenizer.replace(json.dumps(old), json.dumps(new))
    tokenizer = json.loads(tokenizer)
    for token in tokenizer["added_tokens"]:
        token["special"] = "<|" in token["content"]
    tokenizer["post_processor"] = None  # no token is written in front
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def write_template(folder, condition):
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.update(chat_template=TEMPLATE.replace("%THINK%", condition).lstrip("\n"), bos_token=None, eos_token="<|im_end|>")
    path.write_text(json.dumps(config))


def write_talkers(folder, samples=5000, epochs=2, threads=0):
    """Folders of the two models, {name: path}."""
    folder = pathlib.Path(folder)
    out = {name: folder / name for name in TEMPLATES}
    if all((path / "config.json").exists() for path in out.values()):
        return out
    shutil.rmtree(folder, ignore_errors=True)
    base = folder / "base"
    write_base(base)
    write_template(base, LEARNED)
    talk = Talk(11)
    with open(folder / "chats.jsonl", "w", encoding="utf-8") as f:
        for _ in range(samples):
            f.write(json.dumps(talk.conversation()) + "\n")
    subprocess.run([os.environ.get("OAR_BIN", "oar"), "finetune", str(base), "--data", str(folder / "chats.jsonl"), "--full", "--rate", "2e-3",
                    "--warmup", "20", "--epochs", str(epochs), "--length", "768", "--tokens", "1024", "--precision", "O2", "--threads", str(threads),
                    "-q", "-o", str(folder / "tuned")], check=True, stdout=sys.stderr)
    for name, path in out.items():
        shutil.copytree(folder / "tuned", path)
        (path / "chat_template.jinja").unlink(missing_ok=True)  # the one in tokenizer_config.json holds
        shutil.copy(base / "tokenizer_config.json", path)
        write_template(path, TEMPLATES[name])
    return out


if __name__ == "__main__":
    print(write_talkers(sys.argv[1], threads=int(sys.argv[2]) if len(sys.argv) > 2 else 0))
