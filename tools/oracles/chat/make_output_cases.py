#!/usr/bin/env python3
"""Model outputs and what they mean, by a reading of the whole text at once.

Writes tests/data/chat/output_cases.json: {tools, cases: [{text, start, reasoning, content, calls: [{name, arguments}],
incomplete}]}. The reader below works with regular expressions on the complete text; it shares nothing with the
engine's parser, which reads pieces.
Usage: tools/oracles/chat/make_output_cases.py
"""
import ast
import json
import pathlib
import random
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
        "location": {"type": "string"}, "days": {"type": "integer"}, "share": {"type": "number"}, "metric": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}}, "options": {"type": "object"},
        "maybe": {"type": ["string", "null"]}, "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "choice": {"enum": ["a", "b"]}, "level": {"enum": [1, 2]}, "any": {}, "ref": {"$ref": "#/$defs/text"}},
        "$defs": {"text": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
TYPES = {"location": {"string"}, "days": {"integer"}, "share": {"number"}, "metric": {"boolean"}, "tags": {"array"},
         "options": {"object"}, "maybe": {"string", "null"}, "either": {"string", "integer"}, "choice": {"string"},
         "level": {"integer"}, "ref": {"string"}}
VALUES = ["Tokyo", "42", "3.5", "true", "True", "None", "null", "", " padded ", "line\nbreak\n", "\"quoted\"", "'single'", "[1, 2]",
          "['a', True]", "{\"a\": {\"b\": 1}}", "{'a': None}", "{\\\"a\\\": 1}", "say \"hi\" \\ there", "日本 😀", "</think>", "<tool_call>",
          "a < b <", "\u0001\t", "[broken", "</tool_call>", "12abc", "-7", "1e3", "<arg_key>k", "</arg_valu", "\"half", "[]", "{}"]
TEXTS = ["", "Hello.", "Let me check", "two\nlines", "日本 😀", "a < b and <b>", "ends with newline\n", "<think", "</tool", "x\n\n"]


def unescape(text):
    return re.sub(r'\\(["\'\\/ntr])', lambda m: {"n": "\n", "t": "\t", "r": "\r"}.get(m[1], m[1]), text)


def kind(value):
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", int: "integer", float: "number", type(None): "null", list: "array", dict: "object"}[type(value)]


def typed(text, types):
    failed = object()

    def attempt(read, source):
        try:
            return read(source)
        except Exception:
            return failed
    blank = " \t\r\n"
    parsed = attempt(json.loads, text.strip(blank))
    if "string" in types:
        if text.startswith('"') and isinstance(parsed, str):
            return parsed
        if parsed is failed or isinstance(parsed, str):
            return text
        found = kind(parsed)
        return parsed if found in types or (found == "integer" and "number" in types) else text
    if parsed is not failed:
        return parsed
    if types:
        for read, source in ((json.loads, unescape(text.strip(blank))), (ast.literal_eval, text.strip(blank))):
            value = attempt(read, source)
            if value is not failed:
                return json.loads(json.dumps(value))
    return text


def read(text, start):
    result = {"reasoning": "", "content": "", "calls": [], "incomplete": False}
    end = re.search(r"<\|role_end\|>|<role>(?:SYSTEM|HUMAN|ASSISTANT|OBSERVATION)</role>", re.sub(
        r"<tool_call>.*?(?:</tool_call>|$)", lambda m: "\0" * len(m[0]), text, flags=re.S))
    if start == "open":
        match = re.search(r"</think>|<tool_call>", text)
        stop = match.start() if match else len(text)
        if end and end.start() < stop:
            stop, match = end.start(), None
        reasoning = re.sub(r"^\n*<think>", "", text[:stop]).strip("\n")
        result["reasoning"] = reasoning
        if not match:
            return result
        text = text[stop:] if match[0] == "<tool_call>" else re.sub(r"^</think>\n*", "", text[stop:])
        if end:
            end = re.search(r"<\|role_end\|>|<role>(?:SYSTEM|HUMAN|ASSISTANT|OBSERVATION)</role>", text)
    before, begin, after = text.partition("<tool_call>")
    if end and end.start() < len(before):
        result["content"] = text[:end.start()]
        return result
    result["content"] = before[:-1] if begin and before.endswith("\n") else before
    while begin:
        head = re.match(r"\s*(.*?)(\n|\\n|(?=<arg_key>)|(?=</tool_call>))", after, flags=re.S)
        if not head:
            result["incomplete"] = True
            break
        rest, arguments = after[head.end():], {}
        pair = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.S)
        while match := pair.match(rest):
            key = match[1].strip()
            declared = TYPES.get(key, set()) if head[1].strip() == "get_weather" else set()
            arguments.setdefault(key, typed(match[2], declared))
            rest = rest[match.end():]
        rest = rest.lstrip()
        if not rest.startswith("</tool_call>"):
            result["incomplete"] = True
            break
        result["calls"].append({"name": head[1].strip(), "arguments": arguments})
        _, begin, after = rest[len("</tool_call>"):].partition("<tool_call>")
    return result


def make_call(rng):
    name = rng.choice(["get_weather", "get_weather", "now", "unknown_tool"])
    text = "<tool_call>" + name + rng.choice(["", "\n", "\\n"])
    for key in rng.sample([*TYPES, "any", "undeclared"], 0 if name == "now" else rng.randrange(4)):
        text += f"<arg_key>{key}</arg_key>{rng.choice(['', chr(10)])}<arg_value>{rng.choice(VALUES)}</arg_value>{rng.choice(['', chr(10)])}"
    return text + rng.choice(["", "\n"]) + "</tool_call>"


def make_case(rng):
    start = rng.choice(["open", "off"])
    text = ""
    if start == "open":
        text += rng.choice(["", "<think>", "\n", "\n<think>"]) + rng.choice(["I think.", "a\n\nb", "x < y", "日本"]) + rng.choice(["", "\n", "\n\n"])
        text += rng.choice(["</think>", "</think>\n", "</think>\n\n", ""])
    if "</think>" in text or start == "off":
        text += rng.choice(TEXTS)
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        text += rng.choice(["", "\n"]) + make_call(rng)
    if rng.random() < 0.2:
        text = text[:rng.randrange(len(text) + 1)]
    elif rng.random() < 0.3:
        text += rng.choice(["<|role_end|>", "<role>HUMAN</role>Hi", "<|role_end|><role>HUMAN</role>"])
    return {"text": text, "start": start} | read(text, start)


def main():
    rng = random.Random(5)
    cases = [make_case(rng) for _ in range(600)]
    path = ROOT / "tests/data/chat/output_cases.json"
    path.write_text(json.dumps({"tools": TOOLS}, ensure_ascii=False)[:-1] + ',\n"cases": [\n' +
                    ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]}\n")
    print(len(cases), "cases,", sum(len(c["calls"]) for c in cases), "calls,", sum(c["incomplete"] for c in cases), "incomplete")


if __name__ == "__main__":
    main()
