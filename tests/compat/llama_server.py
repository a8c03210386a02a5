#!/usr/bin/env python3
"""Stands where the tests of llama.cpp's server look for their server (LLAMA_SERVER_BIN_PATH), and becomes `oar serve`.

Translates the options of llama-server. One without a counterpart is noted, a line of COMPAT_NOTES each; one whose absence
would make the test meaningless ends the start (exit code 3), with a note. COMPAT_MODELS says which file stands for which
model: lines NAME=PATH, where NAME is as --hf-repo, --hf-repo:--hf-file, --model or --model-draft write it.
"""
import datetime
import json
import os
import sys
import tempfile

# Options with a value, and those without, that change nothing a client of `oar serve` could see.
IGNORED = {"--ubatch-size": 1, "--n-gpu-layers": 1, "--cont-batching": 0, "--no-jinja": 0, "--jinja": 0, "--offline": 0, "-fa": 1,
           "--embedding": 0, "--reranking": 0, "--cache-ram": 1, "--swa-full": 0, "--no-mmproj": 0,
           "--no-models-autoload": 0, "--backend_sampling": 0, "--no-cache-idle-slots": 0, "--slots": 0}
# Those that would change something, and have no counterpart: noted.
NOTED = {"--slot-save-path": 1, "--grp-attn-n": 1, "--grp-attn-w": 1, "--context-shift": 0,
         "--media-path": 1, "-ctv": 1,
         "--reasoning-format": 1}
# Those without which the test says nothing of this server: refused.
REFUSED = {"--mmproj-url": 1, "--model-url": 1, "--models-preset": 1, "--ui-mcp-proxy": 0, "--tools": 1, "--tools-runtime": 1,
           "--mcp-servers-config": 1, "--mcp-servers-json": 1, "--spec-synth-len": 1, "--spec-synth-rates": 1, "--lora": 1}
READ = {"--port": 1, "--host": 1, "--model": 1, "--model-draft": 1, "--hf-repo": 1, "--hf-file": 1, "--models-dir": 1,
        "--models-max": 1, "--batch-size": 1, "--threads": 1, "--kv-unified": 0, "--alias": 1, "--ctx-size": 1, "--parallel": 1,
        "-ctk": 1, "--spec-type": 1, "--api-key": 1, "--spec-draft-n-max": 1, "--spec-draft-n-min": 1,
        "--cors-origins": 1, "--temp": 1, "--seed": 1, "--n-predict": 1, "--chat-template": 1, "--chat-template-file": 1,
        "--verbose": 0, "--reasoning": 1, "--metrics": 0, "--no-slots": 0, "--no-ui": 0, "--tags": 1, "--sleep-idle-seconds": 1,
        "--pooling": 1}
WIDTH = {**IGNORED, **NOTED, **REFUSED, **READ}


# Templates that llama-server knows by name.
TEMPLATES = {
    "chatml": "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
              "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama3": "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
              "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "command-r": "{% set names = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} %}{% for m in messages %}"
                 "<|START_OF_TURN_TOKEN|><|{{ names[m.role] }}_TOKEN|>{{ m.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}"
                 "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"}


def note(text):
    print(f"llama_server: {text}", flush=True)
    if os.environ.get("COMPAT_NOTES"):
        with open(os.environ["COMPAT_NOTES"], "a", encoding="utf-8") as f:
            f.write(text + "\n")


def refuse(text):
    note(f"refused: {text}")
    sys.exit(3)


def read_options(words):
    """{option: [value, ...]}"""
    out, i = {}, 0
    while i < len(words):
        name = words[i]
        if name not in WIDTH:
            refuse(f"{name}, which nobody here knows")
        if i + WIDTH[name] >= len(words):
            refuse(f"{name} without its value")
        out.setdefault(name, []).append(words[i + 1] if WIDTH[name] else "")
        i += 1 + WIDTH[name]
    return out


def model_path(*names):
    """The file that stands for the first of these names that has one."""
    known = dict(line.split("=", 1) for line in os.environ.get("COMPAT_MODELS", "").splitlines() if "=" in line)
    for name in names:
        if name in known:
            return known[name]
        if os.path.exists(name):
            return name
    refuse(f"no file for the model {names[0]}")


def is_encoder(model):
    config = os.path.join(model, "config.json")
    return os.path.isdir(model) and os.path.exists(config) and "Bert" in open(config, encoding="utf-8").read()


def write(text, name):
    with tempfile.NamedTemporaryFile("w", prefix=f"oar-{name}-", delete=False) as file:
        file.write(text)
    return file.name


def language_options(first):
    slots = int(first.get("--parallel", 4))
    out = ["--max-sequences", str(slots), "--kv", {"q8_0": "int8"}.get(first.get("-ctk", ""), "f16")]
    if "--ctx-size" in first:
        out += ["--max-context", str(int(first["--ctx-size"]) // (1 if "--kv-unified" in first else slots))]
    if "--batch-size" in first:
        out += ["--max-batch-tokens", first["--batch-size"]]
    if "--model-draft" in first:
        out += ["--speculative", "draft", "--draft-model", model_path(first["--model-draft"]),
                "--num-speculative-tokens", first.get("--spec-draft-n-max", "8")]
    elif first.get("--spec-type", "none") != "none":
        out += ["--speculative", "ngram"]
    for theirs, ours in (("--temp", "temperature"), ("--seed", "seed"), ("--n-predict", "max_tokens")):
        if theirs in first and float(first[theirs]) >= 0:
            out += ["--request-default", f"{ours}={first[theirs]}"]
    out += ["--request-default", "prefill_assistant=true"]
    if "--verbose" in first:
        out += ["--request-default", "verbose=true"]
    # What it gives to every template.
    variables = {"enable_thinking": first.get("--reasoning") != "off", "date_string": datetime.date.today().strftime("%d %b %Y")}
    out += ["--request-default", f"chat_template_kwargs={json.dumps(variables)}"]
    # It writes the model's first token before a conversation, and takes ChatML where the model has no template.
    template = first.get("--chat-template") or ("" if "--chat-template-file" in first else "chatml")
    if template:
        # It puts the first token in front where a template does not.
        own = "" if "bos_token" in template else "{{ bos_token }}"
        out += ["--chat-template", write(TEMPLATES.get(template, own + template), "template")]
        # It has a way of its own to write calls and thoughts for models whose templates know none.
        out += ["--tool-parser", "hermes", "--reasoning-parser", "think"]
    elif "--chat-template-file" in first:
        out += ["--chat-template", first["--chat-template-file"]]
    return out


def translate(given):
    """The command line of `oar serve`."""
    first = {name: values[0] for name, values in given.items()}
    for name in given:
        if name in REFUSED:
            refuse(name)
        if name in NOTED:
            note(f"without effect: {name}")
    repo, file = first.get("--hf-repo"), first.get("--hf-file")
    if "--model" in first:
        model = model_path(first["--model"])
    elif repo:
        model = model_path(*([f"{repo}:{file}"] if file else []), repo)
    else:
        model = model_path(first.get("--models-dir", "router"))
    is_folder = repo is None and os.path.isdir(model)
    hosts = [f"[{host}]" if ":" in host else host for host in first.get("--host", "127.0.0.1").split(",")]
    command = [os.environ.get("OAR_BIN", "oar"), "serve", model, "--http", ",".join(f"{host}:{first['--port']}" for host in hosts), "--grpc", "",
               "--drain-timeout", "2", "--any-model-name"]
    if "--alias" in first and not is_folder:
        names = sorted(set(first["--alias"].split(",")))  # it answers with the first of them in order
        command += ["--name", names[0]]
        if len(names) > 1:
            command += ["--alias", ",".join(names)]
    if "--tags" in first and not is_folder:
        command += ["--tag", first["--tags"]]
    for theirs, ours in (("--no-slots", "--no-slots"), ("--no-ui", "--no-page")):
        if theirs in first:
            command += [ours]
    if "--metrics" not in first:
        command += ["--no-metrics"]
    for theirs, ours in (("--threads", "--threads"), ("--models-max", "--max-loaded"),
                         ("--sleep-idle-seconds", "--sleep-idle")):
        if theirs in first:
            command += [ours, first[theirs]]
    # What it tells every page, unless it is told otherwise; credentials only where origins are named.
    origins = first.get("--cors-origins", "*")
    command += ["--cors-origin", origins, "--cors-headers", "*", "--cors-methods", "GET, POST, DELETE, OPTIONS"]
    if origins != "*":
        command += ["--cors-credentials"]
    if "--api-key" in first:
        command += ["--api-key-file", write(first["--api-key"].replace(",", "\n") + "\n", "keys")]
    if is_encoder(model):
        command += ["--pooling", first["--pooling"]] if "--pooling" in first else []
    else:
        command += language_options(first)
    if is_folder:
        command += ["--model-control", "explicit"]
    return command


def main():
    command = translate(read_options(sys.argv[1:]))
    print("llama_server:", " ".join(command), flush=True)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
