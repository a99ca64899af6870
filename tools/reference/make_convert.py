#!/usr/bin/env python3
"""Writes tests/data/golden/convert.json: what conversions must give, as one CRC-32 a layer.

The rule stands here a second time, by names alone (docs/formats.md): which linears become block FP8 or MXFP4, what stays, which
form of FP8. Sources are golden variants, the bundled model, and what comes out of a first conversion of it ("via"). A CRC runs over
name, type, shape ("[2, 3]") and bytes of the layer's tensors that change, scales included, in the order of their names.
"""
import json
import os
import re
import zlib

import numpy as np

import quant
from safetensors_io import Checkpoint

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BUNDLED = "models/austen-5m"
CASES = [(BUNDLED, None, to, head) for to, head in (("fp8", None), ("fp4", None), ("fp4-all", None), ("fp8", "fp4"), ("fp4", "fp8"))]
CASES += [(BUNDLED, via, to, head) for via, to, head in (("fp8", "fp4", None), ("fp8", "fp4-all", None), ("fp4", "fp4-all", "fp8"),
                                                         ("fp4-all", "fp8", None))]
CASES += [(f"tests/data/golden/{v}", None, to, None) for v in ("c_flash31_fp8", "d_mix_fp4", "e_tiny_ue8m0", "f_odd_f32")
          for to in ("fp8", "fp4", "fp4-all")]
CASES += [("tests/data/golden/f_odd_f32", None, "fp8", "bf16"), ("tests/data/golden/c_flash31_fp8", None, "fp4", "fp8")]

LINEAR = re.compile(r"\.(q_proj|k_proj|v_proj|f_proj|f_a_proj|f_b_proj|g_proj|g_a_proj|g_b_proj|o_proj|q_a_proj|q_b_proj"
                    r"|kv_a_proj_with_mqa|kv_b_proj|dense|gate_proj|up_proj|down_proj)\.weight$")
COARSENESS = {"F32": 0, "F16": 1, "BF16": 2, "fp8": 3, "mxfp4": 4}


def is_mla(tensors, name):
    return name.split("attention.")[0] + "attention.kv_b_proj.weight" in tensors


def wanted(tensors, layers, name, to, head):
    """"fp8", "mxfp4", "BF16" or None: stays."""
    if name == "lm_head.weight":
        head = head or ("fp4" if to == "fp4-all" else None)
        return {"fp4": "mxfp4", "fp8": "fp8", "bf16": "BF16", None: None}[head]
    if not LINEAR.search(name):
        return None
    mtp = int(name.split(".")[2]) >= layers
    if name.endswith("attention.g_proj.weight") and is_mla(tensors, name) and not mtp:
        return None
    return "mxfp4" if to == "fp4-all" or (to == "fp4" and ".experts." in name) else "fp8"


def decode(tensors, name):
    """(float32 values, kind)."""
    raw, tag = tensors.raw(name), tensors.dtype(name)
    if name + "_scale_inv" not in tensors:
        value = quant.bf16_decode(raw) if tag == "BF16" else np.asarray(raw, np.float32)
        return value, tag
    scales, scale_tag = tensors.raw(name + "_scale_inv"), tensors.dtype(name + "_scale_inv")
    raw = raw.view(np.uint8)
    if scales.shape[1] == raw.shape[1] * 2 // 32 and scales.shape[0] == raw.shape[0] and scale_tag != "F32":
        return quant.mxfp4_dequantize(raw, scales).astype(np.float32), "mxfp4"
    values = scales if scale_tag == "F32" else quant.e8m0_decode(scales)
    return quant.block_fp8_dequantize(raw, values).astype(np.float32), "fp8"


def fp8_form(tensors, config, to):
    """"f32", "pow2" (F32 scales that are powers of two) or "e8m0": the source's own if it has one."""
    powers = config.get("quantization_config", {}).get("scale_fmt") == "ue8m0"
    for name in tensors.names():
        if tensors.dtype(name) == "F8_E4M3":
            e8m0 = tensors.dtype(name + "_scale_inv") != "F32"
            return "e8m0" if e8m0 else "pow2" if powers else "f32"
    return "f32" if to == "fp8" and not powers else "pow2"


def encode(values, kind, form):
    """Suffix -> (dtype tag, array)."""
    if kind == "BF16":
        return {"": ("BF16", quant.bf16_encode(values))}
    if kind == "mxfp4":
        packed, scales = quant.mxfp4_quantize(values)
        return {"": ("U8", packed), "_scale_inv": ("F8_E8M0", scales)}
    codes, scales = quant.block_fp8_quantize(values, "f32" if form == "f32" else "ue8m0")
    if form == "pow2":
        scales = quant.E8M0[scales].astype(np.float32)
    return {"": ("F8_E4M3", codes), "_scale_inv": ("F8_E8M0" if form == "e8m0" else "F32", scales)}


class Converted:
    """The tensors of a checkpoint after a conversion."""

    def __init__(self, tensors, changed):
        self.tensors, self.changed = tensors, changed

    def names(self):
        return list(dict.fromkeys(self.tensors.names() + list(self.changed)))

    def __contains__(self, name):
        return name in self.changed or name in self.tensors

    def dtype(self, name):
        return self.changed[name][0] if name in self.changed else self.tensors.dtype(name)

    def raw(self, name):
        return self.changed[name][1] if name in self.changed else self.tensors.raw(name)


def convert(tensors, config, to, head):
    """name -> (dtype tag, array) of what changes."""
    form, changed = fp8_form(tensors, config, to), {}
    for name in tensors.names():
        kind = wanted(tensors, config["num_hidden_layers"], name, to, head)
        if kind is None:
            continue
        values, stored = decode(tensors, name)
        if kind == "mxfp4" and values.shape[1] % 32:
            kind = "fp8"
        if COARSENESS[kind] <= COARSENESS[stored]:
            continue
        for suffix, item in encode(values, kind, form).items():
            changed[name + suffix] = item
    return changed


def layer_of(name):
    return name.split(".")[2] if name.startswith("model.layers.") else "-"


def checksums(changed):
    sums = {}
    for name in sorted(changed):
        tag, array = changed[name]
        crc = zlib.crc32(f"{name}{tag}{list(array.shape)}".encode(), sums.get(layer_of(name), 0))
        sums[layer_of(name)] = zlib.crc32(np.ascontiguousarray(array).tobytes(), crc)
    return sums


def main():
    cases = []
    for source, via, to, head in CASES:
        tensors = Checkpoint(os.path.join(ROOT, source))
        with open(os.path.join(ROOT, source, "config.json")) as f:
            config = json.load(f)
        if via:
            tensors = Converted(tensors, convert(tensors, config, via, None))
            if via != "fp8":  # no F32 scales but powers of two
                config["quantization_config"] = {"scale_fmt": "ue8m0"}
        changed = convert(tensors, config, to, head)
        cases.append({"source": source, "via": via, "to": to, "head": head, "tensors": len(changed), "crc32": checksums(changed)})
        print(source, via, to, head, len(changed), "tensors")
    with open(os.path.join(ROOT, "tests", "data", "golden", "convert.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
