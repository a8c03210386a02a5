#!/usr/bin/env python3
"""Manual pages from `--help`: man_pages.py OAR FOLDER VERSION writes oar.1.gz and one oar-COMMAND.1.gz for each command. What
`--help` says is all they say; sections become sections, options become tagged paragraphs, the rest stays as it is."""
import gzip
import os
import re
import subprocess
import sys


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def page(name, help_text, version, others=()):
    """roff of one command. Its help: what it does, `Usage: ...`, sections of two columns, and words at the end."""
    lines = help_text.rstrip().splitlines()
    usage = next(i for i, line in enumerate(lines) if line.startswith("Usage: "))
    summary = " ".join(lines[:usage]).strip()
    out = [f'.TH {name.upper()} 1 "" "Oar {version}" "User Commands"', ".SH NAME",
           f"{escape(name)} \\- {escape(summary.removeprefix('Oar: ').rstrip('.'))}", ".SH SYNOPSIS",
           f"\\fB{escape(lines[usage].removeprefix('Usage: '))}\\fR"]
    filled, tagged = True, False
    for line in lines[usage + 1:]:
        if re.match(r"^[A-Z][^:]*:$", line):  # a section
            out += [] if filled else [".fi"]
            out.append(f'.SH "{escape(line[:-1].upper())}"')
            filled, tagged = line != "Examples:", line != "Examples:"
            out += [] if filled else [".nf"]
            continue
        entry = re.match(r"^  (\S.*?)(?:  +(\S.*))?$", line)
        if tagged and entry:
            # A long name has a line of its own; a short one may be one space before its words.
            what, words = entry.groups()
            if words is None and len(line) > 30 and line[29] == " " and line[:29].strip():
                what, words = line[2:29].strip(), line[30:]
            out += [".TP", f"\\fB{escape(what)}\\fR"] + ([escape(words)] if words else [])
        elif tagged and line.startswith("   "):
            out.append(escape(line.strip()))
        elif not line.strip():
            out += [".PP"] if filled else [""]
            tagged = tagged and filled
        else:
            if not filled and not line.startswith(" "):
                out, filled = [*out, ".fi", ".PP"], True
            tagged = False
            out.append(escape(line if not filled else line.strip()))
    out += [] if filled else [".fi"]
    if others:
        out += [".SH SEE ALSO", ",\n".join(f"\\fB{escape(o)}\\fR(1)" for o in others)]
    return "\n".join(out) + "\n"


def main():
    program, folder, version = sys.argv[1:]

    def help_of(*command):
        return subprocess.run([program, *command, "--help"], capture_output=True, text=True, check=True).stdout

    top = help_of()
    commands = re.findall(r"^  ([a-z]+) ", top.split("Subcommands:")[1].split("\n\n")[0], re.M)
    os.makedirs(folder, exist_ok=True)
    pages = {"oar": page("oar", top, version, [f"oar-{c}" for c in commands])}
    for command in commands:
        pages[f"oar-{command}"] = page(f"oar-{command}", help_of(command), version, ["oar"])
    for name, text in pages.items():
        # Without a time, so that the same help gives the same bytes.
        with open(os.path.join(folder, name + ".1.gz"), "wb") as f, gzip.GzipFile("", "wb", 9, f, 0) as out:
            out.write(text.encode())


if __name__ == "__main__":
    main()
