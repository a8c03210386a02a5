#!/usr/bin/env python3
"""What Python's jinja2 makes of our own chat templates: generate_chat_templates.py. Renders each template of
tests/data/chat_templates with each conversation of cases.json there, with and without a prompt for the answer, in the
environment of tests/text/jinja_oracle.py, and writes expected.jsonl beside them. Needs `pip install jinja2`."""
import datetime
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/text"))
from jinja_oracle import environment

FOLDER = ROOT / "tests/data/chat_templates"


def main():
    env, rows = environment(datetime.datetime(2026, 1, 15, 9, 30)), []
    cases = json.loads((FOLDER / "cases.json").read_text())
    for path in sorted(FOLDER.glob("*.jinja")):
        template = env.from_string(path.read_text())
        for name, case in cases.items():
            for ask in (True, False):
                row = {"template": path.name, "case": name, "add_generation_prompt": ask, "bos_token": "<s>", "eos_token": "</s>",
                       "now": "2026-01-15T09:30"}
                try:
                    row["expected"] = template.render(messages=case["messages"], tools=case.get("tools"), add_generation_prompt=ask,
                                                      bos_token="<s>", eos_token="</s>")
                except Exception as e:  # whatever Python raises is an error for us
                    row["error"] = f"{type(e).__name__}: {e}"[:200]
                rows.append(json.dumps(row, ensure_ascii=False))
    (FOLDER / "expected.jsonl").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
