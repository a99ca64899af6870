#!/usr/bin/env python3
"""Writes tests/data/golden/drift.safetensors: what the float64 reference makes of a long sequence.

An engine whose rounding errors add up along a sequence passes every short test. Here the bundled model reads 16,384 random
ids, and the logits after 1,024, 4,096 and 16,384 of them are kept. Prints how far the reference itself is off in float32:
4.6e-7, 7.3e-7 and 3.8e-6.
"""
import argparse
import os

import numpy as np

import bailing_ref as ref
from make_golden import relative_error
from safetensors_io import write_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LENGTHS = (1024, 4096, 16384)
CUT = 512  # keeps the score matrix of a long prefix small


def run(model, ids):
    """Logits [len(LENGTHS), V] after each of LENGTHS."""
    state, rows = model.new_state(), []
    for first in range(0, len(ids), CUT):
        _, hidden = model.forward(ids[first:first + CUT], state, want_logits=False)
        if first + CUT in LENGTHS:
            rows.append(model.head(hidden[-1]))
    return np.stack(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "austen-5m"))
    parser.add_argument("--out", default=os.path.join(ROOT, "tests", "data", "golden", "drift.safetensors"))
    args = parser.parse_args()
    model = ref.Model(args.model)
    ids = np.random.default_rng(109).integers(0, model.c.vocab, LENGTHS[-1]).tolist()
    logits = run(model, ids)
    other = run(ref.Model(args.model, np.float32), ids)
    for length, row, exact in zip(LENGTHS, other, logits):
        print(f"float32 logits after {length}: {relative_error(row, exact):.2e}")
    write_file(args.out, {"input_ids": np.asarray(ids, np.int32), "lengths": np.asarray(LENGTHS, np.int64),
                          "logits": logits.astype(np.float32)})


if __name__ == "__main__":
    main()
