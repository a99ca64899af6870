#!/usr/bin/env python3
"""Validates JSON documents: each line of the file is a JSON array [schema, text]. Prints what is wrong with those that are not
valid, one a line. Uses python3-jsonschema, another implementation than the code under test."""

import datetime
import json
import sys

import jsonschema


def no_repeated_keys(pairs):
    if len(dict(pairs)) != len(pairs):
        raise ValueError("repeated key")
    return dict(pairs)


def is_date(text):
    # Python has no year 0; it is a leap year, as 2000 is.
    return not isinstance(text, str) or datetime.date.fromisoformat(text.replace("0000-", "2000-", 1)) is not None


# Other formats are checked by packages that are not there, or by rules of other drafts.
FORMATS = jsonschema.FormatChecker(formats=("email", "ipv4", "ipv6", "uuid"))
FORMATS.checks("date", raises=ValueError)(is_date)


def complaint(schema, text):
    try:
        document = json.loads(text, object_pairs_hook=no_repeated_keys)
    except ValueError as error:
        return f"no JSON: {error}"
    validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    for error in validator.iter_errors(document):
        return error.message
    return None


with open(sys.argv[1], encoding="utf-8") as lines:
    for number, line in enumerate(lines, 1):
        schema, text = json.loads(line)
        problem = complaint(schema, text)
        if problem:
            print(f"{number}: {problem[:200]!r}: {text[:300]!r}")
print("done")
