#!/usr/bin/env python3
"""Programs of one detection op each, as PIR json and as ProgramDesc, and what PaddlePaddle computes:
generate_paddle_detection.py OUTPUT.json. Needs `pip install paddlepaddle` (made with 3.2.2). Committed:
golden/paddle_detection.json. Both spellings must compute the same; PIR programs of two cases per op are kept, which is where
the spellings differ. Older ops have a ProgramDesc alone."""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

CASES = {}
rng = np.random.RandomState(21)


def f(*shape, low=-1.0, high=1.0):
    return np.round(rng.uniform(low, high, shape), 3).astype("float32")


def boxes(*shape, size=1.0):
    """Corners x1 y1 x2 y2 inside a square of this size."""
    a, b = rng.uniform(0, 0.6, (*shape, 2)), rng.uniform(0.1, 0.4, (*shape, 2))
    return np.round(np.concatenate([a, a + b], -1) * size, 3).astype("float32")


def scores(*shape):
    """Distinct: ties are cases of their own."""
    n = int(np.prod(shape))
    return (rng.permutation(n).reshape(shape) / n).astype("float32")


# Operands (with the slots of a ProgramDesc), results and attributes, in PIR's order.
NMS_ATTRS = ["score_threshold", "nms_top_k", "keep_top_k", "nms_threshold", "normalized", "nms_eta", "background_label"]
PROPOSAL_ATTRS = ["pre_nms_topN", "post_nms_topN", "nms_thresh", "min_size", "eta"]
OPS = {
    "multiclass_nms": (None, ["BBoxes", "Scores"], ["Out"], NMS_ATTRS),
    "multiclass_nms3": ("multiclass_nms3", ["BBoxes", "Scores", "RoisNum"], ["Out", "Index", "NmsRoisNum"], NMS_ATTRS),
    "generate_proposals": (None, ["Scores", "BboxDeltas", "ImInfo", "Anchors", "Variances"],
                           ["RpnRois", "RpnRoiProbs", "RpnRoisNum"], PROPOSAL_ATTRS),
    "generate_proposals_v2": ("generate_proposals", ["Scores", "BboxDeltas", "ImShape", "Anchors", "Variances"],
                              ["RpnRois", "RpnRoiProbs", "RpnRoisNum"], PROPOSAL_ATTRS + ["pixel_offset"]),
    "yolo_box": ("yolo_box", ["X", "ImgSize"], ["Boxes", "Scores"],
                 ["anchors", "class_num", "conf_thresh", "downsample_ratio", "clip_bbox", "scale_x_y", "iou_aware",
                  "iou_aware_factor"]),
    "prior_box": ("prior_box", ["Input", "Image"], ["Boxes", "Variances"],
                  ["min_sizes", "max_sizes", "aspect_ratios", "variances", "flip", "clip", "step_w", "step_h", "offset",
                   "min_max_aspect_ratios_order"]),
    "box_coder": ("box_coder", ["PriorBox", "PriorBoxVar", "TargetBox"], ["OutputBox"],
                  ["code_type", "box_normalized", "axis", "variance"]),
}


def case(name, op, inputs, **attrs):
    """`inputs`: an array per slot, None for one left out."""
    CASES[name] = (op, inputs, attrs)


# ---- multiclass_nms
def nms(name, b, s, rois=None, op="multiclass_nms3", **attrs):
    given = dict(score_threshold=0.2, nms_top_k=-1, keep_top_k=-1, nms_threshold=0.3, normalized=True, nms_eta=1.0,
                 background_label=-1)
    given.update(attrs)
    case(name, op, [b, s, rois] if op == "multiclass_nms3" else [b, s], **given)


B, S = boxes(2, 12), scores(2, 3, 12)
nms("nms", B, S)
nms("nms_background", B, S, background_label=1)
nms("nms_top", B, S, nms_top_k=4, keep_top_k=5)
nms("nms_top_none", B[:1, :3], S[:1, :, :3], nms_top_k=0)
nms("nms_keep_none", B[:1, :3], S[:1, :, :3], keep_top_k=0)
nms("nms_eta", B, S, nms_threshold=0.8, nms_eta=0.6)
nms("nms_pixels", np.round(boxes(1, 12, size=20)), scores(1, 2, 12), normalized=False)
nms("nms_empty", B[:, :3], S[:, :, :3], score_threshold=2.0)
nms("nms_one_image_empty", B, S * np.array([[[0.1]], [[1]]], "float32"), keep_top_k=3)
nms("nms_ties", boxes(1, 10), np.repeat(np.array([[[0.5], [0.7]]], "float32"), 10, 2), keep_top_k=6)
# Corners in the wrong order have no area; an overlap of exactly the threshold is kept.
nms("nms_odd_boxes", np.array([[[0, 0, 1, 1], [0, 0, 1, 0.5], [0.8, 0.8, 0.2, 0.2], [0.3, 0.3, 0.3, 0.3], [0.3, 0.3, 0.3, 0.3]]],
                              "float32"), np.array([[[0.9, 0.8, 0.7, 0.6, 0.5]]], "float32"), nms_threshold=0.5)
nms("nms_by_class", boxes(9, 3), scores(9, 3), np.array([4, 0, 5], "int32"), background_label=0, keep_top_k=4)
nms("nms_without_index", B, S, op="multiclass_nms", keep_top_k=5)
nms("nms_without_index_empty", B[:, :3], S[:, :, :3], op="multiclass_nms", score_threshold=2.0)

# ---- generate_proposals
def proposals(name, images=2, op="generate_proposals_v2", s=None, size=None, h=2, w=3, a=2, **attrs):
    given = dict(pre_nms_topN=0, post_nms_topN=0, nms_thresh=0.5, min_size=0.1, eta=1.0)
    if op == "generate_proposals_v2":
        given["pixel_offset"] = False
    given.update(attrs)
    s = scores(images, a, h, w) if s is None else s
    size = np.array([[24, 30]] * images, "float32") if size is None else size
    case(name, op, [s, f(images, 4 * a, h, w), size, boxes(h, w, a, size=30), f(h, w, a, 4, low=0.1, high=0.5)], **given)


proposals("proposals")
proposals("proposals_pixels", pixel_offset=True, min_size=6.0)
proposals("proposals_top", pre_nms_topN=7, post_nms_topN=3)
proposals("proposals_eta", nms_thresh=0.7, eta=0.5)
proposals("proposals_all", nms_thresh=0.0)
proposals("proposals_none_left", min_size=100.0)
proposals("proposals_ties", images=1, s=np.array([[[[0.5, 0.5, 0.5], [0.25, 0.5, 0.25]], [[0.5, 0.25, 0.5], [0.5, 0.25, 0.25]]]], "float32"))
proposals("proposals_v1", op="generate_proposals", size=np.array([[24, 30, 0.5], [20, 18, 2]], "float32"), min_size=6.0)

# ---- yolo_box
def yolo(name, h=2, w=3, anchors=(10, 13, 16, 30), x=None, **attrs):
    given = dict(anchors=list(anchors), class_num=2, conf_thresh=0.4, downsample_ratio=8, clip_bbox=True, scale_x_y=1.0,
                 iou_aware=False, iou_aware_factor=0.5)
    given.update(attrs)
    channels = len(anchors) // 2 * (5 + given["class_num"] + given["iou_aware"])
    x = f(2, channels, h, w, low=-1.5, high=1.5) if x is None else x
    case(name, "yolo_box", [x, np.array([[40, 33], [21, 50]], "int32")], **given)


yolo("yolo")
yolo("yolo_no_clip", clip_bbox=False, scale_x_y=1.2)
yolo("yolo_iou_aware", iou_aware=True, iou_aware_factor=0.3, class_num=1)
yolo("yolo_none", conf_thresh=0.99)
# A confidence of exactly the threshold counts; sizes that overflow count where the confidence does not.
yolo("yolo_edges", h=1, w=2, anchors=(10, 13), class_num=1, conf_thresh=0.5,
     x=np.array([[[[0, 1]], [[1, 0]], [[0, 100]], [[0.5, 100]], [[0, -0.5]], [[0, 0]]]] * 2, "float32"))

# ---- prior_box
def prior(name, h=1, w=2, **attrs):
    given = dict(min_sizes=[4.0, 9.0], max_sizes=[8.0, 15.0], aspect_ratios=[2.0, 3.0], variances=[0.1, 0.1, 0.2, 0.2], flip=True,
                 clip=False, step_w=0.0, step_h=0.0, offset=0.5, min_max_aspect_ratios_order=False)
    given.update(attrs)
    case(name, "prior_box", [f(1, 1, h, w), np.zeros((1, 1, 9, 11), "float32")], **given)


prior("prior", h=2)
prior("prior_order", min_max_aspect_ratios_order=True, clip=True, flip=False)
prior("prior_steps", max_sizes=[], aspect_ratios=[1.0, 2.0, 2.0, 0.5], step_w=7.0, step_h=5.0, offset=0.25)
prior("prior_one_step", min_sizes=[5.0], max_sizes=[6.0], aspect_ratios=[1.0], step_w=7.0)

# ---- box_coder
PRIORS, PRIOR_VARIANCES = boxes(3, size=10), f(3, 4, low=0.1, high=0.9)


def coder(name, target, variances=None, decode=False, **attrs):
    given = dict(code_type="decode_center_size" if decode else "encode_center_size", box_normalized=True, axis=0, variance=[])
    given.update(attrs)
    case(name, "box_coder", [PRIORS, variances, target], **given)


coder("encode", boxes(2, size=10), PRIOR_VARIANCES)
coder("encode_attribute", boxes(2, size=10), variance=[0.1, 0.2, 0.3, 0.4], box_normalized=False)
coder("encode_plain", boxes(2, size=10))
coder("decode", f(2, 3, 4), PRIOR_VARIANCES, decode=True)
coder("decode_rows", f(3, 2, 4), PRIOR_VARIANCES, decode=True, axis=1)
coder("decode_attribute", f(2, 3, 4), decode=True, variance=[0.1, 0.2, 0.3, 0.4], box_normalized=False)
coder("decode_rows_plain", f(3, 2, 4), decode=True, axis=1)


def call(op, values, attrs):
    """The op's results; a value of None is an operand left out."""
    import paddle
    from paddle.base.layer_helper import LayerHelper
    pir_name, slots, results, order = OPS[op]
    if os.environ["FLAGS_enable_pir_api"] != "0":
        got = getattr(paddle._C_ops, pir_name)(*values, *(attrs[k] for k in order))
        return got if isinstance(got, (list, tuple)) else [got]
    helper = LayerHelper(op)
    integer = {"Index", "NmsRoisNum", "RpnRoisNum"}
    made = {slot: [helper.create_variable_for_type_inference("int32" if slot in integer else "float32")] for slot in results}
    helper.append_op(type=op, inputs={s: [v] for s, v in zip(slots, values) if v is not None}, outputs=made, attrs=attrs)
    return [made[slot][0] for slot in results]


def builder(op, inputs, attrs):
    def build(*fed):
        fed = list(fed)
        return call(op, [fed.pop(0) if given is not None else None for given in inputs], attrs)
    return build


# ---- how models put them together
def nms_of(boxes, scores):
    import paddle
    return call("multiclass_nms3", [boxes, paddle.transpose(scores, [0, 2, 1]), None],
                dict(score_threshold=0.1, nms_top_k=20, keep_top_k=8, nms_threshold=0.45, normalized=True, nms_eta=1.0,
                     background_label=-1))


def yolo_head(coarse, fine, size):
    import paddle
    parts = [call("yolo_box", [x, size], dict(anchors=anchors, class_num=2, conf_thresh=0.3, downsample_ratio=ratio, clip_bbox=True,
                                              scale_x_y=1.05, iou_aware=False, iou_aware_factor=0.5))
             for x, anchors, ratio in ((coarse, [16, 13, 20, 30], 16), (fine, [5, 7, 8, 6], 8))]
    return nms_of(*(paddle.concat([p[k] for p in parts], axis=1) for k in range(2)))


def ssd_head(feature, image, differences, classes):
    import paddle
    priors, variances = call("prior_box", [feature, image], dict(
        min_sizes=[4.0], max_sizes=[8.0], aspect_ratios=[2.0], variances=[0.1, 0.1, 0.2, 0.2], flip=True, clip=True, step_w=0.0,
        step_h=0.0, offset=0.5, min_max_aspect_ratios_order=False))
    boxes = call("box_coder", [paddle.reshape(priors, [-1, 4]), paddle.reshape(variances, [-1, 4]), differences],
                 dict(code_type="decode_center_size", box_normalized=True, axis=0, variance=[]))[0]
    return nms_of(boxes, paddle.nn.functional.softmax(classes))


def rpn_head(s, differences, size, anchors, variances, features):
    import paddle
    boxes, chances, counts = call("generate_proposals_v2", [s, differences, size, anchors, variances], dict(
        pre_nms_topN=10, post_nms_topN=4, nms_thresh=0.6, min_size=1.0, eta=1.0, pixel_offset=False))
    return [paddle.vision.ops.roi_align(features, boxes, counts, 2, spatial_scale=0.1, sampling_ratio=2), chances, counts]


def whole(name, head, *inputs):
    CASES[name] = (head, list(inputs), None)


whole("yolo_head", yolo_head, f(2, 14, 1, 2, low=-2, high=2), f(2, 14, 2, 4, low=-2, high=2), np.array([[32, 64], [20, 30]], "int32"))
whole("ssd_head", ssd_head, f(1, 1, 2, 3), np.zeros((1, 1, 9, 11), "float32"), f(1, 24, 4), f(1, 24, 3, low=-2, high=2))
whole("rpn_head", rpn_head, scores(2, 2, 2, 3), f(2, 8, 2, 3), np.array([[24, 30], [20, 25]], "float32"), boxes(2, 3, 2, size=30),
      f(2, 3, 2, 4, low=0.1, high=0.5), f(2, 1, 3, 4))


def one_spelling(path):
    import paddle
    import generate_paddle_ops as ops
    paddle.enable_static()
    pir = os.environ["FLAGS_enable_pir_api"] != "0"
    done = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (op, inputs, attrs) in CASES.items():
            if pir and not callable(op) and OPS[op][0] is None:
                continue
            fed = tuple(v for v in inputs if v is not None)
            build = op if callable(op) else builder(op, inputs, attrs)
            done[name] = ops.make(name, build, fed, op != "prior_box", pir, folder)
    with open(path, "w") as out:
        json.dump(done, out)


def main():
    if "FLAGS_enable_pir_api" in os.environ:
        return one_spelling(sys.argv[1])
    spellings = []
    with tempfile.TemporaryDirectory() as folder:
        for flag in "10":
            path = os.path.join(folder, flag)
            subprocess.run([sys.executable, __file__, path], check=True, env=dict(os.environ, FLAGS_enable_pir_api=flag))
            with open(path) as src:
                spellings.append(json.load(src))
    (pir, legacy), kept = spellings, {}
    for name, c in legacy.items():
        c["programs"] = [c.pop("program")]
        if name not in pir:
            continue
        if pir[name]["outputs"] != c["outputs"]:
            sys.exit(f"{name}: the two spellings differ: {pir[name]['outputs']} {c['outputs']}")
        op = str(CASES[name][0])
        kept[op] = kept.get(op, 0) + 1
        if kept[op] <= 2 or name == "nms_by_class":
            c["programs"].append(pir[name]["program"])
    with open(sys.argv[1], "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in legacy.values()) + "\n]\n")
    print(f"{len(legacy)} cases")


if __name__ == "__main__":
    main()
