"""Writes the golden model variants (numpy only).

    make_golden.py [NAME ...] [--out DIR]

For each variant: a checkpoint (make_model.py), `golden.safetensors` and `golden.json`; see README.md.
The prompt is grown token by token: a random token is kept only if every routing decision it causes has a
margin above PROMPT_MARGIN; the last tokens are redrawn until the greedy continuation has safe margins too.
So a correct float32 engine must reproduce every routing decision and every greedy token.
"""

import argparse
import json
import os
import shutil

import bailing_ref as ref                      # first: it sets the thread count
import numpy as np

from make_model import make_model
from safetensors_io import write_file

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPT_LENGTH = 150
SNAPSHOT = 70
GREEDY = 24
DRAFTS = 3
PROMPT_MARGIN = 1e-3                           # of prompt routing (main layers and MTP)
GREEDY_ROUTER_MARGIN = 3e-4                    # of routing along the greedy continuation
TOP1_MARGIN = 2e-2                             # of the logits along the greedy continuation
MIN_DISTINCT = 14                              # distinct tokens in the continuation

SMALL = {"vocab_size": 256, "num_attention_heads": 2, "num_experts": 24}

VARIANTS = {
    "a_tiny_bf16": dict(
        description="3.0-tiny shape: groups of 4, 8 layers, q LoRA, no MTP, BF16",
        format="bf16", seed=101,
        config=dict(SMALL, hidden_size=64, intermediate_size=144, moe_intermediate_size=16, num_hidden_layers=8,
                    layer_group_size=4, first_k_dense_replace=1, q_lora_rank=32, kv_lora_rank=128)),
    "b_flash_bf16": dict(
        description="3.0-flash shape: groups of 6, q_lora_rank null, SwiGLU limits on routed and shared experts, MTP, BF16",
        format="bf16", seed=202,
        config=dict(SMALL, hidden_size=64, intermediate_size=160, moe_intermediate_size=16, num_hidden_layers=6,
                    layer_group_size=6, first_k_dense_replace=2, q_lora_rank=None, kv_lora_rank=128,
                    num_nextn_predict_layers=1, max_position_embeddings=262144,
                    expert_swiglu_limit_list=[0, 0, 0, 1.2, 1.6, 0.8],
                    share_expert_swiglu_limit_list=[0, 0, 1.0, 1.5, None, 0.7])),
    "c_flash31_fp8": dict(
        description="3.1-flash shape: groups of 8, 8 layers, q LoRA, limits, MTP, block FP8 with F32 scales, ragged blocks, 3 shards",
        format="fp8", seed=303, shards=3, state_layers=[6],
        config=dict(SMALL, hidden_size=136, intermediate_size=160, moe_intermediate_size=16, num_hidden_layers=8,
                    layer_group_size=8, first_k_dense_replace=5, q_lora_rank=48, kv_lora_rank=192,
                    num_nextn_predict_layers=1, max_position_embeddings=262144,
                    expert_swiglu_limit_list=[0, 0, 0, 0, 0, 0, 1.25, 1.25],
                    share_expert_swiglu_limit_list=[0, 0, 0, 0, 0, 1.0, 1.0, 1.0])),
    "d_mix_fp4": dict(
        description="MXFP4 routed experts (main layers and MTP), block FP8 for the rest with power-of-two F32 scales, groups of 4, MTP, 2 shards",
        format="fp4", seed=404, shards=2, state_layers=[2],
        config=dict(SMALL, hidden_size=128, intermediate_size=192, moe_intermediate_size=32, num_hidden_layers=4,
                    layer_group_size=4, first_k_dense_replace=1, q_lora_rank=None, kv_lora_rank=192,
                    num_nextn_predict_layers=1,
                    expert_swiglu_limit_list=[0, 0, 0, 1.5], share_expert_swiglu_limit_list=[0, 0, 0, 1.3])),
    "e_tiny_ue8m0": dict(
        description="3.0-tiny-fp8 shape: block FP8 with F8_E8M0 scales, BF16 MLA projections, full latent width 512, ragged blocks",
        format="fp8-ue8m0", seed=505, state_layers=[2],
        config=dict(SMALL, hidden_size=144, intermediate_size=176, moe_intermediate_size=16, num_hidden_layers=4,
                    layer_group_size=4, first_k_dense_replace=1, q_lora_rank=32, kv_lora_rank=512)),
    "f_odd_f32": dict(
        description="everything unusual: head_dim 64, 3 heads, v_head_dim 48, element-wise gate, non-safe decay gate, low-rank f and g, "
                    "a trailing MLA layer, YaRN, 4 router groups with top-3, F32 weights, conv weights [P, 4], A_log [1, 1, H, 1], "
                    "bias named e_score_correction_bias",
        format="f32", seed=606, options=dict(conv_shape_2d=True, a_log_shape_4d=True, bias_name="gate.e_score_correction_bias"),
        config=dict(vocab_size=256, hidden_size=40, intermediate_size=96, moe_intermediate_size=8, num_hidden_layers=7,
                    num_attention_heads=3, head_dim=64, layer_group_size=3, first_k_dense_replace=2, q_lora_rank=24,
                    kv_lora_rank=48, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=48,
                    rope_theta=10000, max_position_embeddings=256,
                    rope_scaling={"type": "yarn", "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
                    gated_attention_proj_granularity_type="element_wise", kda_safe_gate=False, no_kda_lora=False,
                    use_kda_lora=True, num_experts=12, num_experts_per_tok=3, n_group=4, topk_group=2,
                    moe_shared_expert_intermediate_size=6, num_shared_experts=2)),
}


# ----------------------------------------------------------------- prompt search

class Cursor:
    """A prefix: state, last logits row, last normed hidden row."""

    def __init__(self, state, ids, logits=None, h=None):
        self.state, self.ids, self.logits, self.h = state, ids, logits, h

    def push(self, model, token):
        """New cursor one token further and the smallest router margin of that step (the MTP step included)."""
        state, capture = self.state.copy(), ref.Capture(keep_hidden=False)
        if model.has_mtp and self.h is not None:
            model.mtp_forward(self.h, [token], state, capture)
        logits, h = model.forward([token], state, capture)
        return Cursor(state, self.ids + [token], logits[0], h), capture.smallest_margin()


def greedy_is_safe(model, cursor):
    """(greedy tokens, smallest router margin, smallest top-1 margin), or None if a margin is too small."""
    router, top1 = np.inf, np.inf
    tokens = []
    if model.has_mtp:                                   # the chain of drafts must be safe as well
        capture = ref.Capture(keep_hidden=False)
        scratch, h, token = cursor.state.copy(), cursor.h, int(cursor.logits.argmax())
        for _ in range(DRAFTS):
            logits, h = model.mtp_forward(h, [token], scratch, capture)
            token = int(logits[0].argmax())
            top1 = min(top1, float(ref.top1_margin(logits[0])))
        router = capture.smallest_margin()
        if router < GREEDY_ROUTER_MARGIN:
            return None
    for n in range(GREEDY):
        top1 = min(top1, float(ref.top1_margin(cursor.logits)))
        tokens.append(int(cursor.logits.argmax()))
        if top1 < TOP1_MARGIN:
            return None
        if n + 1 < GREEDY or model.has_mtp:
            cursor, margin = cursor.push(model, tokens[-1])
            router = min(router, margin)
            if router < GREEDY_ROUTER_MARGIN:
                return None
    if len(set(tokens)) < MIN_DISTINCT:
        return None
    return tokens, router, top1


def find_prompt(model, rng, max_tries=4000):
    """Prompt ids [PROMPT_LENGTH] with safe margins, its greedy tokens and margins."""
    redraw = 2
    cursor = Cursor(model.new_state(), [])
    rejected = 0

    def extend(cursor):
        nonlocal rejected
        while True:
            new, margin = cursor.push(model, int(rng.integers(model.c.vocab)))
            if margin >= PROMPT_MARGIN:
                return new
            rejected += 1

    while len(cursor.ids) < PROMPT_LENGTH - redraw:
        cursor = extend(cursor)
    for tries in range(max_tries):
        end = cursor
        for _ in range(redraw):
            end = extend(end)
        result = greedy_is_safe(model, end)
        if result:
            return end.ids, result, {"rejected_tokens": rejected, "continuations_tried": tries + 1}
    raise RuntimeError("no safe continuation found; change the seed")


# ----------------------------------------------------------------- golden values

def run(model, ids, greedy_ids):
    """One pass over the prompt in pieces of SNAPSHOT and the rest, then the given continuation.

    Returns (tensors float64 / int, captures by phase).
    """
    c = model.c
    state, prompt = model.new_state(), ref.Capture()
    out = {}

    def snapshot(label):
        for i in range(c.layers):
            if not c.is_mla(i):
                out[f"kda.{i}.state@{label}"] = state.layers[i].s
                for n in "qkv":
                    out[f"kda.{i}.conv_{n}@{label}"] = state.layers[i].tail[n]

    first, h0 = model.forward(ids[:SNAPSHOT], state, prompt)
    snapshot(SNAPSHOT)
    second, h1 = model.forward(ids[SNAPSHOT:], state, prompt)
    snapshot(len(ids))
    logits, h = np.concatenate([first, second]), np.concatenate([h0, h1])
    out["logits"] = logits
    for i in range(c.layers):
        if c.is_mla(i):
            out[f"mla.{i}.cache"] = state.layers[i].rows
    for label, x in prompt.hidden_values().items():
        out[f"hidden.{label}"] = x
    for label, v in prompt.router_values("ids").items():
        out[f"router.{label}.ids"] = v
    for label, v in prompt.router_values("weights").items():
        out[f"router.{label}.weights"] = v
    mtp = ref.Capture()
    if model.has_mtp:
        next_ids = list(ids[1:]) + [greedy_ids[0]]
        out["mtp.next_ids"] = np.asarray(next_ids, np.int64)
        out["mtp.logits"], out["mtp.hidden"] = model.mtp_forward(h, next_ids, state, mtp)
        out["mtp.cache"] = state.mtp.rows
        out["mtp.router.ids"] = mtp.router_values("ids")["mtp"]
        out["mtp.router.weights"] = mtp.router_values("weights")["mtp"]
    # continuation along the given tokens (they are the argmax of each row if the model agrees)
    follow = ref.Capture(keep_hidden=False)
    rows, hs = [logits[-1]], []
    for token in greedy_ids[:-1]:
        row, hn = model.forward([token], state, follow)
        rows.append(row[0])
        hs.append(hn)
    out["greedy_logits"] = np.stack(rows)
    drafts = []
    if model.has_mtp:                                   # chain of drafts after the first greedy token
        base = model.new_state()
        base.mtp.rows = out["mtp.cache"][:-1]
        drafts = model.mtp_draft(h[-1:], greedy_ids[0], base, DRAFTS, mtp)
        out["mtp.greedy_logits"], _ = model.mtp_forward(np.concatenate(hs), greedy_ids[1:], state, mtp)
    return out, {"prompt": prompt, "greedy": follow, "mtp": mtp, "drafts": drafts}


def relative_error(a, b):
    """Root mean square of a - b over that of b."""
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b ** 2)))


def worst_row_error(a, b):
    """Largest over rows of |a - b| / |b| (2-norms)."""
    return float((np.linalg.norm(a - b, axis=-1) / np.linalg.norm(b, axis=-1)).max())


def compare(model, ids, greedy_ids, exact, layers):
    """Error report of another arithmetic against the exact values."""
    other, captures = run(model, ids, greedy_ids)
    labels = ["embed"] + [str(i) for i in range(layers)] + ["final_norm"]
    report = {"hidden_rms_error": {n: float(f"{relative_error(other['hidden.' + n], exact['hidden.' + n]):.2e}") for n in labels}}
    for n in ("logits", "greedy_logits", "mtp.logits", "mtp.hidden"):
        if n in exact:
            report[n + "_rms_error"] = float(f"{relative_error(other[n], exact[n]):.2e}")
    report["worst_row_logits_error"] = float(f"{worst_row_error(other['logits'], exact['logits']):.2e}")
    states = [n for n in exact if ".state@" in n]
    report["kda_state_rms_error"] = float(f"{max(relative_error(other[n], exact[n]) for n in states):.2e}")
    same, total = 0, 0
    for n in exact:
        if n.endswith(".ids") and "router" in n:
            same += int((np.sort(other[n], -1) == np.sort(exact[n], -1)).all(-1).sum())
            total += exact[n].shape[0]
    report["routing_sets_equal"] = f"{same}/{total}"
    report["greedy_tokens_equal"] = f"{int((other['greedy_logits'].argmax(-1) == np.asarray(greedy_ids)).sum())}/{len(greedy_ids)}"
    return report


def make_variant(name, spec, out_root):
    directory = os.path.join(out_root, name)
    shutil.rmtree(directory, ignore_errors=True)
    shards = spec.get("shards", 1)
    cfg, size = make_model(spec["config"], directory, spec["format"], spec["seed"], spec.get("options"))
    if shards > 1:
        shutil.rmtree(directory)
        make_model(spec["config"], directory, spec["format"], spec["seed"], spec.get("options"), shard_bytes=-(-size // shards) + 20000)
    model = ref.Model(directory)
    c = model.c
    model.mla_form = "absorbed"                        # faster for single steps
    ids, (greedy_ids, _, _), search = find_prompt(model, np.random.default_rng(spec["seed"]))
    model.mla_form = "expanded"
    exact, captures = run(model, ids, greedy_ids)
    assert exact["greedy_logits"].argmax(-1).tolist() == greedy_ids
    kda_layers = [i for i in range(c.layers) if not c.is_mla(i)]
    keep_states = spec.get("state_layers", [kda_layers[0], kda_layers[-1]])

    tensors = {"input_ids": np.asarray(ids, np.int64), "greedy_ids": np.asarray(greedy_ids, np.int64)}
    for n, v in exact.items():
        if n == "hidden.embed" or (n.startswith("kda.") and int(n.split(".")[1]) not in keep_states):
            continue
        if n.startswith("kda.") and n.endswith(f".state@{SNAPSHOT}") and int(n.split(".")[1]) != keep_states[-1]:
            continue
        if n.endswith(".ids"):
            v = v.astype(np.int32)
        elif v.dtype == np.float64:
            v = v.astype(np.float32)
        tensors[n] = np.ascontiguousarray(v)
    write_file(os.path.join(directory, "golden.safetensors"), tensors, {"variant": name})

    prompt, mtp = captures["prompt"], captures["mtp"]
    alphas = np.concatenate([np.concatenate(v).reshape(-1) for v in prompt.decay.values()])
    info = {
        "variant": name,
        "description": spec["description"],
        "format": spec["format"],
        "seed": spec["seed"],
        "layout_options": spec.get("options", {}),
        "prompt_length": len(ids),
        "snapshot_position": SNAPSHOT,
        "greedy_ids": greedy_ids,
        "smallest_router_margin": {
            "prompt": prompt.smallest_margin(), "greedy": captures["greedy"].smallest_margin(),
            "mtp": mtp.smallest_margin() if model.has_mtp else None},
        "smallest_top1_margin_greedy": float(ref.top1_margin(exact["greedy_logits"]).min()),
        "kda_state_layers": keep_states,
        "kda_layers": kda_layers,
        "mla_layers": [i for i in range(c.layers) if c.is_mla(i)],
        "moe_layers": [i for i in range(c.layers) if c.is_moe(i)],
        "hidden_rms": {n: float(f"{np.sqrt(np.mean(v ** 2)):.4f}") for n, v in prompt.hidden_values().items()},
        "decay_quantiles_0_1_10_50_90_99_100": [float(f"{q:.3e}") for q in np.quantile(alphas, [0, .01, .1, .5, .9, .99, 1])],
        "clamped_fraction_routed_shared": {
            n: [float(f"{sum(k for k, _ in part) / max(1, sum(t for _, t in part)):.3f}") for part in clip]
            for n, clip in prompt.clip.items() if clip[0] or clip[1]},
        "experts_used": {n: int(len(np.unique(v))) for n, v in prompt.router_values("ids").items()},
        "logit_std": float(f"{exact['logits'].std():.3f}"),
        "search": search,
    }
    if model.has_mtp:
        info["mtp_draft_ids"] = captures["drafts"]
        info["mtp_draft_note"] = (f"greedy drafts from hidden row {len(ids) - 1} and greedy_ids[0], each next step fed "
                                  "with u and the draft of the step before")
        info["mtp_smallest_top1_margin"] = {"prompt": float(ref.top1_margin(exact["mtp.logits"]).min()),
                                            "greedy": float(ref.top1_margin(exact["mtp.greedy_logits"]).min())}
        info["mtp_greedy_argmax"] = exact["mtp.greedy_logits"].argmax(-1).tolist()
    info["error_levels"] = {
        "float32": compare(ref.Model(directory, np.float32), ids, greedy_ids, exact, c.layers),
        "float32_chunk_absorbed": compare(ref.Model(directory, np.float32, mla_form="absorbed", kda_form="chunk"), ids, greedy_ids, exact, c.layers),
        "bf16_activations": compare(ref.Model(directory, np.float32, "bf16"), ids, greedy_ids, exact, c.layers),
    }
    if spec["format"] not in ("bf16", "f32"):
        info["error_levels"]["fp8_activations"] = compare(ref.Model(directory, np.float32, "fp8"), ids, greedy_ids, exact, c.layers)
    with open(os.path.join(directory, "golden.json"), "w") as f:
        json.dump(info, f, indent=1)
        f.write("\n")
    total = sum(os.path.getsize(os.path.join(directory, n)) for n in os.listdir(directory))
    print(f"{name}: {total} bytes (golden {os.path.getsize(os.path.join(directory, 'golden.safetensors'))}), router margins "
          f"{info['smallest_router_margin']}, top-1 {info['smallest_top1_margin_greedy']:.3f}, {search}", flush=True)
    return info


def main():
    parser = argparse.ArgumentParser(description="Writes the golden model variants.")
    parser.add_argument("names", nargs="*", help=f"variants, default all: {', '.join(VARIANTS)}")
    parser.add_argument("--out", default=os.path.normpath(os.path.join(HERE, "..", "..", "tests", "data", "golden")))
    args = parser.parse_args()
    for name in args.names or VARIANTS:
        make_variant(name, VARIANTS[name], args.out)


if __name__ == "__main__":
    main()
