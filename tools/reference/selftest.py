"""Self-test of the reference: `python3 tools/reference/selftest.py` (numpy only, about a minute or two).

Checks the codecs exhaustively, the specification's vectors as literal numbers, the equivalences the
model must satisfy (recurrent = chunkwise, expanded = absorbed, split prefill = one shot) and that the
stored golden files are reproduced.
"""

import json
import os
import sys
import tempfile

import bailing_ref as ref                      # first: it sets the thread count
import numpy as np

import make_kernels
import quant
from make_model import make_model
from safetensors_io import Checkpoint, TensorFile, read_file, write_file

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.normpath(os.path.join(HERE, "..", "..", "tests", "data", "golden"))
failures = []


def check(what, ok, detail=""):
    print(f"{'ok  ' if ok else 'FAIL'} {what}{'  ' + str(detail) if detail != '' else ''}", flush=True)
    if not ok:
        failures.append(what)


def close(a, b, tolerance=1e-7):
    return np.allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=0, atol=tolerance)


def difference(a, b):
    """Largest absolute difference over the largest absolute value."""
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300))


# ----------------------------------------------------------------- codecs

def test_codecs():
    codes = np.arange(256, dtype=np.uint8)
    values = quant.E4M3[codes]
    finite = ~np.isnan(values)
    check("e4m3: 254 finite codes, NaN at 0x7F and 0xFF", finite.sum() == 254 and np.isnan(values[[0x7F, 0xFF]]).all())
    check("e4m3: encode(decode(code)) = code for every finite code", (quant.e4m3_encode(values[finite].astype(np.float32)) == codes[finite]).all())
    check("e4m3: named bytes", [float(quant.E4M3[b]) for b in (1, 7, 8, 0x38, 0x3C, 0x40, 0x7E)] == [2.0 ** -9, 0.013671875, 0.015625, 1, 1.5, 2, 448])
    grid = quant.E4M3[:0x7F]
    middle = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    even = np.where(np.arange(126) % 2 == 0, np.arange(126), np.arange(1, 127)).astype(np.uint8)
    check("e4m3: every midpoint goes to the even code", (quant.e4m3_encode(middle) == even).all() and (quant.e4m3_encode(-middle) == (even | 0x80)).all())
    up, down = np.nextafter(middle, np.float32(1e9)), np.nextafter(middle, np.float32(0))
    check("e4m3: neighbours of midpoints", (quant.e4m3_encode(up) == np.arange(1, 127)).all() and (quant.e4m3_encode(down) == np.arange(126)).all())
    check("e4m3: 17 -> 16, 19 -> 20, 464 and 1e9 -> 448, NaN", quant.E4M3[quant.e4m3_encode(np.float32([17, 19, 464, 1e9]))].tolist() == [16, 20, 448, 448]
          and quant.e4m3_encode(np.float32([np.nan]))[0] == 0x7F)
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.standard_normal(100000) * s for s in (1e-3, 0.02, 1, 30, 200)]).astype(np.float32)
    check("e4m3, e2m1: table encoders = search encoders on 500000 numbers",
          (quant.e4m3_encode(x) == quant.e4m3_encode_reference(x)).all() and (quant.e2m1_encode(x) == quant.e2m1_encode_reference(x)).all())
    check("e8m0: exact powers of two, NaN at 255", (quant.E8M0[:255] == np.ldexp(1.0, np.arange(255) - 127)).all() and np.isnan(quant.E8M0[255]))
    check("e2m1: all 16 codes round-trip", (quant.e2m1_encode(quant.E2M1.astype(np.float32)) == np.arange(16)).all())
    check("e2m1: midpoints to even", quant.E2M1[quant.e2m1_encode(np.float32([.25, .75, 1.25, 1.75, 2.5, 3.5, 5, 7]))].tolist() == [0, 1, 1, 2, 2, 4, 4, 6])
    everything = np.arange(65536, dtype=np.uint16)
    f = quant.bf16_decode(everything)
    ok = ~np.isnan(f)
    check("bf16: all 65536 codes round-trip", (quant.bf16_encode(f[ok]) == everything[ok]).all() and np.isnan(quant.bf16_decode(quant.bf16_encode(f[~ok]))).all())
    check("bf16: ties to even", quant.bf16_encode(np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32).view(np.float32)).tolist() == [0x3F80, 0x3F82, 0x3F81])
    packed = np.arange(256, dtype=np.uint8).reshape(1, 256)
    codes = quant.mxfp4_unpack(packed)
    check("mxfp4: unpack / pack over all 256 bytes, even column low", (quant.mxfp4_pack(codes) == packed).all() and codes[0, 2 * 0xF9] == 9 and codes[0, 2 * 0xF9 + 1] == 15)
    w = rng.standard_normal((300, 200)).astype(np.float32) * np.exp(rng.standard_normal((300, 1))).astype(np.float32)
    for fmt in ("f32", "ue8m0"):
        c, s = quant.block_fp8_quantize(w, fmt)
        s = quant.E8M0[s] if fmt == "ue8m0" else s.astype(np.float64)
        back = quant.block_fp8_dequantize(c, s)
        step = np.maximum(np.abs(w) * 2.0 ** -4, np.repeat(np.repeat(s, 128, 0)[:300], 128, 1)[:, :200] * 2.0 ** -10) * (1 + 1e-6)
        check(f"block fp8 ({fmt}): error within half a step, ragged shape", (np.abs(back - w) <= step).all())
        again, s2 = quant.block_fp8_quantize(back.astype(np.float32), fmt)
        if fmt == "ue8m0":
            check("block fp8 (ue8m0): quantising the result changes no value", (quant.block_fp8_dequantize(again, quant.E8M0[s2]) == back).all())
    w = rng.standard_normal((50, 96)).astype(np.float32)
    p, e = quant.mxfp4_quantize(w)
    back = quant.mxfp4_dequantize(p, e)
    check("mxfp4: error within half a step or saturated", (np.abs(back - w) <= np.repeat(quant.E8M0[e], 32, 1) * 2.0).all() and
          (quant.mxfp4_quantize(back.astype(np.float32))[0] == p).mean() > 0.98)
    try:
        import torch
        t = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        check("bf16: agrees with an independent implementation", (t == quant.bf16_encode(x)).all())
    except Exception:                                                       # not installed: nothing to compare with
        pass


# ----------------------------------------------------------------- literal vectors of the specification

def test_spec_vectors(kernels):
    t = kernels.tensors
    check("spec: decay gate", close(t["spec_gate/g_safe"], [-3.29572740, -2.09151426, -4.82170485, -0.01554215])
          and close(t["spec_gate/g_unbounded"], [-1.50530767, -0.98616428, -3.50671145, -0.04905015], 3e-7)
          and close(np.exp(t["spec_gate/g_safe"].astype(np.float64))[[0, 1, 3]], [0.03704109, 0.12349998, 0.98457801]))
    check("spec: KDA recurrence", close(t["spec_kda/o"][:, 0], [[0.15811379, -0.15811379], [0.0799376, -0.21969176], [0.0016854, 0.00042021]])
          and close(t["spec_kda/state_after_each"], [[[0.49999975, -0.49999975], [0, 0]], [[0.35374538, 0.08819625], [0.05048020, 0.39146143]],
                                                     [[0.00238352, 0.00059426], [-0.89500209, 0.93875661]]]))
    check("spec: convolution", close(t["spec_conv/y"][:, 0], [0.23947506, 0.82528612, 1.76159416, 2.85772238, 3.92805516], 2e-7)
          and t["spec_conv/new_tail"].tolist() == [[3, 4, 5]])
    check("spec: gated norm", close(t["spec_gated_norm/y"][0], [0.18257417, 0.26694483, 0.58922109, 1.28648639], 2e-7))
    inv = t["spec_rope/inv_freq"].astype(np.float64)
    check("spec: rope frequencies", close(inv[[0, 1, 2]], [1, 0.614020362, 0.377021005]) and abs(inv[31] / 2.71435081e-7 - 1) < 1e-6)
    cos, sin = t["spec_rope/cos"], t["spec_rope/sin"]
    check("spec: rope tables", close(cos[2, [0, 1, 31]], [0.56237908, -0.16030701, 0.99999996]) and close(sin[2, [0, 1, 31]], [0.82687954, -0.98706720, 0.00027143508])
          and close(cos[3, [0, 1, 31]], [-0.60916149, 0.06932427, 0.99746956]) and close(sin[3, [0, 1, 31]], [0.79304620, -0.99759418, 0.07109478]))
    check("spec: router", close(t["spec_router/group_scores"], [[0.86877542, 1.19201699, 1.44276173, 0.7]], 2e-7)
          and t["spec_router/ids"].tolist() == [[4, 5, 3]] and close(t["spec_router/weights"], [[0.51294113, 1.09904099, 0.88801788]], 2e-7))
    check("spec: clamp", close(t["spec_clamp/y"], [100, 1.42277620, 4, 131.99918897], 1e-5) and close(t["spec_clamp/y"][1], 1.42277620))
    a = "spec_activation_fp8/"
    check("spec: activation quantisation", t[a + "codes"][1].tolist() == [[0x69, 0xF4, 0x5B, 0x7E]] and t[a + "codes_ue8m0"][1].tolist() == [[0x68, 0xF2, 0x5A, 0x7C]]
          and close(quant.activation_fp8_dequantize(t[a + "codes"][1], t[a + "scale"]), [[0.96428571, -2.57142857, 0.29464286, 6]])
          and quant.activation_fp8_dequantize(t[a + "codes_ue8m0"][1], t[a + "scale_ue8m0"]).tolist() == [[1, -2.5, 0.3125, 6]])
    one = lambda byte, scale: quant.mxfp4_dequantize(np.full((1, 16), byte, np.uint8), np.full((1, 1), scale, np.uint8))[0, :2].tolist()
    check("spec: MXFP4", one(0x21, 128) == [1, 2] and one(0xF9, 127) == [-0.5, -6])
    inv, factor = ref.rope_parameters(64, 6e6, {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 131072})
    check("spec: YaRN range 13..21 and factor", ref.yarn_correction_range(64, 6e6, 131072) == (13, 21) and abs(factor - 1.0693147) < 1e-7)
    scale = (128 + 64) ** -0.5
    check("spec: attention and KDA scales", abs(scale - 0.07216878364870323) < 1e-16 and abs(128 ** -0.5 - 0.08838834764831845) < 1e-16)


# ----------------------------------------------------------------- equivalences of kernels

def test_kda(kernels):
    for case, info in kernels.info.items():
        if info["kernel"] != "kda":
            continue
        x = {n: kernels.tensors[f"{case}/{n}"].astype(np.float64) for n in info["inputs"]}
        bounded = case != "kda_unbounded"
        worst64 = worst32 = 0.0
        for T in info["parameters"]["lengths"]:
            args = [x[n][:T] for n in ("q", "k", "v", "g", "beta")] + [x["state"]]
            o, s = ref.kda_recurrent(*args)
            for pairwise in ((True, False) if bounded else (False,)):
                oc, sc = ref.kda_chunk(*args, bounded=pairwise)
                worst64 = max(worst64, difference(oc, o), difference(sc, s))
                o32, s32 = ref.kda_chunk(*(a.astype(np.float32) for a in args), bounded=pairwise)
                worst32 = max(worst32, difference(o32, o), difference(s32, s))
        check(f"{case}: chunkwise = recurrent", worst64 < 1e-12 and worst32 < 2e-5, f"float64 {worst64:.1e}, float32 {worst32:.1e}")
    rng = np.random.default_rng(3)
    x = make_kernels.kda_inputs(rng, 200, 2, 24, 40, -5 * ref.sigmoid(rng.uniform(-8, 3, (200, 2, 24))))
    o, s = ref.kda_recurrent(*x.values())
    worst = 0.0
    for cut in (1, 16, 37, 64, 100, 199):
        o1, s1 = ref.kda_chunk(*(x[n][:cut] for n in ("q", "k", "v", "g", "beta")), x["state"])
        o2, s2 = ref.kda_chunk(*(x[n][cut:] for n in ("q", "k", "v", "g", "beta")), s1)
        worst = max(worst, difference(np.concatenate([o1, o2]), o), difference(s2, s))
    check("KDA: any split with resume from the state", worst < 1e-12, f"{worst:.1e}")


def test_attention(kernels):
    for case in ("mla_prefill", "mla_resume", "mla_decode"):
        info = kernels.info[case]
        x = [kernels.tensors[f"{case}/{n}"].astype(np.float64) for n in info["inputs"]]
        d = difference(ref.mla_absorbed(*x, info["parameters"]["scale"]), ref.mla_expanded(*x, info["parameters"]["scale"]))
        check(f"{case}: absorbed = expanded", d < 1e-13, f"{d:.1e}")


# ----------------------------------------------------------------- models

def test_model(directory):
    name = os.path.basename(directory)
    with open(os.path.join(directory, "golden.json")) as f:
        info = json.load(f)
    gold = read_file(os.path.join(directory, "golden.safetensors"))
    ids, greedy_ids = gold["input_ids"].tolist(), gold["greedy_ids"].tolist()
    model = ref.Model(directory)
    c = model.c

    def run(model, cuts):
        state, capture, logits, hs = model.new_state(), ref.Capture(), [], []
        edges = [0] + list(cuts) + [len(ids)]
        for a, b in zip(edges, edges[1:]):
            l, h = model.forward(ids[a:b], state, capture)
            logits.append(l)
            hs.append(h)
        logits, h = np.concatenate(logits), np.concatenate(hs)
        mtp = None
        if model.has_mtp:
            next_ids, mtp = ids[1:] + greedy_ids[:1], []
            for a, b in zip(edges, edges[1:]):
                mtp.append(model.mtp_forward(h[a:b], next_ids[a:b], state)[0])
            mtp = np.concatenate(mtp)
        return logits, mtp, state, capture

    logits, mtp, state, capture = run(model, ())
    worst = difference(logits, gold["logits"].astype(np.float64))
    for n, v in capture.hidden_values().items():
        if f"hidden.{n}" in gold:
            worst = max(worst, difference(v, gold[f"hidden.{n}"].astype(np.float64)))
    for n, v in gold.items():
        if n.startswith("kda.") and n.endswith(f"@{len(ids)}"):
            _, i, what = n.split("@")[0].split(".")
            layer = state.layers[int(i)]
            worst = max(worst, difference(layer.s if what == "state" else layer.tail[what[-1]], v.astype(np.float64)))
        if n.startswith("mla."):
            worst = max(worst, difference(state.layers[int(n.split(".")[1])].rows, v.astype(np.float64)))
    if mtp is not None:
        worst = max(worst, difference(mtp, gold["mtp.logits"].astype(np.float64)), difference(state.mtp.rows, gold["mtp.cache"].astype(np.float64)))
    same = all((v == gold[f"router.{n}.ids"]).all() for n, v in capture.router_values("ids").items())
    check(f"{name}: one-shot prefill reproduces the stored values", worst < 3e-7 and same, f"{worst:.1e}")

    split = run(model, (1, 3, 64, 65, 70, 128))
    worst = max(difference(split[0], logits), max((difference(a.s, b.s) for a, b in zip(split[2].layers, state.layers) if isinstance(a, ref.KdaState)), default=0),
                difference(split[1], mtp) if mtp is not None else 0)
    check(f"{name}: split prefill = one shot", worst < 1e-11, f"{worst:.1e}")
    steps = run(model, range(1, len(ids)))
    worst = max(difference(steps[0], logits), difference(steps[1], mtp) if mtp is not None else 0)
    check(f"{name}: single steps = one shot", worst < 1e-11, f"{worst:.1e}")
    model.mla_form, model.kda_form = "absorbed", "chunk"
    other = run(model, (70,))
    worst = max(difference(other[0], logits), difference(other[1], mtp) if mtp is not None else 0)
    check(f"{name}: absorbed MLA and chunkwise KDA", worst < 1e-11, f"{worst:.1e}")
    model.mla_form, model.kda_form = "expanded", "recurrent"

    tokens, _, _ = model.greedy(logits[-1], state, len(greedy_ids))
    check(f"{name}: greedy continuation", tokens == greedy_ids == info["greedy_ids"])
    margins = info["smallest_router_margin"]
    check(f"{name}: margins", min(m for m in margins.values() if m is not None) > 2e-4 and info["smallest_top1_margin_greedy"] > 1e-2
          and abs(capture.smallest_margin() - margins["prompt"]) < 1e-9, margins)
    single = run(ref.Model(directory, np.float32, mla_form="absorbed", kda_form="chunk"), ())
    same = all((np.sort(v, -1) == np.sort(gold[f"router.{n}.ids"], -1)).all() for n, v in single[3].router_values("ids").items())
    worst = difference(single[0], logits)
    check(f"{name}: float32 run routes alike", same and worst < 1e-5, f"{worst:.1e}")
    if isinstance(c.group_size, int):
        kinds = [0 if c.is_mla(i) else 1 for i in range(c.layers)]
        listed = ref.Config(dict(c.values, layer_group_size=kinds))
        check(f"{name}: layer_group_size as a list", [listed.is_mla(i) for i in range(c.layers)] == [c.is_mla(i) for i in range(c.layers)])


def test_container():
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "t.safetensors")
        rng = np.random.default_rng(1)
        tensors = {"a": rng.standard_normal((3, 5)).astype(np.float32), "b": ("BF16", rng.integers(0, 65536, (7,)).astype(np.uint16)),
                   "c": ("F8_E4M3", rng.integers(0, 256, (3, 3)).astype(np.uint8)), "d": ("F8_E8M0", np.array([127], np.uint8)),
                   "e": np.arange(4, dtype=np.int64), "scalar": np.float32(2).reshape(()), "empty": np.zeros((0, 4), np.float32), "i8": np.array([-1, 5], np.int8)}
        write_file(path, tensors, {"k": "v"})
        f = TensorFile(path)
        good = all((f.raw(n) == (v[1] if isinstance(v, tuple) else v)).all() and f.shape(n) == np.shape(v[1] if isinstance(v, tuple) else v) for n, v in tensors.items())
        check("safetensors: write and read back", good and f.dtype("b") == "BF16" and f.metadata == {"k": "v"})
        config = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 1,
                  "head_dim": 32, "q_lora_rank": 8, "kv_lora_rank": 32, "num_experts": 16, "num_experts_per_tok": 4, "num_nextn_predict_layers": 1}
        for fmt in ("bf16", "f32", "fp8", "fp8-ue8m0", "fp4"):
            one, many = os.path.join(tmp, fmt), os.path.join(tmp, fmt + "-s")
            make_model(config, one, fmt, 5)
            make_model(config, many, fmt, 5, shard_bytes=60000)
            a, b = Checkpoint(one), Checkpoint(many)
            check(f"make_model {fmt}: shards hold the same tensors", sorted(a.names()) == sorted(b.names()) and len(os.listdir(many)) > 4
                  and all((a.raw(n) == b.raw(n)).all() and a.dtype(n) == b.dtype(n) for n in a.names()))
            m = ref.Model(many)
            logits, h = m.forward([1, 2, 3], m.new_state())
            m.mtp_forward(h, [2, 3, 4], m.new_state())
            check(f"make_model {fmt}: runs", np.isfinite(logits).all() and logits.std() > 0.5)


def main():
    test_codecs()
    kernels = make_kernels.build()
    test_spec_vectors(kernels)
    test_kda(kernels)
    test_attention(kernels)
    stored = os.path.join(GOLDEN, "kernels.safetensors")
    f = read_file(stored)
    same = set(f) == set(kernels.tensors)
    for n, v in kernels.tensors.items():
        v = v[1] if isinstance(v, tuple) else v
        same = same and np.array_equal(f[n], v, equal_nan=v.dtype.kind == "f") if v.dtype.kind != "f" else same and np.allclose(f[n], v, rtol=1e-6, atol=1e-30, equal_nan=True)
    check("kernels.safetensors is reproduced", same)
    test_container()
    roots = sys.argv[1:] or [os.path.join(GOLDEN, n) for n in sorted(os.listdir(GOLDEN)) if os.path.isdir(os.path.join(GOLDEN, n))]
    for directory in roots:
        test_model(directory.rstrip("/"))
    print("all passed" if not failures else f"{len(failures)} FAILED: {failures}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
