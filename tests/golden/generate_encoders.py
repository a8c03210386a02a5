#!/usr/bin/env python3
"""Hidden states and logits of tiny random encoders, computed by Hugging Face transformers, for tests/models to compare with.

    python3 tests/golden/generate_encoders.py [NAME...]          # needs torch, transformers, safetensors, numpy

Writes tests/golden/encoders/<name>.json: config (config.json), weight_seed, tensors (name, shape, checksum), and cases:
ids, types, hidden (S * E, row-major) and, with a classification head, logits. Weights are not stored; they follow from
the tensors' names by the rule in README.md. Matrix products are computed in float64.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from tiny_weights import checksum, fnv1a64, tiny_weights

OUT = Path(__file__).resolve().parent / "encoders"
BERT = {"architectures": ["BertModel"], "model_type": "bert", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 80,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 40, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 0}
ROBERTA = {**BERT, "architectures": ["RobertaModel"], "model_type": "roberta", "type_vocab_size": 1, "layer_norm_eps": 1e-5,
           "pad_token_id": 1}
MODERNBERT = {"architectures": ["ModernBertModel"], "model_type": "modernbert", "vocab_size": 96, "hidden_size": 32,
              "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4, "hidden_activation": "gelu",
              "max_position_embeddings": 40, "norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "mlp_bias": False,
              "global_attn_every_n_layers": 3, "local_attention": 8, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
              "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
NOMIC = {"architectures": ["NomicBertModel"], "model_type": "nomic_bert", "vocab_size": 96, "hidden_size": 32,
         "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_act": "silu",
         "max_position_embeddings": 40, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
         "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}}
GTE = {"architectures": ["GteModel"], "model_type": "gte", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
       "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_act": "gelu", "max_position_embeddings": 40,
       "type_vocab_size": 1, "layer_norm_eps": 1e-12, "pad_token_id": 1,
       "rope_parameters": {"rope_theta": 160000.0, "rope_type": "default"}}
# What the published nomic_bert says besides.
NOMIC_PUBLISHED = {"activation_function": "swiglu", "causal": False, "layer_norm_epsilon": 1e-12, "max_trained_positions": 40,
                   "mlp_fc1_bias": False, "mlp_fc2_bias": False, "n_embd": 32, "n_head": 4, "n_inner": 48, "n_layer": 2,
                   "n_positions": 160, "parallel_block": False, "prenorm": False, "qkv_proj_bias": False, "rotary_emb_base": 1000,
                   "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
                   "rotary_scaling_factor": None, "use_rms_norm": False}
MODELS = {
    "bert": BERT,
    "bert-tanh-gelu": {**BERT, "hidden_act": "gelu_new", "num_hidden_layers": 3, "num_attention_heads": 2},
    "bert-classifier": {**BERT, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"},
                        "label2id": {"LABEL_0": 0}},
    "ernie": {**BERT, "architectures": ["ErnieModel"], "model_type": "ernie", "hidden_act": "relu", "type_vocab_size": 4,
              "use_task_id": False},
    "roberta": ROBERTA,
    "xlm-roberta-classifier": {**ROBERTA, "architectures": ["XLMRobertaForSequenceClassification"],
                               "model_type": "xlm-roberta", "id2label": {"0": "A", "1": "B"}, "label2id": {"A": 0, "B": 1}},
    "distilbert": {"architectures": ["DistilBertModel"], "model_type": "distilbert", "vocab_size": 96, "dim": 32,
                   "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 40, "activation": "gelu",
                   "pad_token_id": 0},
    "electra": {**BERT, "architectures": ["ElectraModel"], "model_type": "electra", "embedding_size": 16},
    "electra-classifier": {**BERT, "architectures": ["ElectraForSequenceClassification"], "model_type": "electra",
                           "embedding_size": 32, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
    "modernbert": MODERNBERT,
    "modernbert-classifier": {**MODERNBERT, "architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "mean",
                              "classifier_bias": True, "classifier_activation": "gelu", "norm_bias": True, "attention_bias": True,
                              "mlp_bias": True, "id2label": {"0": "A", "1": "B"}, "label2id": {"A": 0, "B": 1}},
    "nomic-bert": NOMIC,
    "nomic-bert-published": {**NOMIC, **NOMIC_PUBLISHED},
    "nomic-bert-classifier": {**NOMIC, "architectures": ["NomicBertForSequenceClassification"],
                              "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
    "gte": GTE,
    "gte-published": {**GTE, "type_vocab_size": 0, "layer_norm_type": "layer_norm", "pack_qkv": True,
                      "position_embedding_type": "rope", "logn_attention_scale": False, "logn_attention_clip1": False},
    "gte-classifier": {**GTE, "architectures": ["GteForSequenceClassification"], "id2label": {"0": "A", "1": "B"},
                       "label2id": {"A": 0, "B": 1}},
}
# Checkpoints with the tensors of the code that was published with the weights, to which transformers has a mapping.
PUBLISHED = ("nomic-bert-published", "gte-published")


def with_weights(model, seed: int):
    """The model with random weights, and the names and shapes of its tensors."""
    tensors = []
    for key, value in model.state_dict().items():
        if value.dtype != torch.float64:
            continue
        weights = tiny_weights(key, tuple(value.shape), seed)
        value.copy_(torch.from_numpy(weights.astype(np.float64)))
        tensors.append({"name": key, "shape": list(value.shape), "checksum": checksum(weights)})
    return model, tensors


def as_published(model, seed: int):
    """The model with random weights under the names of its published files, and what these are."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        shapes = {k: tuple(v.shape) for k, v in load_file(f"{folder}/model.safetensors").items()}
        weights = {k: tiny_weights(k, s, seed).astype(np.float64) for k, s in sorted(shapes.items())}
        save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})
        made = AutoModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    tensors = [{"name": k, "shape": list(v.shape), "checksum": checksum(v.astype(np.float32))} for k, v in weights.items()]
    return made, tensors


def main():
    transformers.logging.set_verbosity_error()
    OUT.mkdir(exist_ok=True)
    for name, config in MODELS.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        seed = fnv1a64(("encoder " + name).encode())
        made = AutoConfig.for_model(**{k: v for k, v in config.items() if k != "architectures"})
        made._attn_implementation = "eager"
        classifier = "Classification" in config["architectures"][0]
        model = (AutoModelForSequenceClassification if classifier else AutoModel).from_config(made).double().eval()
        model, tensors = (as_published if name in PUBLISHED else with_weights)(model, seed)
        rng = np.random.default_rng(int(seed & 0xFFFF))
        cases = []
        for length in (1, 7, 16, 23):
            ids = rng.integers(5, 96, length).tolist()
            types = [0] * (length // 2) + [1 if config.get("type_vocab_size", 0) > 1 else 0] * (length - length // 2)
            arguments = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, length, dtype=torch.long)}
            if config.get("type_vocab_size", 0) > 0:
                arguments["token_type_ids"] = torch.tensor([types])
            with torch.no_grad():
                out = model(**arguments)
                hidden = model.base_model(**arguments).last_hidden_state[0].numpy()
            case = {"ids": ids, "types": types, "hidden": [float(f"{v:.8g}") for v in hidden.flatten()]}
            if classifier:
                case["logits"] = [float(f"{v:.8g}") for v in out.logits[0].numpy()]
            cases.append(case)
        (OUT / f"{name}.json").write_text(json.dumps(
            {"generator": f"transformers {transformers.__version__}", "config": config, "weight_seed": f"{seed:016x}",
             "tensors": tensors, "cases": cases}, separators=(",", ":")) + "\n")
        print(name, len(tensors))


if __name__ == "__main__":
    main()
