#!/usr/bin/env python3
"""Writes docs/cli.md, docs/tetrad.1 and deploy/completions/tetrad from what `tetrad reference` says of itself."""
import json
import re
import subprocess
import sys

from generated import arguments, settle

HEAD = """# Command line

TL;DR: every command and option of `tetrad`, as the program describes itself. Written by `scripts/make_cli_docs.py`; `man tetrad` has the same.

Options that stand together are one option under several names, those of other programs among them. Exit codes: 0 done, 1 a failure at run
time, 2 a command line, request or checkpoint that cannot be used, 3 a verification that failed. `-h`, `--help` goes with every command.
"""

MAN_HEAD = r""".\" Written by scripts/make_cli_docs.py from what the program says of itself.
.TH TETRAD 1 "" "%s" "User Commands"
.SH NAME
tetrad \- inference for qwen4_exp checkpoints
.SH SYNOPSIS
.B tetrad
.I COMMAND
.RI [ OPTION ]...
.SH DESCRIPTION
.B tetrad
runs language models of the line qwen4_exp from checkpoints in the published layout, on the CPU or a GPU: from the command line, as a
conversation, or as a server with the HTTP interfaces of OpenAI and Anthropic.
Answers go to standard output, everything else to standard error.
"""

MAN_TAIL = r""".SH EXIT STATUS
.TP
.B 0
Done. Of
.BR "tetrad serve" :
told to stop, and every request had its answer.
.TP
.B 1
A failure at run time, or a server that was stopped with requests unfinished.
.TP
.B 2
A command line, request or checkpoint that cannot be used.
.TP
.B 3
A verification that failed, or had nothing to compare.
.SH SIGNALS
.B tetrad serve
takes no more requests after SIGTERM or SIGINT, gives those that run
.B \-\-shutdown\-timeout
seconds, and ends at once at a second signal.
.SH EXAMPLES
.nf
tetrad run \-p "What is 12 + 30?" \-\-temp 0
tetrad serve \-m DIR \-\-port 9000 \-\-api\-key\-file KEYS
curl http://127.0.0.1:9000/health
.fi
"""


def walk(command, path=()):
    """(path, command) of every command that can be run by itself."""
    path = (*path, command["name"])
    if len(path) > 1 and (len(command["options"]) > 1 or not command["commands"]):
        yield path, command
    for below in command["commands"]:
        yield from walk(below, path)


def value(option):
    """(name, [choices] or None, "range" or "") of what an option takes, from the program's 'N:INT in [0 - 1024]' or 'NAME:{a,b}'."""
    name, _, rest = option["value"].partition(":")
    if choices := re.fullmatch(r"\{(.*)\}", rest):
        return name, choices.group(1).split(","), ""
    if bounds := re.fullmatch(r"\w+ in \[(\S+) - (\S+)\]", rest):
        return name, None, f"{int(bounds.group(1)):,} to {int(bounds.group(2)):,}"
    return (f"{name}:{rest}" if rest else name), None, ""


def remarks(option, code):
    """The description and what goes with it; code(text) marks up a name."""
    words = [option["description"]]
    if option["required"]:
        words.append("Required")
    if option["repeatable"] and "repeated" not in option["description"]:
        words.append("May be repeated")
    if option["needs"]:
        words.append("With " + ", ".join(map(code, option["needs"])))
    if option["excludes"]:
        words.append("Not with " + ", ".join(map(code, option["excludes"])))
    if option["variable"]:
        words.append("Environment: " + code(option["variable"]))
    return ". ".join(words)


def is_help(option):
    return "--help" in option["names"]


def page(reference):
    def code(text):
        return "`" + text.replace("|", "\\|") + "`"

    out = [HEAD]
    for path, command in walk(reference):
        out.append(f"\n## {' '.join(path)}\n{command['description']}.\n")
        rows = [option for option in command["options"] if not is_help(option)]
        if rows:
            out.append("\n| option | takes | default | does |\n|---|---|---|---|\n")
        for option in rows:
            name, choices, bounds = value(option)
            takes = ", ".join(map(code, choices)) if choices else ", ".join(filter(None, [code(name) if name else "", bounds]))
            default = code(option["default"]) if option["default"] else ""
            names = ", ".join(map(code, option["names"]))
            out.append(f"| {names} | {takes} | {default} | {remarks(option, code).replace('|', chr(92) + '|')} |\n")
        if command["footer"]:
            out.append(f"\n{command['footer'].strip()}\n")
    return "".join(out)


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def manual(reference, version):
    out = [MAN_HEAD % version, ".SH COMMANDS\n"]
    for path, command in walk(reference):
        out.append(f".TP\n.B {roff(' '.join(path[1:]))}\n{roff(command['description'])}.\n")
    for path, command in walk(reference):
        rows = [option for option in command["options"] if not is_help(option)]
        if not rows:
            continue
        out.append(f".SH OPTIONS OF {roff(' '.join(path).upper())}\n")
        for option in rows:
            name, choices, bounds = value(option)
            takes = " \\fI" + roff("|".join(choices) if choices else name) + "\\fR" if name else ""
            out.append(".TP\n" + ", ".join(f"\\fB{roff(flag)}\\fR" for flag in option["names"]) + takes + "\n")
            tail = [f"From {bounds}."] if bounds else []
            tail += [f"Default: {option['default']}."] if option["default"] else []
            out.append(roff(remarks(option, str)) + ".\n" + "".join(roff(text) + "\n" for text in tail))
        if command["footer"]:
            out.append(".PP\n" + "".join(roff(line) + "\n" for line in command["footer"].strip().splitlines()))
    out.append(MAN_TAIL)
    variables = {option["variable"]: option["names"][-1] for _, command in walk(reference) for option in command["options"] if option["variable"]}
    if variables:
        out.append(".SH ENVIRONMENT\n")
        out += [f".TP\n.B {roff(name)}\nAs {roff(flag)}.\n" for name, flag in sorted(variables.items())]
    return "".join(out)


def completion(reference):
    """A completion of bash: commands, flags, and the values of flags that have few or are files."""
    commands, values = {}, {}
    for path, command in [(("tetrad",), reference), *walk(reference), *((("tetrad", below["name"]), below) for below in reference["commands"])]:
        words = [flag for option in command["options"] for flag in option["names"] if flag.startswith("-")]
        commands[" ".join(path[1:])] = [below["name"] for below in command["commands"]] + words
        for option in command["options"]:
            name, choices, _ = value(option)
            kind = " ".join(choices) if choices else {"FILE": "-f", "PATH": "-f", "LIST_OR_FILE": "-f", "DIR": "-d"}.get(name, "-" if name else None)
            if kind is not None:
                for flag in option["names"]:
                    values.setdefault(kind, set()).add(flag)
    lines = ["# Completion of tetrad for bash. Written by scripts/make_cli_docs.py.\n", "_tetrad() {\n",
             '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD - 1]}" command=""\n', "  COMPREPLY=()\n",
             '  case "$before" in\n']
    for kind, flags in sorted(values.items()):
        answer = {"-": "return", "-f": 'COMPREPLY=($(compgen -f -- "$word")); return', "-d": 'COMPREPLY=($(compgen -d -- "$word")); return'}
        text = answer.get(kind, f'COMPREPLY=($(compgen -W "{kind}" -- "$word")); return')
        lines.append(f"    {' | '.join(sorted(flag for flag in flags if flag.startswith('-')) or ['-'])}) {text} ;;\n")
    lines += ["  esac\n", '  ((COMP_CWORD > 1)) && command="${COMP_WORDS[1]}"\n',
              '  [[ "$command" == bench ]] && ((COMP_CWORD > 2)) && command="bench ${COMP_WORDS[2]}"\n', '  case "$command" in\n']
    for name, words in sorted(commands.items()):
        lines.append(f"    '{name}') COMPREPLY=($(compgen -W \"{' '.join(words)}\" -- \"$word\")) ;;\n")
    lines += ["  esac\n", "}\n", "complete -o filenames -F _tetrad tetrad\n"]
    return "".join(lines)


def main():
    options = arguments(__doc__, binary=True)

    def said(*words):
        return subprocess.run([options.tetrad, *words], capture_output=True, text=True, check=True, timeout=60).stdout

    reference, version = json.loads(said("reference")), said("--version").strip()
    return settle({"docs/cli.md": page(reference), "docs/tetrad.1": manual(reference, version),
                   "deploy/completions/tetrad": completion(reference)}, options)


if __name__ == "__main__":
    sys.exit(main())
