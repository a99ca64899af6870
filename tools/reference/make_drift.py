#!/usr/bin/env python3
"""Writes tests/data/golden/drift.safetensors: what the float64 reference makes of a long sequence.

An engine whose rounding errors add up along a sequence passes every short test. Here the bundled model reads 32,768 random
ids, and the logits after 1,024, 4,096 and 32,768 of them are kept, with the last KDA state. Prints how far the reference
itself is off in float32.
"""
import argparse
import os

import numpy as np

import bailing_ref as ref
from make_golden import relative_error
from safetensors_io import write_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LENGTHS = (1024, 4096, 32768)
CUT = 512  # keeps the score matrix of a long prefix small


def run(model, ids):
    """Logits [len(LENGTHS), V] after each of LENGTHS, and the last KDA layer's state [H, K, V] at the end."""
    state, rows = model.new_state(), []
    for first in range(0, len(ids), CUT):
        _, hidden = model.forward(ids[first:first + CUT], state, want_logits=False)
        if first + CUT in LENGTHS:
            rows.append(model.head(hidden[-1]))
    last = max(i for i in range(model.c.layers) if not model.c.is_mla(i))
    return np.stack(rows), state.layers[last].s, last


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "austen-5m"))
    parser.add_argument("--out", default=os.path.join(ROOT, "tests", "data", "golden", "drift.safetensors"))
    args = parser.parse_args()
    model = ref.Model(args.model)
    ids = np.random.default_rng(109).integers(0, model.c.vocab, LENGTHS[-1]).tolist()
    logits, state, layer = run(model, ids)
    other, other_state, _ = run(ref.Model(args.model, np.float32), ids)
    for length, row, exact in zip(LENGTHS, other, logits):
        print(f"float32 logits after {length}: {relative_error(row, exact):.2e}")
    print(f"float32 state of layer {layer}: {relative_error(other_state, state):.2e}")
    write_file(args.out, {"input_ids": np.asarray(ids, np.int32), "lengths": np.asarray(LENGTHS, np.int64),
                          "logits": logits.astype(np.float32), f"kda.{layer}.state@{LENGTHS[-1]}": state.astype(np.float32)})


if __name__ == "__main__":
    main()
