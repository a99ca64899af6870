#!/usr/bin/env python3
"""What a json_schema costs in a running server: processor time of the process for each token, free and constrained answers in turn.

    bench/mask_cost.py PORT PID [ROUNDS] [TOKENS]

Processor time, since other work on the machine changes how long a step takes and hardly what it takes."""

import glob
import http.client
import json
import statistics
import sys

PORT, PID = int(sys.argv[1]), int(sys.argv[2])
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 6
TOKENS = int(sys.argv[4]) if len(sys.argv) > 4 else 24

DAY = {"type": "object", "additionalProperties": False, "required": ["date", "low", "high", "summary"],
       "properties": {"date": {"type": "string", "format": "date"}, "low": {"type": "number"}, "high": {"type": "number"},
                      "summary": {"type": "string", "minLength": 100, "maxLength": 200}}}
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["city", "days"],
          "properties": {"city": {"type": "string", "minLength": 3}, "unit": {"enum": ["celsius", "fahrenheit"]},
                         "days": {"type": "array", "minItems": 200, "items": DAY},
                         "notes": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}


def processor_seconds():
    return sum(int(open(path).read().split()[0]) for path in glob.glob(f"/proc/{PID}/task/*/schedstat")) / 1e9


def milliseconds_a_token(schema, seed):
    body = {"prompt": "The weather", "max_tokens": TOKENS, "seed": seed, "temperature": 1}
    if schema:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
    else:
        body["ignore_eos"] = True
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    before = processor_seconds()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = json.loads(connection.getresponse().read())
    return (processor_seconds() - before) * 1e3 / reply["usage"]["completion_tokens"]


milliseconds_a_token(False, 0)
print(f"first with the schema: {milliseconds_a_token(True, 0):.2f} ms a token")
free, constrained = [], []
for seed in range(1, ROUNDS + 1):
    free.append(milliseconds_a_token(False, seed))
    constrained.append(milliseconds_a_token(True, seed))
    print(f"free {free[-1]:.2f} ms, constrained {constrained[-1]:.2f} ms, ratio {constrained[-1] / free[-1]:.3f}", flush=True)
print(f"median: free {statistics.median(free):.2f} ms, constrained {statistics.median(constrained):.2f} ms, "
      f"ratio {statistics.median(c / f for c, f in zip(constrained, free)):.3f}")
