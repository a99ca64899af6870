#!/usr/bin/env python3
"""Kills a server that keeps its prefix cache in a folder, again and again while it answers, and compares every answer that was
finished with that of a server without a cache. Usage: kill_server.py PROGRAM MODEL ROUNDS SEED. Prints one line of JSON."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

program, model, rounds, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
dice = random.Random(seed)
folder = tempfile.mkdtemp()
cache = os.path.join(folder, "cache")
WORDS = "the a of and to in that was her it his had with as for she not be at is on him have but they which said all".split()


class Server:
    def __init__(self, options):
        self.said = open(os.path.join(folder, "said"), "w+b")
        self.process = subprocess.Popen(
            [program, "serve", model, "--port", "0", "--threads", "1"] + options, stderr=self.said)
        for _ in range(600):
            said = self.text()
            port = re.search(r"http://127\.0\.0\.1:(\d+)", said)
            if port:
                break
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended: {said}")
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{port.group(1)}"

    def text(self):
        with open(self.said.name, "rb") as said:
            return said.read().decode()

    def answer(self, prompt):
        body = json.dumps({"prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 2}).encode()
        request = urllib.request.Request(self.url + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            told = json.load(reply)
        return [told["choices"][0]["text"], told["choices"][0]["logprobs"]["token_logprobs"]]

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as reply:
            return int(float(re.search(rf"^calandra_{name} (\S+)$", reply.read().decode(), re.M).group(1)))

    def end(self, how):
        self.process.send_signal(how)
        return self.process.wait(timeout=120)


def words(count):
    return " ".join(dice.choice(WORDS) for _ in range(count))


told = {"finished": 0, "wrong": 0, "read": 0, "refused": 0, "left": [], "bytes": None, "exit": None, "said": ""}
plain = Server(["--prefix-cache", "off"])
options = ["--cache-dir", cache, "--cache-disk", "60MB", "--pool", "64MB"]
conversations = [words(300) for _ in range(3)]
expected = {}
try:
    for number in range(rounds):
        server = Server(options)
        told["left"] += [name for name in os.listdir(cache) if not re.fullmatch(r"lock|[0-9a-f]{64}\.(run|end)", name)]
        prompts = [dice.choice(conversations) + " " + words(dice.randint(1, 60)) for _ in range(4)]
        conversations.append(prompts[0])
        del conversations[3 : max(3, len(conversations) - 6)]
        finished = []

        def ask(prompt):
            try:
                finished.append((prompt, server.answer(prompt)))
            except (OSError, ValueError):
                pass  # killed

        threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        time.sleep(dice.uniform(0.02, 1.2))
        read = server.metric("prefix_tier_read_total")
        server.end(signal.SIGKILL)
        for thread in threads:
            thread.join()
        told["read"] += read
        for prompt, answer in finished:
            if prompt not in expected:
                expected[prompt] = plain.answer(prompt)
            told["finished"] += 1
            told["wrong"] += answer != expected[prompt]
    server = Server(options)
    told["refused"] = server.metric("prefix_tier_refused_total")
    told["bytes"] = [server.metric("prefix_tier_bytes"),
                     sum(os.path.getsize(os.path.join(cache, name)) for name in os.listdir(cache))]
    told["said"] = server.text()
    told["exit"] = server.end(signal.SIGTERM)
finally:
    plain.end(signal.SIGKILL)
    if server.process.poll() is None:
        server.end(signal.SIGKILL)
    shutil.rmtree(folder)
print(json.dumps(told))
