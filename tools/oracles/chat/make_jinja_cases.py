#!/usr/bin/env python3
"""Renders templates with python3-jinja2, set up as Hugging Face's renderer sets it up, and stores the results.

Writes tests/data/chat/jinja_cases.json: a list of {name, template, context, output | error, variables}. "error" says that
rendering or parsing fails; its text is Python's and only for the reader.
Usage: tools/oracles/chat/make_jinja_cases.py  (needs python3-jinja2; the stored file came from version 3.1.2)
"""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox

from conversations import conversations
from jinja_features import FEATURES

ROOT = pathlib.Path(__file__).resolve().parents[3]
NOW = datetime.datetime(2026, 3, 7, 9, 5, 2)


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what an assistant wrote; it renders as its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    result = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    result.filters["tojson"] = tojson
    result.globals["raise_exception"] = raise_exception
    result.globals["strftime_now"] = NOW.strftime
    return result


ENVIRONMENT = environment()


def case(name, template, context):
    result = {"name": name, "template": template, "context": context}
    try:
        result["output"] = ENVIRONMENT.from_string(template).render(**json.loads(json.dumps(context)))
        result["variables"] = sorted(jinja2.meta.find_undeclared_variables(ENVIRONMENT.parse(template)) - set(ENVIRONMENT.globals))
    except Exception as error:  # whatever goes wrong is an error of the template
        result["error"] = f"{type(error).__name__}: {error}"
    return result


def main():
    bundled = (ROOT / "models/austen-5m/chat_template.jinja").read_text()
    cases = [case(f"feature {number}", template, context) for number, (template, context) in enumerate(FEATURES)]
    for number, context in enumerate(conversations(60)):
        cases.append(case(f"bundled template {number}", "@bundled", context) |
                     {k: v for k, v in case("", bundled, context).items() if k not in ("name", "template")})
    path = ROOT / "tests/data/chat/jinja_cases.json"
    path.write_text("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")
    errors = sum("error" in c for c in cases)
    print(f"{len(cases)} cases, {errors} of them errors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
