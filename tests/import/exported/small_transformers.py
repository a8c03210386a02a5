"""Small models of the `transformers` package with random weights: MODELS[name]() is a model and its keyword arguments."""
import torch
import transformers as t

TEXT = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "max_position_embeddings": 128}
IMAGE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 64,
         "patch_size": 16}
SPEECH = {**TEXT, "conv_dim": [32] * 3, "conv_kernel": [10, 3, 3], "conv_stride": [5, 2, 2], "num_feat_extract_layers": 3,
          "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
PAIR = {"vocab_size": 99, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "use_cache": False}
T5 = {"vocab_size": 99, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "use_cache": False}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 64, 64]}


def ids(n=24):
    return torch.randint(3, 90, (1, n))


def ones(n=24):
    return torch.ones(1, n, dtype=torch.long)


def image(size=64):
    return torch.rand(1, 3, size, size)


def config(name, **settings):
    return getattr(t, name + "Config")(**settings)


def of(name, head=None, **settings):
    made = config(name, **settings)
    made._attn_implementation = "eager"
    return getattr(t, head or name + "Model")(made)


def text(name, head=None, **settings):
    return lambda: (of(name, head, **{**TEXT, **settings}), {"input_ids": ids(), "attention_mask": ones()})


def tokens(name, head=None, n=24, **settings):
    return lambda: (of(name, head, **settings), {"input_ids": ids(n)})


def pixels(name, head=None, size=64, **settings):
    return lambda: (of(name, head, **settings), {"pixel_values": image(size)})


def sequences(name, head, **settings):
    return lambda: (of(name, head, **settings), {"input_ids": ids(), "decoder_input_ids": ids(8)})


def clip(name, **more):
    def make():
        made = config(name, text_config={**TEXT, **more}, vision_config={**IMAGE, **more})
        return getattr(t, name + "Model")(made), {"input_ids": ids(), "pixel_values": image()}
    return make


def detr():
    backbone = t.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1] * 4, out_features=["stage4"])
    made = t.DetrConfig(use_timm_backbone=False, backbone_config=backbone, use_pretrained_backbone=False, backbone=None, d_model=64,
                        encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
                        encoder_ffn_dim=128, decoder_ffn_dim=128, num_queries=10)
    mask = torch.ones(1, 128, 128, dtype=torch.long)
    return t.DetrForObjectDetection(made), {"pixel_values": image(128), "pixel_mask": mask}


def rt_detr():
    backbone = t.RTDetrResNetConfig(embedding_size=16, hidden_sizes=[64, 128, 256, 512], depths=[1] * 4, layer_type="basic",
                                    out_features=["stage2", "stage3", "stage4"])
    made = t.RTDetrConfig(encoder_hidden_dim=64, d_model=64, encoder_in_channels=[128, 256, 512], num_queries=20, decoder_layers=2,
                          decoder_attention_heads=4, decoder_in_channels=[64] * 3, encoder_attention_heads=4, encoder_ffn_dim=128,
                          decoder_ffn_dim=128, backbone_config=backbone)
    return t.RTDetrForObjectDetection(made), {"pixel_values": image(128)}


def depth_anything():
    backbone = t.Dinov2Config(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, image_size=70, patch_size=14,
                              out_indices=[1, 2, 3, 4], reshape_hidden_states=False)
    made = t.DepthAnythingConfig(backbone_config=backbone, reassemble_hidden_size=64, neck_hidden_sizes=[16, 32, 64, 64],
                                 fusion_hidden_size=32)
    return t.DepthAnythingForDepthEstimation(made), {"pixel_values": image(70)}


def encodec():
    made = t.EncodecConfig(num_filters=8, hidden_size=32, codebook_size=64, upsampling_ratios=[4, 2], chunk_length_s=None)
    return t.EncodecModel(made).encoder, {"hidden_states": torch.randn(1, 1, 640)}


def layoutlm():
    boxes = torch.randint(0, 500, (1, 24, 4)).sort(-1).values
    return of("LayoutLM", **TEXT), {"input_ids": ids(), "bbox": boxes}


def whisper_encoder():
    made = config("Whisper", **PAIR, max_source_positions=100, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                  decoder_start_token_id=1)
    return t.WhisperModel(made).encoder, {"input_features": torch.rand(1, 80, 200)}


MODELS = {
    # Text.
    "bert": text("Bert"),
    "bert-squad": text("Bert", "BertForQuestionAnswering"),
    "bert-mlm": text("Bert", "BertForMaskedLM"),
    "albert": text("Albert", embedding_size=32),
    "roberta": text("Roberta", "RobertaForSequenceClassification"),
    "xlm-roberta": text("XLMRoberta"),
    "camembert": text("Camembert"),
    "distilbert": tokens("DistilBert", vocab_size=99, dim=64, n_layers=2, n_heads=4, hidden_dim=128),
    "electra": text("Electra", embedding_size=32),
    "deberta": text("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=64),
    "deberta-v2": text("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=32, share_att_key=True,
                       norm_rel_ebd="layer_norm", conv_kernel_size=3),
    "mpnet": text("MPNet"),
    "ernie": text("Ernie"),
    "roformer": text("RoFormer", embedding_size=64),
    "rembert": text("RemBert", input_embedding_size=32, output_embedding_size=32),
    "convbert": text("ConvBert", embedding_size=32),
    "squeezebert": text("SqueezeBert", embedding_size=64, q_groups=2, k_groups=2, v_groups=2, post_attention_groups=1,
                        intermediate_groups=2, output_groups=2),
    "mobilebert": text("MobileBert", embedding_size=32, true_hidden_size=32, intra_bottleneck_size=32),
    "fnet": tokens("FNet", vocab_size=99, hidden_size=64, num_hidden_layers=2, intermediate_size=128),
    "bigbird": text("BigBird", attention_type="original_full"),
    "modernbert": text("ModernBert", pad_token_id=0, global_attn_every_n_layers=2, local_attention=16),
    "funnel": tokens("Funnel", vocab_size=99, d_model=64, n_head=4, d_head=16, d_inner=128, block_sizes=[1, 1]),
    "xlnet": tokens("XLNet", vocab_size=99, d_model=64, n_layer=2, n_head=4, d_inner=128),
    "gpt2": tokens("GPT2", "GPT2LMHeadModel", vocab_size=99, n_embd=64, n_layer=2, n_head=4, use_cache=False),
    "llama": tokens("Llama", "LlamaForCausalLM", **TEXT, num_key_value_heads=2, use_cache=False),
    "qwen3": tokens("Qwen3", "Qwen3ForCausalLM", **TEXT, num_key_value_heads=2, head_dim=16, use_cache=False),
    "opt": tokens("OPT", "OPTForCausalLM", vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=128,
                  word_embed_proj_dim=64, use_cache=False),
    "bloom": tokens("Bloom", "BloomForCausalLM", vocab_size=99, hidden_size=64, n_layer=2, n_head=4, use_cache=False),
    "mamba": tokens("Mamba", "MambaForCausalLM", n=8, vocab_size=99, hidden_size=32, num_hidden_layers=2, use_cache=False),
    "t5-encoder": tokens("T5", "T5EncoderModel", **T5),
    "t5": sequences("T5", "T5ForConditionalGeneration", **T5),
    "bart": sequences("Bart", "BartForConditionalGeneration", **PAIR),
    "marian": sequences("Marian", "MarianMTModel", **PAIR, pad_token_id=0),
    "trocr-decoder": tokens("TrOCR", "TrOCRForCausalLM", n=8, vocab_size=99, d_model=64, decoder_layers=2,
                            decoder_attention_heads=4, decoder_ffn_dim=128, use_cache=False),
    "layoutlm": layoutlm,
    # Sound and series.
    "whisper-encoder": whisper_encoder,
    "wav2vec2": lambda: (of("Wav2Vec2", "Wav2Vec2ForCTC", **SPEECH), {"input_values": torch.randn(1, 3200)}),
    "hubert": lambda: (of("Hubert", **SPEECH), {"input_values": torch.randn(1, 3200)}),
    "encodec-encoder": encodec,
    "ast": lambda: (of("AST", **{k: v for k, v in IMAGE.items() if k not in ("image_size", "patch_size")}, max_length=128,
                       num_mel_bins=64), {"input_values": torch.randn(1, 128, 64)}),
    "patchtst": lambda: (of("PatchTST", num_input_channels=2, context_length=64, patch_length=8, patch_stride=8, d_model=32,
                            num_hidden_layers=2, num_attention_heads=4, ffn_dim=64), {"past_values": torch.randn(1, 64, 2)}),
    # Images.
    "vit": pixels("ViT", **IMAGE),
    "deit": pixels("DeiT", **IMAGE),
    "beit": pixels("Beit", **IMAGE),
    "dinov2": pixels("Dinov2", **IMAGE),
    "dinov3": pixels("DINOv3ViT", **IMAGE),
    "ijepa": pixels("IJepa", **IMAGE),
    "swin": pixels("Swin", image_size=64, patch_size=4, embed_dim=32, depths=[1, 2], num_heads=[2, 4], window_size=4),
    "swinv2": pixels("Swinv2", image_size=64, patch_size=4, embed_dim=32, depths=[1, 2], num_heads=[2, 4], window_size=4),
    "convnext": pixels("ConvNext", hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1]),
    "convnextv2": pixels("ConvNextV2", hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1]),
    "levit": pixels("Levit", size=224),
    "mobilevit": pixels("MobileViT", size=128),
    "mobilevitv2": pixels("MobileViTV2", size=128),
    "pvt-v2": pixels("PvtV2"),
    "poolformer": pixels("PoolFormer"),
    "cvt": pixels("Cvt"),
    "focalnet": pixels("FocalNet", image_size=64, embed_dim=32, depths=[1, 1, 1, 1]),
    "hiera": pixels("Hiera", size=224),
    "vitdet": pixels("VitDet", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=16,
                     pretrain_image_size=64),
    "resnet": pixels("ResNet"),
    "regnet": pixels("RegNet"),
    "bit": pixels("Bit"),
    "efficientnet": pixels("EfficientNet", image_size=64),
    "mobilenet-v1": pixels("MobileNetV1"),
    "segformer": pixels("Segformer", "SegformerForSemanticSegmentation", size=128, **STAGES, decoder_hidden_size=64),
    "glpn": pixels("GLPN", "GLPNForDepthEstimation", **STAGES, num_attention_heads=[1, 2, 4, 4], decoder_hidden_size=64),
    "dpt": pixels("DPT", "DPTForDepthEstimation", **{**IMAGE, "num_hidden_layers": 4}, backbone_out_indices=[0, 1, 2, 3],
                  neck_hidden_sizes=[16, 32, 64, 64], fusion_hidden_size=32),
    "depth-anything": depth_anything,
    "swin2sr": pixels("Swin2SR", "Swin2SRForImageSuperResolution", size=32, image_size=32, embed_dim=32, depths=[2, 2],
                      num_heads=[2, 2], window_size=4),
    "sam-vision": pixels("SamVision", "SamVisionModel", size=128, hidden_size=64, output_channels=32, num_hidden_layers=2,
                         num_attention_heads=4, image_size=128, patch_size=16, mlp_dim=128, window_size=4, global_attn_indexes=[1]),
    "yolos": pixels("Yolos", "YolosForObjectDetection", **{**IMAGE, "image_size": [64, 64]}, num_detection_tokens=10),
    "detr": detr,
    "rt-detr": rt_detr,
    "superpoint": pixels("SuperPoint", "SuperPointForKeypointDetection"),
    "timesformer": lambda: (of("Timesformer", **IMAGE, num_frames=2), {"pixel_values": torch.rand(1, 2, 3, 64, 64)}),
    "videomae": lambda: (of("VideoMAE", **IMAGE, num_frames=4), {"pixel_values": torch.rand(1, 4, 3, 64, 64)}),
    # Both.
    "clip": clip("CLIP", projection_dim=32),
    "clip-vision": pixels("CLIPVision", "CLIPVisionModel", **IMAGE),
    "siglip": clip("Siglip"),
    "siglip-vision": pixels("SiglipVision", "SiglipVisionModel", **IMAGE),
}
