"""Writes kernels.safetensors and kernels.json of tests/data/golden: unit cases per kernel (numpy only).

Tensor names are CASE/NAME.  Inputs are float32 (or integer codes); outputs are computed in float64 from
exactly these inputs and stored as float32, except where a case says otherwise.
"""

import argparse
import json
import os

import bailing_ref as ref
import numpy as np

import quant
from safetensors_io import write_file

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTHS = (1, 15, 16, 17, 63, 64, 65, 130)


class Cases:
    def __init__(self):
        self.tensors, self.info = {}, {}

    def add(self, case, kernel, note, inputs, outputs, **parameters):
        """inputs / outputs: name -> array or (dtype tag, array in storage type)."""
        assert case not in self.info
        self.info[case] = {"kernel": kernel, "note": note, "parameters": parameters,
                           "inputs": list(inputs), "outputs": list(outputs)}
        for name, value in {**inputs, **outputs}.items():
            tag, array = value if isinstance(value, tuple) else (None, np.asarray(value))
            if tag is None and array.dtype == np.float64:
                array = array.astype(np.float32)
            self.tensors[f"{case}/{name}"] = (tag, array) if tag else np.ascontiguousarray(array)


def f32(x):
    """Rounds to float32 and returns float64, so that stored inputs and computed outputs agree."""
    return np.asarray(x, np.float64).astype(np.float32).astype(np.float64)


# ----------------------------------------------------------------- specification vectors

def spec_cases(out):
    f, dt = f32([0.3, -0.2, 3, -4]), f32([0.1, 0, -1, 0.5])
    a_log = f32([0.5])
    shape = lambda v: v.reshape(1, 1, 4)
    out.add("spec_gate", "kda_gate", "A_log 0.5, four channels", {"f": f, "dt_bias": dt, "a_log": a_log}, {
        "g_safe": ref.kda_gate(shape(f), a_log, dt.reshape(1, 4))[0, 0],
        "g_unbounded": ref.kda_gate(shape(f), a_log, dt.reshape(1, 4), safe=False)[0, 0]}, lower_bound=-5.0)

    q = ref.l2_normalise(f32([[[1, 2]], [[0.5, -1]], [[2, 0]]])) * 2 ** -0.5
    k = ref.l2_normalise(f32([[[1, 0]], [[1, 1]], [[0, 2]]]))
    v, g = f32([[[1, -1]], [[0.5, 2]], [[-1, 1]]]), f32([[[-0.1, -0.2]], [[-0.5, -1]], [[-5, -0.01]]])
    beta = f32([[0.5], [0.25], [0.9]])
    o, states = np.zeros((3, 1, 2)), []
    s = np.zeros((1, 2, 2))
    for t in range(3):
        o[t:t + 1], s = ref.kda_recurrent(q[t:t + 1], k[t:t + 1], v[t:t + 1], g[t:t + 1], beta[t:t + 1], s)
        states.append(s[0])
    out.add("spec_kda", "kda_raw", "q, k before normalisation; scale 2^-1/2; rows of S are key channels; zero initial state",
            {"q_raw": f32([[[1, 2]], [[0.5, -1]], [[2, 0]]]), "k_raw": f32([[[1, 0]], [[1, 1]], [[0, 2]]]), "v": v, "g": g, "beta": beta},
            {"o": o, "state_after_each": np.stack(states)})

    x = f32([[1], [2], [3], [4], [5]])
    w = f32([[0.1, 0.2, 0.3, 0.4]])
    y, tail = ref.short_conv(x, w, np.zeros((1, 3)))
    out.add("spec_conv", "short_conv", "one channel, zero tail", {"x": x, "w": w, "tail": np.zeros((1, 3))}, {"y": y, "new_tail": tail})

    o4, w4, g4 = f32([[1, 2, 3, 4]]), f32([1, 0.5, 2, 1]), f32([[0, 1, -1, 2]])
    out.add("spec_gated_norm", "gated_rms_norm", "", {"o": o4, "w": w4, "gate": g4}, {"y": ref.gated_rms_norm(o4, w4, g4)}, eps=1e-6)

    inv, _ = ref.rope_parameters(64, 6e6)
    positions = np.array([0, 1, 1000, 262143], np.int64)
    cos, sin = ref.rope_tables(positions, inv)
    out.add("spec_rope", "rope_tables", "theta 6e6, 64 rotary dims", {"positions": positions}, {"inv_freq": inv, "cos": cos, "sin": sin}, theta=6e6, dim=64)

    logits, bias = f32([[0.2, -1, 1.5, 0.3, -0.7, 0.9, 2, -2]]), f32([0.05, 0, -0.3, 0.1, 0.4, 0, -0.5, 0.2])
    r = ref.route(logits, bias, 4, 2, 3, 2.5)
    out.add("spec_router", "route", "", {"logits": logits, "bias": bias},
            {"ids": r["ids"].astype(np.int32), "weights": r["weights"], "group_scores": r["group_scores"]},
            n_group=4, topk_group=2, top_k=3, scaling=2.5)

    limit, g, u = f32([10, 10, 4, 0]), f32([12, -3, 5, 12]), f32([11, -20, 1, 11])
    y = np.array([ref.swiglu(g[n:n + 1], u[n:n + 1], limit[n])[0] for n in range(4)])
    out.add("spec_clamp", "swiglu", "one limit per element, 0 = off", {"limit": limit, "g": g, "u": u}, {"y": y})

    x = f32([[1, -2.5, 0.3, 6]])
    codes, s = quant.activation_fp8_quantize(x)
    codes_e, s_e = quant.activation_fp8_quantize(x, ue8m0=True)
    out.add("spec_activation_fp8", "activation_fp8", "one group", {"x": x},
            {"codes": ("F8_E4M3", codes), "scale": s, "codes_ue8m0": ("F8_E4M3", codes_e), "scale_ue8m0": s_e})


# ----------------------------------------------------------------- random and edge cases

def rope_cases(rng, out):
    inv, _ = ref.rope_parameters(64, 6e6)
    positions = np.array([0, 1, 2, 3, 63, 64, 65, 999, 4095, 65535, 131071, 262143, 1048575], np.int64)
    x = f32(rng.standard_normal((len(positions), 2, 64)))
    cos, sin = ref.rope_tables(positions, inv)
    out.add("rope_pairs", "rope_apply", "adjacent pairs; T, 2 heads, 64", {"x": x, "positions": positions}, {"y": ref.rope_apply(x, cos, sin)}, theta=6e6, dim=64)
    for name, dim, theta, scaling in (
        ("rope_yarn_2x", 64, 6e6, {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 131072}),
        ("rope_yarn_small", 32, 1e4, {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
        ("rope_yarn_mscale", 64, 6e6, {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32768, "mscale": 1.0, "mscale_all_dim": 0.5}),
    ):
        inv, factor = ref.rope_parameters(dim, theta, scaling)
        x = f32(rng.standard_normal((len(positions), dim)))
        cos, sin = ref.rope_tables(positions, inv, factor)
        out.add(name, "rope_apply", "YaRN; y already contains the cos/sin factor", {"x": x, "positions": positions},
                {"y": ref.rope_apply(x, cos, sin), "inv_freq": inv}, theta=theta, dim=dim, rope_scaling=scaling, cos_sin_factor=factor)


def conv_cases(rng, out):
    w, tail = f32(rng.standard_normal((40, 4)) * 0.6), f32(rng.standard_normal((40, 3)))
    for T in (1, 2, 3, 21):
        x = f32(rng.standard_normal((T, 40)) * 1.5)
        y, new = ref.short_conv(x, w, tail)
        out.add(f"conv_{T}", "short_conv", "non-zero tail, oldest input first", {"x": x, "w": w, "tail": tail}, {"y": y, "new_tail": new})


def norm_cases(rng, out):
    x = f32(rng.standard_normal((6, 96)) * np.array([1, 1e-3, 1e-5, 30, 0, 1])[:, None])
    w = f32(rng.uniform(-0.5, 1.5, 96))
    out.add("rms_norm", "rms_norm", "rows of very different size, one all zero", {"x": x, "w": w}, {"y": ref.rms_norm(x, w)}, eps=1e-6)
    x = f32(rng.standard_normal((5, 2, 128)) * np.array([1, 1e-4, 1e-3, 100, 0])[:, None, None])
    out.add("l2_normalise", "l2_normalise", "eps inside the root; one zero vector", {"x": x}, {"y": ref.l2_normalise(x)}, eps=1e-6)
    o, w = f32(rng.standard_normal((5, 3, 128)) * np.array([1, 1e-3, 1e-4, 10, 0])[:, None, None]), f32(rng.uniform(0.3, 1.7, 128))
    gate = f32(rng.standard_normal((5, 3, 128)) * np.array([1, 3, 40, 1, 1])[:, None, None])
    out.add("gated_norm", "gated_rms_norm", "sigmoid gate after the norm; gates up to +-100", {"o": o, "w": w, "gate": gate}, {"y": ref.gated_rms_norm(o, w, gate)}, eps=1e-6)


def gate_cases(rng, out):
    f = f32(rng.standard_normal((7, 3, 32)) * np.array([1, 1, 1, 5, 5, 40, 0])[:, None, None])
    a_log, dt = f32([-1.0, 0.3, 2.7]), f32(rng.uniform(-8, 4, (3, 32)))
    out.add("gate", "kda_gate", "A_log up to log 15, arguments up to a few hundred", {"f": f, "a_log": a_log, "dt_bias": dt},
            {"g_safe": ref.kda_gate(f, a_log, dt), "g_unbounded": ref.kda_gate(f, a_log, dt, safe=False)}, lower_bound=-5.0)


def kda_inputs(rng, T, H, K, V, g):
    return dict(q=f32(ref.l2_normalise(rng.standard_normal((T, H, K)) + 0.3) * K ** -0.5), k=f32(ref.l2_normalise(rng.standard_normal((T, H, K)) + 0.3)),
                v=f32(rng.standard_normal((T, H, V))), g=f32(g), beta=f32(ref.sigmoid(1.5 * rng.standard_normal((T, H)))), state=f32(rng.standard_normal((H, K, V)) * 0.5))


def kda_cases(rng, out):
    def add(name, note, x, ends):
        outputs = {}
        for T in ends:
            o, s = ref.kda_recurrent(*(x[n][:T] for n in ("q", "k", "v", "g", "beta")), x["state"])
            outputs[f"state_{T}"] = s
        outputs["o"] = o
        out.add(name, "kda", note + "; q is normalised and scaled, k normalised; state_N is S after N tokens, o covers all tokens "
                "(o of a shorter run is its prefix)", x, outputs, lengths=list(ends))

    spread = lambda T, H, K: -5 * ref.sigmoid(rng.uniform(-8.5, 2.8, (1, H, K)) + rng.standard_normal((T, H, K)))
    add("kda_lengths", "K 32, V 48, two heads, every chunk boundary", kda_inputs(rng, 130, 2, 32, 48, spread(130, 2, 32)), LENGTHS)
    add("kda_128", "K = V = 128, one head", kda_inputs(rng, 80, 1, 128, 128, spread(80, 1, 128)), (80,))
    add("kda_bound", "every gate at the bound -5", kda_inputs(rng, 130, 1, 48, 32, np.full((130, 1, 48), -5.0)), (64, 130))
    g = np.where(rng.random((96, 1, 48)) < 0.5, -5.0, -1e-6)
    g[:, :, ::3] = -1e-6
    g[:, :, 1::3] = -4.999
    add("kda_mixed", "gates at the bound next to gates near 0, per channel and per token", kda_inputs(rng, 96, 1, 48, 32, g), (16, 96))
    add("kda_no_decay", "all gates 0", kda_inputs(rng, 65, 1, 32, 32, np.zeros((65, 1, 32))), (65,))
    g = -np.exp(rng.uniform(-6, 3.5, (70, 2, 32)))
    add("kda_unbounded", "non-safe gates down to about -33", kda_inputs(rng, 70, 2, 32, 16, g), (70,))


def router_cases(rng, out):
    def add(name, note, logits, bias, n_group, topk_group, top_k, want=None):
        logits, bias = f32(logits), f32(bias)
        r = ref.route(logits, bias, n_group, topk_group, top_k, 2.5)
        single = ref.route(logits.astype(np.float32), bias.astype(np.float32), n_group, topk_group, top_k, 2.5)
        assert (single["ids"] == r["ids"]).all(), name
        assert np.allclose(single["weights"], r["weights"], rtol=2e-5, atol=1e-30), name
        if want is not None:
            assert r["ids"].tolist() == want, (name, r["ids"].tolist())
        margin = min(r["expert_margin"].min(), r["group_margin"].min())
        out.add(name, "route", note, {"logits": logits, "bias": bias}, {"ids": r["ids"].astype(np.int32), "weights": r["weights"]},
                n_group=n_group, topk_group=topk_group, top_k=top_k, scaling=2.5, smallest_margin=float(margin))

    def well_separated(T, E, draw, bias, n_group=8, topk_group=4, top_k=8, least=2e-4):
        rows = []
        while len(rows) < T:
            row = f32(draw())
            r = ref.route(row[None], f32(bias), n_group, topk_group, top_k, 2.5)
            if min(r["expert_margin"][0], r["group_margin"][0]) > least:
                rows.append(row)
        return np.stack(rows)

    bias = rng.permutation(np.linspace(-0.3, 0.22, 64))
    add("router_64", "64 experts", well_separated(24, 64, lambda: 1.3 * rng.standard_normal(64), bias), bias, 8, 4, 8)
    bias = rng.permutation(np.linspace(-0.3, 0.22, 512))
    add("router_512", "512 experts, as in the large models", well_separated(6, 512, lambda: 1.3 * rng.standard_normal(512), bias, least=5e-5), bias, 8, 4, 8)
    bias = np.full(64, -5.0)
    add("router_all_bias_minus_5", "all selection scores negative: masking by 0 instead of -inf picks wrong experts",
        well_separated(8, 64, lambda: 1.3 * rng.standard_normal(64), bias), bias, 8, 4, 8)
    add("router_logits_minus_200_tie", "all sigmoids underflow and tie: lowest indices, weights 0, nothing may become NaN",
        np.full((2, 64), -200.0), np.zeros(64), 8, 4, 8, [list(range(8))] * 2)
    bias = rng.permutation(np.linspace(-0.5, 0.5, 64))
    add("router_logits_minus_200_bias", "all sigmoids underflow, the bias alone decides, weights 0", np.full((2, 64), -200.0), bias, 8, 4, 8)
    add("router_equal", "all logits equal, no bias: groups 0..3, experts 0..7, equal weights", np.full((2, 64), 0.5), np.zeros(64), 8, 4, 8, [list(range(8))] * 2)
    tied = np.zeros((1, 32))
    tied[0, [3, 9, 13, 17, 22, 27, 30]] = 1.0
    add("router_ties", "tied groups and tied experts: the lower index first", tied, np.zeros(32), 8, 4, 8)
    bias = np.where(np.arange(64) % 4 == 1, 12.0, -12.0)
    bias[[5, 21, 37, 53]] = -12.0
    bias[[6, 22, 38, 54]] = 12.0
    bias = bias + rng.permutation(np.linspace(-0.2, 0.2, 64))
    add("router_bias_12", "bias +-12 with sigmoids of 1e-4 and below: weights must come from the sigmoid itself, not from score minus bias",
        well_separated(8, 64, lambda: rng.uniform(-16, -9, 64), bias), bias, 8, 4, 8)
    add("router_top1_groups", "12 experts, 4 groups, 2 kept, top 3", well_separated(8, 12, lambda: 1.5 * rng.standard_normal(12), np.linspace(-.3, .3, 12), 4, 2, 3),
        np.linspace(-.3, .3, 12), 4, 2, 3)


def mlp_cases(rng, out):
    g, u = f32(rng.standard_normal((4, 48)) * 4), f32(rng.standard_normal((4, 48)) * 4)
    outputs = {f"y_{limit:g}".replace(".", "_"): ref.swiglu(g, u, limit) for limit in (0, 0.5, 4, 7, 10)}
    g[0, :4], u[0, :4] = [60, -60, 200, -200], [1, 1, -50, -50]
    outputs = {f"y_{limit:g}".replace(".", "_"): ref.swiglu(g, u, limit) for limit in (0, 0.5, 4, 7, 10)}
    out.add("swiglu_limits", "swiglu", "one output per limit (0, 0.5, 4, 7, 10)", {"g": g, "u": u}, outputs)


def attention_cases(rng, out):
    for name, T, S, H, N, R, V, C in (("mla_prefill", 19, 19, 2, 32, 16, 24, 48), ("mla_resume", 5, 37, 2, 32, 16, 24, 48), ("mla_decode", 1, 66, 3, 16, 8, 16, 32)):
        x = dict(q_nope=f32(rng.standard_normal((T, H, N)) * 1.5), q_rope=f32(rng.standard_normal((T, H, R)) * 1.5), latent=f32(rng.standard_normal((S, C))),
                 k_rope=f32(rng.standard_normal((S, R)) * 1.5), kv_b=f32(rng.standard_normal((H, N + V, C)) * 1.5 / np.sqrt(C)))
        scale = (N + R) ** -0.5
        out.add(name, "mla", "queries are the last T of S positions; q_rope, k_rope already rotated; before the output gate",
                x, {"o": ref.mla_expanded(*x.values(), scale)}, scale=scale)


def format_cases(rng, out):
    codes = np.arange(256, dtype=np.uint8)
    out.add("e4m3_decode", "e4m3_decode", "all 256 codes; NaN at 127 and 255", {"codes": ("F8_E4M3", codes)}, {"values": quant.E4M3})
    out.add("e8m0_decode", "e8m0_decode", "all 256 bytes; 0 is 2^-127 (a float32 subnormal), NaN at 255", {"codes": ("F8_E8M0", codes)}, {"values": quant.E8M0})
    out.add("e2m1_decode", "e2m1_decode", "all 16 codes", {"codes": codes[:16]}, {"values": quant.E2M1})
    grid = quant.E4M3[:0x7F]
    middles = (grid[1:] + grid[:-1]) / 2
    x = np.concatenate([grid, -grid, middles, -middles, np.nextafter(middles.astype(np.float32), np.float32(1e9)),
                        np.nextafter(middles.astype(np.float32), np.float32(0)), [464, 1e9, -1e9, 1e-12, 17, 19], rng.standard_normal(400) * 40]).astype(np.float32)
    out.add("e4m3_encode", "e4m3_encode", "every value, every midpoint and its neighbours, saturation", {"x": x}, {"codes": ("F8_E4M3", quant.e4m3_encode_reference(x))})
    grid = quant.E2M1[:8]
    middles = (grid[1:] + grid[:-1]) / 2
    x = np.concatenate([grid, -grid, middles, -middles, np.nextafter(middles.astype(np.float32), np.float32(9)), np.nextafter(middles.astype(np.float32), np.float32(0)), [7, 100, -100]]).astype(np.float32)
    out.add("e2m1_encode", "e2m1_encode", "every value, every midpoint and its neighbours, saturation", {"x": x}, {"codes": quant.e2m1_encode_reference(x)})
    bits = np.concatenate([rng.integers(0, 1 << 32, 300, dtype=np.uint64).astype(np.uint32),
                           np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x00000001, 0x80008000, 0x00018000], np.uint32)])
    bits = bits[~np.isnan(bits.view(np.float32))]
    out.add("bf16_encode", "bf16_encode", "ties to even, overflow to infinity", {"x": bits.view(np.float32)}, {"codes": ("BF16", quant.bf16_encode(bits.view(np.float32)))})

    # block FP8 with a very different scale in every block, ragged at both edges
    o, i = 136, 264
    codes = rng.integers(0, 256, (o, i)).astype(np.uint8)
    codes[(codes & 0x7F) == 0x7F] ^= 1
    scales = np.ldexp(rng.uniform(1, 2, (2, 3)), np.array([[-9, -3, -6], [-5, -11, -2]])).astype(np.float32)
    x = f32(rng.standard_normal((3, i)))
    w = quant.block_fp8_dequantize(codes, scales)
    act, s = quant.activation_fp8_quantize(x)
    act_e, s_e = quant.activation_fp8_quantize(x, ue8m0=True)
    out.add("fp8_linear", "block_fp8_linear", "y = x W^T with exact activations, and with e4m3 activations (F32 and power-of-two group scales)",
            {"codes": ("F8_E4M3", codes), "scales": scales, "x": x},
            {"w_row_0": w[0], "w_row_135": w[135], "y": x @ w.T, "x_codes": ("F8_E4M3", act), "x_scales": s, "y_fp8": quant.activation_fp8_dequantize(act, s) @ w.T,
             "x_codes_ue8m0": ("F8_E4M3", act_e), "x_scales_ue8m0": s_e, "y_fp8_ue8m0": quant.activation_fp8_dequantize(act_e, s_e) @ w.T})
    bytes_ = np.array([[118, 124, 121], [122, 116, 125]], np.uint8)
    out.add("fp8_linear_e8m0", "block_fp8_linear", "same codes as fp8_linear, F8_E8M0 scales", {"scales": ("F8_E8M0", bytes_), "x": x},
            {"y": x @ quant.block_fp8_dequantize(codes, quant.E8M0[bytes_]).T})
    w = quant.bf16_round((rng.standard_normal((130, 144)) * np.exp(rng.standard_normal((130, 1)))).astype(np.float32))
    c1, s1 = quant.block_fp8_quantize(w)
    c2, s2 = quant.block_fp8_quantize(w, "ue8m0")
    out.add("fp8_quantise", "block_fp8_quantise", "weights to codes; F32 scale amax / 448, or 2^ceil(log2(amax / 448)); the division w / scale is in float32",
            {"w": ("BF16", quant.bf16_encode(w))}, {"codes": ("F8_E4M3", c1), "scales": s1, "codes_ue8m0": ("F8_E4M3", c2), "scales_ue8m0": ("F8_E8M0", s2)})

    packed = rng.integers(0, 256, (20, 80)).astype(np.uint8)
    exps = (127 + rng.permutation(np.arange(100)) % 25 - 12).astype(np.uint8).reshape(20, 5)
    exps[0] = [1, 100, 127, 150, 250]
    x = f32(rng.standard_normal((3, 160)))
    w = quant.mxfp4_dequantize(packed, exps)
    y = x @ w.T
    out.add("mxfp4_linear", "mxfp4_linear", "y skips row 0 (its scales reach 2^123); w gives all values", {"packed": packed, "scales": ("F8_E8M0", exps), "x": x}, {"w": w, "y": y[:, 1:]})
    w = (rng.standard_normal((9, 96)) * np.exp(2 * rng.standard_normal((9, 3))).repeat(32, 1)).astype(np.float32)
    w[0, :32], w[1, 32:64], w[2, :4] = 0, 0, [6, 7, -8, 0.25]
    packed, exps = quant.mxfp4_quantize(w)
    out.add("mxfp4_quantise", "mxfp4_quantise", "shared exponent floor(log2 amax) - 2, ties to even, saturation at 6; an all-zero group has byte 127 and codes 0",
            {"w": w}, {"packed": packed, "scales": ("F8_E8M0", exps)})


def build():
    out, rng = Cases(), np.random.default_rng(7)
    spec_cases(out)
    for part in (rope_cases, conv_cases, norm_cases, gate_cases, kda_cases, router_cases, mlp_cases, attention_cases, format_cases):
        part(rng, out)
    return out


def main():
    parser = argparse.ArgumentParser(description="Writes the golden kernel cases.")
    parser.add_argument("--out", default=os.path.normpath(os.path.join(HERE, "..", "..", "tests", "data", "golden")))
    args = parser.parse_args()
    out = build()
    write_file(os.path.join(args.out, "kernels.safetensors"), out.tensors)
    with open(os.path.join(args.out, "kernels.json"), "w") as f:
        json.dump(out.info, f, indent=1)
        f.write("\n")
    print(f"{len(out.info)} cases, {os.path.getsize(os.path.join(args.out, 'kernels.safetensors'))} bytes")


if __name__ == "__main__":
    main()
