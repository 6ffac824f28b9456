"""Lists the small models of the goldens. They have every head size, gate and rope variant of the family, and are small in
everything else."""

MODEL_TYPES = {"DeepseekV2ForCausalLM": "deepseek_v2", "DeepseekV3ForCausalLM": "deepseek_v3",
               "DeepseekV32ForCausalLM": "deepseek_v32"}


def _config(architecture, **fields):
    config = {
        "architectures": [architecture],
        "model_type": MODEL_TYPES[architecture],
        "vocab_size": 256,
        "hidden_size": 256,
        "intermediate_size": 320,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 128,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 16,
        "n_shared_experts": 2,
        "num_experts_per_tok": 4,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "softmax",
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "max_position_embeddings": 2560,
        "rope_theta": 10000,
        "rope_scaling": _yarn(0.707),
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
    }
    config.update(fields)
    return config


def _yarn(mscale, mscale_all_dim=None):
    # The original length is short, so that prompts of a few hundred tokens lie far beyond it.
    return {"type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
            "mscale": mscale, "mscale_all_dim": mscale if mscale_all_dim is None else mscale_all_dim}


def _v3(architecture="DeepseekV3ForCausalLM", **fields):
    return _config(architecture, **{
        "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "rope_scaling": _yarn(1.0), "rope_theta": 10000,
        "num_nextn_predict_layers": 0, **fields})


def _v32(**fields):
    # The vocabulary is small, because the logits of all positions are kept. A prompt of 70 tokens has rows that attend to all
    # keys and rows that select some of them.
    return _v3("DeepseekV32ForCausalLM", vocab_size=80, index_n_heads=16, index_head_dim=128, index_topk=64, **fields)


def _fp8(**fields):
    return {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128], **fields}


# 320 = 2.5 blocks, 192 = 1.5, 96 < 1, 576 = 4.5: every dimension but the heads' ends in a ragged block.
_RAGGED = {"hidden_size": 320, "intermediate_size": 448, "moe_intermediate_size": 96, "q_lora_rank": 192,
           "num_attention_heads": 2, "num_key_value_heads": 2}


# name -> (config, gate_bias_amplitude). The biases are large enough to change many choices.
GOLDENS = {
    "v2_lite": (_config("DeepseekV2ForCausalLM", q_lora_rank=None), 0.0),
    "v2": (_config("DeepseekV2ForCausalLM", n_group=4, topk_group=2, topk_method="group_limited_greedy",
                   routed_scaling_factor=16.0), 0.0),
    "v2_5": (_config("DeepseekV2ForCausalLM", n_group=4, topk_group=2, topk_method="group_limited_greedy",
                     routed_scaling_factor=16.0, rope_scaling=_yarn(1.0)), 0.0),
    "v3": (_v3(), 0.2),
    "v3_fp8": (_v3(quantization_config=_fp8(), **_RAGGED), 0.2),
    "no_rope_scaling": (_config("DeepseekV2ForCausalLM", q_lora_rank=None, rope_scaling=None,
                                num_attention_heads=2, num_key_value_heads=2), 0.0),
    "v32": (_v32(), 0.2),
    "v32_fp8": (_v32(quantization_config=_fp8(scale_fmt="ue8m0"), **_RAGGED), 0.2),
}
