#!/usr/bin/env python3
"""One question to the OpenAI-compatible endpoint, answered as it is generated.

    pip install openai
    python clients/python/chat.py [--url http://127.0.0.1:8000] [--system TEXT] "Tell me a story about a boat."
"""
import argparse
import os
import sys

import openai


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt")
    parser.add_argument("--url", default=os.environ.get("OAR_HTTP", "http://127.0.0.1:8000"))
    parser.add_argument("--model", help="default: the first the server lists")
    parser.add_argument("--system", help="a system message before the question")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    arguments = parser.parse_args()

    client = openai.OpenAI(base_url=arguments.url.rstrip("/") + "/v1", api_key=os.environ.get("OAR_API_KEY", "none"))
    try:
        model = arguments.model or client.models.list().data[0].id
        messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
        messages.append({"role": "user", "content": arguments.prompt})
        usage = None
        for chunk in client.chat.completions.create(model=model, messages=messages, stream=True,
                                                    max_tokens=arguments.max_tokens, temperature=arguments.temperature,
                                                    stream_options={"include_usage": True}):
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
            usage = chunk.usage or usage
        print()
        print(f"[{model}: {usage.prompt_tokens} tokens read, {usage.completion_tokens} written]", file=sys.stderr)
    except openai.OpenAIError as e:
        sys.exit(f"chat.py: {e}")


if __name__ == "__main__":
    main()
