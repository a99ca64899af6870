#!/usr/bin/env python3
"""Copies a subset of the JSON-Schema-Test-Suite (Debian package json-schema-test-suite, MIT licence) into
tests/data/grammar/suite.json. See README.md."""

import json
import pathlib

SUITE = pathlib.Path("/usr/share/json-schema-test-suite/tests/draft7")
OUT = pathlib.Path(__file__).resolve().parents[3] / "tests/data/grammar/suite.json"
FILES = """additionalItems additionalProperties allOf anyOf boolean_schema const default definitions enum exclusiveMaximum
exclusiveMinimum infinite-loop-detection items maxItems maxLength maxProperties maximum minItems minLength minProperties minimum
multipleOf oneOf pattern properties ref required type contains dependencies if-then-else not patternProperties propertyNames
uniqueItems optional/format optional/ecmascript-regex""".split()


def main():
    groups = []
    for name in FILES:
        path = SUITE / f"{name}.json"
        if not path.exists():
            print("not in this version of the suite:", name)
            continue
        for group in json.loads(path.read_text()):
            tests = [{k: t[k] for k in ("description", "data", "valid")} for t in group["tests"]]
            groups.append({"file": name, "description": group["description"], "schema": group["schema"], "tests": tests})
    with OUT.open("w") as out:
        out.write("[\n" + ",\n".join(json.dumps(g, ensure_ascii=False) for g in groups) + "\n]\n")
    print(len(groups), "groups,", sum(len(g["tests"]) for g in groups), "tests")


main()
