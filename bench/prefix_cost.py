#!/usr/bin/env python3
"""What keeping prefixes costs where nothing is found: processor time of two servers for the same new prompts, in turn.

    bench/prefix_cost.py PORT_WITHOUT PID_WITHOUT PORT_WITH PID_WITH [TOKENS] [ROUNDS]

Processor time, since other work on the machine changes how long a prompt takes and hardly what it takes."""

import glob
import http.client
import json
import random
import statistics
import sys

SERVERS = [(int(sys.argv[1]), int(sys.argv[2])), (int(sys.argv[3]), int(sys.argv[4]))]
TOKENS = int(sys.argv[5]) if len(sys.argv) > 5 else 4096
ROUNDS = int(sys.argv[6]) if len(sys.argv) > 6 else 5


def processor_seconds(pid):
    return sum(int(open(path).read().split()[0]) for path in glob.glob(f"/proc/{pid}/task/*/schedstat")) / 1e9


def seconds_of(server, prompt):
    port, pid = server
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    before = processor_seconds(pid)
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = json.loads(connection.getresponse().read())
    cached = (reply["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    assert reply["usage"]["prompt_tokens"] == TOKENS and cached == 0, reply["usage"]
    return processor_seconds(pid) - before


ratios = []
for seed in range(ROUNDS + 1):
    dice = random.Random(seed)
    prompt = [dice.randrange(1000) for _ in range(TOKENS)]
    order = [0, 1] if seed % 2 == 0 else [1, 0]
    seconds = {which: seconds_of(SERVERS[which], prompt) for which in order}
    if seed == 0:
        continue  # weights are read
    ratios.append(seconds[1] / seconds[0])
    print(f"without {seconds[0]:.2f} s, with {seconds[1]:.2f} s, ratio {ratios[-1]:.3f}", flush=True)
print(f"median ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
