#!/usr/bin/env python3
"""A text detector, a recognizer and a classifier of upside-down lines, small and of PP-OCR's shape, trained on lines drawn
here: generate_ocr.py [det] [rec] [cls] [conv]. Writes tests/data/ocr: det and rec as PaddlePaddle saved programs before 3.0
(.pdmodel), cls and det_pir as it saves them since (PIR .json), det.onnx (det's weights in ONNX, batch norms written out),
dict.txt, line.png, and conv_* (one convolution, its norm, an activation: what fuses into one op). Needs `pip install
paddlepaddle onnx pillow` (made with 3.3.1, 1.23.2 and 13.0.0); minutes on one core. Another processor trains other weights:
commit all files together, and the goldens of tests/import/generate_paddle_models.py anew."""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/data/ocr"
LETTERS = "ADEHILNORST"  # class 0 is the blank, the last one the space
LINE = "OAR READS THIS LINE"

if len(sys.argv) != 2:  # PaddlePaddle chooses what it saves when it is imported: one process for each part
    for part in sys.argv[1:] or ["conv", "det", "rec", "cls"]:
        subprocess.run([sys.executable, __file__, part], check=True)
    sys.exit(0)
PART = sys.argv[1]
os.environ["FLAGS_enable_pir_api"] = "1" if PART == "cls" else "0"

import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F
from PIL import Image, ImageDraw, ImageFont


def draw_line(random, text, height, size, margin, tracking, top):
    """A white picture with the text in it; the columns of the letters' centres."""
    font = ImageFont.load_default(size=size)
    widths = [font.getlength(c) for c in text]
    picture = Image.new("L", (int(sum(widths) + tracking * len(text)) + 2 * margin, height), 255)
    pen, x, centres = ImageDraw.Draw(picture), float(margin), []
    for c, w in zip(text, widths):
        pen.text((x, top), c, fill=int(random.integers(0, 60)), font=font)
        centres.append(x + w / 2)
        x += w + tracking
    return np.asarray(picture, np.float32), centres


def words(random, most):
    n = int(random.integers(4, most))
    text = "".join(random.choice(list(LETTERS)) if random.random() > 0.15 else " " for _ in range(n))
    return " ".join(text.split()) or "A"


def random_line(random, most, height=32):
    size = int(random.integers(18, 27)) * height / 32
    return draw_line(random, words(random, most), height, size, int(random.integers(2, 12)), random.uniform(3, 7) * height / 32,
                     random.uniform(-0.2, 0.6) * (height - size))


def rows(pictures, width):
    """[N, 3, H, width], each value in [-1, 1], zero behind a line's end."""
    x = np.zeros((len(pictures), 3, pictures[0].shape[0], width), np.float32)
    for k, p in enumerate(pictures):
        w = min(width, p.shape[1])
        x[k, :, :, :w] = p[:, :w] / 127.5 - 1
    return x


def sigmoid(x):
    """As an op of programs before 3.0 too, for which PaddlePaddle 3 has no function any more."""
    if paddle.in_dynamic_mode() or PART == "cls":
        return F.sigmoid(x)
    from paddle.base.layer_helper import LayerHelper
    helper = LayerHelper("sigmoid")
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(type="sigmoid", inputs={"X": x}, outputs={"Out": out})
    return out


class ConvBn(nn.Sequential):
    def __init__(self, inputs, outputs, kernel, stride=1, groups=1, act=nn.Hardswish):
        super().__init__(nn.Conv2D(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias_attr=False),
                         nn.BatchNorm2D(outputs), *([act()] if act else []))


class Separable(nn.Sequential):
    """A depthwise convolution and one of single pixels, MobileNet's pair."""

    def __init__(self, inputs, outputs, kernel, stride=1):
        super().__init__(ConvBn(inputs, inputs, kernel, stride, groups=inputs), ConvBn(inputs, outputs, 1))


class Detector(nn.Layer):
    def __init__(self):
        super().__init__()
        self.stem, self.quarter = ConvBn(3, 8, 3, 2), ConvBn(8, 16, 3, 2)
        self.deep = nn.Sequential(Separable(16, 24, 5), Separable(24, 24, 5), Separable(24, 24, 5))
        self.lateral, self.out = ConvBn(8, 24, 1, act=None), nn.Conv2D(24, 1, 3, padding=1)

    def forward(self, x):  # [N, 3, H, W] -> [N, 1, H, W]
        half = self.stem(x)
        up = F.interpolate(self.deep(self.quarter(half)), scale_factor=2, mode="nearest") + self.lateral(half)
        return sigmoid(F.interpolate(self.out(up), scale_factor=2, mode="nearest"))


class Recognizer(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(ConvBn(3, 16, 3, 2), Separable(16, 32, 3, (2, 1)), Separable(32, 48, 3, (2, 2)),
                                  ConvBn(48, 48, 3, (2, 1)), nn.AvgPool2D((2, 1)))
        self.rnn = nn.LSTM(48, 24, direction="bidirect")
        self.rnn._dropout_state = paddle.zeros([1], "uint8")  # left empty, no program of the old kind can be saved
        self.out = nn.Linear(48, len(LETTERS) + 2)

    def forward(self, x):  # [N, 3, 32, W] -> [N, W / 4, classes]
        steps = self.body(x).squeeze(2).transpose([0, 2, 1])
        y = self.out(self.rnn(steps)[0])
        return y if self.training else F.softmax(y, axis=2)


class Classifier(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(ConvBn(3, 16, 3, 2), Separable(16, 32, 3, 2), Separable(32, 48, 5, 2), Separable(48, 48, 5))
        self.out = nn.Linear(48, 2)

    def forward(self, x):  # [N, 3, 48, 192] -> [N, 2]: upright, upside down
        y = self.out(self.body(x).mean([2, 3]))
        return y if self.training else F.softmax(y, axis=1)


def train(net, steps, batch_loss, rate=4e-3):
    paddle.seed(1)
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(rate, steps)
    optimizer = paddle.optimizer.Adam(schedule, parameters=net.parameters(), grad_clip=nn.ClipGradByGlobalNorm(2.0))
    random = np.random.default_rng(1)
    kept = pathlib.Path(tempfile.gettempdir()) / f"oar-ocr-{PART}.pdparams"  # delete it to train anew
    if kept.exists():
        net.set_state_dict(paddle.load(str(kept)))
        return
    net.train()
    for step in range(steps):
        loss = batch_loss(net, random)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        schedule.step()
        if step % 25 == 24:
            print(f"{PART} step {step + 1}: loss {loss.item():.4f}", flush=True)
    paddle.save(net.state_dict(), str(kept))


def save(net, folder, shape, name="x"):
    net.eval()
    paddle.jit.save(net, str(OUT / folder / "inference"), input_spec=[paddle.static.InputSpec(shape, "float32", name)])
    info = OUT / folder / "inference.pdiparams.info"
    if info.exists():
        info.unlink()  # for training on


def detector_loss(net, random):
    """Pages of one or two lines; the target is each line's rectangle, shrunk as section 3.4 of differentiable binarization says."""
    pages = np.full((4, 128, 160), 255, np.float32)
    target = np.zeros((4, 1, 128, 160), np.float32)
    for page, mask in zip(pages, target[:, 0]):
        for band in range(int(random.integers(0, 3))):
            picture, _ = random_line(random, 9)
            dark = np.argwhere(picture < 128)
            (y0, x0), (y1, x1) = dark.min(0), dark.max(0) + 1
            piece = picture[y0:y1, x0:x1][:, :140]
            h, w = piece.shape
            y, x = int(random.integers(7, 57 - h)) + 64 * band, int(random.integers(7, 160 - w - 6))
            page[y:y + h, x:x + w] = piece
            w, h, x, y = w + 12, h + 12, x - 6, y - 6  # labels leave air around the letters
            d = int(round(w * h * (1 - 0.4 ** 2) / (2 * (w + h))))
            mask[y + d:y + h - d, x + d:x + w - d] = 1
    mean, std = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
    x = (pages[:, None] / 255 - mean[None, :, None, None]) / std[None, :, None, None]
    p, t = net(paddle.to_tensor(x)), paddle.to_tensor(target)
    bce = F.binary_cross_entropy(p, t, weight=1 + 4 * t)
    return bce + 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def recognizer_loss(net, random):
    """Each step knows its class: the letter whose centre it covers, else the blank."""
    lines, labels = [], np.zeros((8, 60), np.int64)
    for k in range(8):
        # From a line with air around it to one that a detector has cut close; capitals are 0.72 of their size high.
        size, margin = int(random.integers(18, 38)), int(random.integers(2, 14))
        text = words(random, 11)
        picture, centres = draw_line(random, text, 32, size, margin, random.uniform(0.18, 0.32) * size,
                                     16 - 0.59 * size + random.uniform(-3, 3))
        lines.append(picture + random.normal(0, 4, picture.shape).astype(np.float32))
        for c, at in zip(text, centres):
            for step in (int(at / 4 - 0.25), int(at / 4 + 0.25)):
                if step < 60:
                    labels[k, step] = LETTERS.find(c) + 1 if c != " " else len(LETTERS) + 1
    y = net(paddle.to_tensor(rows(lines, 240)))
    return F.cross_entropy(y.reshape([-1, y.shape[2]]), paddle.to_tensor(labels.reshape(-1)))


def classifier_loss(net, random):
    lines, turned = [], random.integers(0, 2, 12)
    for t in turned:
        picture = random_line(random, 22, 48)[0]  # long ones are pressed together, as TextReader does
        if picture.shape[1] > 192:
            picture = np.asarray(Image.fromarray(picture.astype(np.uint8)).resize((192, 48), Image.BILINEAR), np.float32)
        lines.append(picture[::-1, ::-1] if t else picture)
    return F.cross_entropy(net(paddle.to_tensor(rows(lines, 192))), paddle.to_tensor(turned.astype(np.int64)))


def detector_onnx(net):
    from onnx import TensorProto, helper, numpy_helper
    nodes, weights = [], []

    def constant(name, value):
        weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def conv(layer, x, name):
        attributes = {"kernel_shape": list(layer.weight.shape[2:]), "strides": list(layer._stride), "group": layer._groups,
                      "pads": [layer.weight.shape[2] // 2] * 4}
        inputs = [x, constant(name + ".weight", layer.weight.numpy())]
        if layer.bias is not None:
            inputs.append(constant(name + ".bias", layer.bias.numpy()))
        nodes.append(helper.make_node("Conv", inputs, [name], **attributes))
        return name

    def block(layers, x, name):
        for k, layer in enumerate(layers):
            at = f"{name}.{k}"
            if isinstance(layer, nn.Sequential):
                x = block(layer, x, at)
            elif isinstance(layer, nn.Conv2D):
                x = conv(layer, x, at)
            elif isinstance(layer, nn.BatchNorm2D):
                named = zip("wbmv", (layer.weight, layer.bias, layer._mean, layer._variance))
                nodes.append(helper.make_node("BatchNormalization", [x, *(constant(f"{at}.{n}", v.numpy()) for n, v in named)], [at],
                                              epsilon=layer._epsilon))
                x = at
            else:
                nodes.append(helper.make_node("HardSwish", [x], [at]))
                x = at
        return x

    def double(x, name):
        nodes.append(helper.make_node("Resize", [x, "", constant(name + ".scales", np.array([1, 1, 2, 2], np.float32))], [name],
                                      mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"))
        return name

    half = block(net.stem, "x", "half")
    deep = block(net.deep, block(net.quarter, half, "quarter"), "deep")
    nodes.append(helper.make_node("Add", [double(deep, "up"), block(net.lateral, half, "lateral")], ["sum"]))
    nodes.append(helper.make_node("Sigmoid", [double(conv(net.out, "sum", "out"), "map")], ["y"]))
    dims = lambda c: ["batch", c, "height", "width"]
    graph = helper.make_graph(nodes, "detector", [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims(3))],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims(1))], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    (OUT / "det.onnx").write_bytes(model.SerializeToString())


def main():
    paddle.seed(1)
    OUT.mkdir(parents=True, exist_ok=True)
    if PART == "conv":
        random = np.random.default_rng(1)
        for name, act in (("conv_bn", None), ("conv_bn_relu", nn.ReLU), ("conv_bn_hard_swish", nn.Hardswish)):
            net = ConvBn(3, 8, 3, act=act)
            for p in (net[1].weight, net[1].bias, net[1]._mean, net[1]._variance):
                p.set_value(random.uniform(0.5, 1.5, p.shape).astype(np.float32))
            save(net, name, [None, 3, 16, 16])
    elif PART == "det":
        net = Detector()
        train(net, 150, detector_loss)
        save(net, "det", [None, 3, None, None])
        detector_onnx(net)
    elif PART == "rec":
        net = Recognizer()
        train(net, 1000, recognizer_loss, 8e-3)
        save(net, "rec", [None, 3, 32, None])
        (OUT / "rec/dict.txt").write_text("\n".join(LETTERS) + "\n")
        picture, _ = draw_line(np.random.default_rng(2), LINE, 32, 22, 8, 5, 2)
        Image.fromarray(picture.astype(np.uint8)).convert("RGB").save(OUT / "line.png", optimize=True)
        p = net(paddle.to_tensor(rows([picture], max(320, picture.shape[1])))).numpy()[0]
        best = p.argmax(1)
        text = "".join(("", *LETTERS, " ")[c] for k, c in enumerate(best) if c and (k == 0 or best[k - 1] != c))
        print("reads", text, p.max(1)[best > 0].min())
        assert text == LINE
    elif PART == "cls":
        net = Classifier()
        train(net, 600, classifier_loss)
        save(net, "cls", [None, 3, 48, 192])


if __name__ == "__main__":
    main()
