"""Networks over images as ONNX files, and images as PNG and IDX files, for tests; the standard library alone.

Pixels follow from an image's name as tiny_weights() makes numbers (tests/golden/README.md), so that a generator with PyTorch, the
tests in C++ and those of the program see the same images.
"""
import pickle
import random
import struct
import zlib
from array import array

from tiny_onnx import field, value, varint, write_model

MASK = (1 << 64) - 1


def splitmix64(seed, count):
    out = []
    for k in range(1, count + 1):
        z = (seed + 0x9E3779B97F4A7C15 * k) & MASK
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
        out.append(z ^ z >> 31)
    return out


def pixels(name, side):
    """(side, side, 3) bytes."""
    h = 0xCBF29CE484222325
    for byte in name.encode(): h = ((h ^ byte) * 0x100000001B3) & MASK
    return bytes(z >> 56 for z in splitmix64(h, side * side * 3))


def write_png(path, side, rgb):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + rgb[y * side * 3:(y + 1) * side * 3] for y in range(side))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
                chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_classes(folder, classes, count, side):
    """`count` images, in turns of these classes: folder/CLASS/NN.png."""
    for k in range(count):
        name = f"{classes[k % len(classes)]}/{k:02}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_png(folder / name, side, pixels(name, side))


def write_idx(path, rows, labels, side):
    """Grey images, each a bytes of side * side, as NAME-images-idx3-ubyte, and their classes beside them."""
    path.write_bytes(struct.pack(">IIII", 0x803, len(rows), side, side) + b"".join(rows))
    beside = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
    beside.write_bytes(struct.pack(">II", 0x801, len(labels)) + bytes(labels))


class Network:
    """Nodes and tensors of an ONNX file under construction."""

    def __init__(self):
        self.nodes, self.tensors, self.count = b"", b"", 0

    def tensor(self, name, dims, values, dtype=1):
        data = struct.pack(f"<{len(values)}{'f' if dtype == 1 else 'q'}", *values)
        self.tensors += field(5, b"".join(varint(1, d) for d in dims) + varint(2, dtype) + field(8, name.encode()) + field(9, data))
        return name

    def ints(self, *values):
        self.count += 1
        return self.tensor(f"ints{self.count}", [len(values)], values, 7)

    def node(self, op, inputs, attrs=None, out=None):
        self.count += 1
        out = out or f"v{self.count}"
        body = b"".join(field(1, i.encode()) for i in inputs) + field(2, out.encode()) + field(4, op.encode())
        for name, v in (attrs or {}).items():
            if isinstance(v, list): attr = b"".join(varint(8, i) for i in v) + varint(20, 7)
            elif isinstance(v, int): attr = varint(3, v) + varint(20, 2)
            else: attr = size_float(v) + varint(20, 1)
            body += field(5, field(1, name.encode()) + attr)
        self.nodes += field(1, body)
        return out

    def write(self, path, dims, scores, classes):
        write_model(path, self.nodes + field(2, b"g") + self.tensors + field(11, value(b"image", dims)) +
                    field(12, value(scores.encode(), ["n", classes])))


def size_float(v):
    return bytes([2 << 3 | 5]) + struct.pack("<f", v)


def write_lenet(path, seed=1):
    """LeNet-5 of 28 x 28 grey pixels and 10 classes, with relu and the largest of each window; weights as PyTorch draws them."""
    n, draw = Network(), random.Random(seed)
    def layer(name, *dims):
        fan = 1
        for d in dims[1:]: fan *= d
        bound = fan ** -0.5
        count = fan * dims[0]
        return [n.tensor(name + ".weight", dims, [draw.uniform(-bound, bound) for _ in range(count)]),
                n.tensor(name + ".bias", dims[:1], [draw.uniform(-bound, bound) for _ in range(dims[0])])]
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    x = n.node("MaxPool", [n.node("Relu", [n.node("Conv", ["image"] + layer("conv1", 6, 1, 5, 5), {"pads": [2, 2, 2, 2]})])], pool)
    x = n.node("MaxPool", [n.node("Relu", [n.node("Conv", [x] + layer("conv2", 16, 6, 5, 5))])], pool)
    x = n.node("Flatten", [x])
    x = n.node("Relu", [n.node("Gemm", [x] + layer("fc1", 120, 400), {"transB": 1})])
    x = n.node("Relu", [n.node("Gemm", [x] + layer("fc2", 84, 120), {"transB": 1})])
    n.node("Gemm", [x] + layer("fc3", 10, 84), {"transB": 1}, "scores")
    n.write(path, ["n", 1, 28, 28], "scores", 10)


def write_resnet(path, tensors, blocks, side=32):
    """A ResNet of three stages of `blocks` blocks as https://arxiv.org/abs/1512.03385 has it for CIFAR-10, shortcuts by every other
    pixel and channels of zeros. `tensors`: by PyTorch's names, (dims, values)."""
    n = Network()
    def norm(x, name):
        parts = [n.tensor(f"{name}.{p}", *tensors[f"{name}.{p}"]) for p in ("weight", "bias", "running_mean", "running_var")]
        return n.node("BatchNormalization", [x] + parts, {"epsilon": 1e-5, "momentum": 0.9})
    def conv(x, name, stride):
        return n.node("Conv", [x, n.tensor(f"{name}.weight", *tensors[f"{name}.weight"])], {"pads": [1, 1, 1, 1], "strides": [stride, stride]})
    x = n.node("Relu", [norm(conv("image", "conv1", 1), "bn1")])
    for stage in range(1, 4):
        for block in range(blocks):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = n.node("Relu", [norm(conv(x, name + ".conv1", stride), name + ".bn1")])
            y = norm(conv(y, name + ".conv2", 1), name + ".bn2")
            if stride == 2:
                width = tensors[f"{name}.conv1.weight"][0][1]
                x = n.node("Slice", [x, n.ints(0, 0), n.ints(1 << 30, 1 << 30), n.ints(2, 3), n.ints(2, 2)])
                x = n.node("Pad", [x, n.ints(0, width // 2, 0, 0, 0, width // 2, 0, 0)])
            x = n.node("Relu", [n.node("Add", [y, x])])
    x = n.node("Flatten", [n.node("GlobalAveragePool", [x])])
    names = [n.tensor(f"linear.{p}", *tensors[f"linear.{p}"]) for p in ("weight", "bias")]
    n.node("Gemm", [x] + names, {"transB": 1}, "scores")
    n.write(path, ["n", 3, side, side], "scores", tensors["linear.bias"][0][0])


def read_torch(path):
    """The float tensors of a state_dict in the form that PyTorch wrote before 1.6: pickles, then bytes of storages. Gives
    {name: (dims, values)}, names without "module."."""
    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            if name == "OrderedDict": return dict
            if name in ("_rebuild_tensor", "_rebuild_tensor_v2"): return lambda storage, offset, dims, *_: (storage, offset, dims)
            if module == "torch" and name.endswith("Storage"): return name
            raise pickle.UnpicklingError(f"{module}.{name}")
        def persistent_load(self, saved):
            return saved[1], saved[2]
    with open(path, "rb") as f:
        for _ in range(3): pickle.load(f)  # magic number, version, machine
        state = Reader(f).load()
        storages = {}
        for key in pickle.load(f):
            count, = struct.unpack("<q", f.read(8))
            storages[key] = (f.tell(), count)
            kind = next((s[0] for s, _, _ in state["state_dict"].values() if s[1] == key), "FloatStorage")
            f.seek(count * (8 if kind in ("LongStorage", "DoubleStorage") else 4), 1)
        out = {}
        for name, ((kind, key), offset, dims) in state["state_dict"].items():
            if kind != "FloatStorage": continue
            count = 1
            for d in dims: count *= d
            f.seek(storages[key][0] + 4 * offset)
            values = array("f")
            values.frombytes(f.read(4 * count))
            out[name.removeprefix("module.")] = (list(dims), list(values))
    return out


def fields(data):
    """Fields of a message of Protocol Buffers: (number, a length's bytes or a number)."""
    at = 0
    def varint():
        nonlocal at
        out = shift = 0
        while True:
            byte = data[at]
            at, out, shift = at + 1, out | (byte & 127) << shift, shift + 7
            if byte < 128: return out
    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        count = {1: 8, 2: None, 5: 4}[key & 7]
        count = varint() if count is None else count
        yield key >> 3, data[at:at + count]
        at += count


def read_onnx(path):
    """{name: values} of the f32 weights of a model whose bytes lie in the file itself."""
    out = {}
    with open(path, "rb") as f:
        graph = dict(fields(f.read()))[7]
    for number, tensor in fields(graph):
        if number == 5 and dict(fields(tensor)).get(2) == 1:  # FLOAT
            parts = dict(fields(tensor))
            out[parts[8].decode()] = array("f", parts[9])
    return out


def write_floats(path, dims, values):
    """An array('f') as NumPy writes it."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({', '.join(map(str, dims))}), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + values.tobytes())


def read_floats(path):
    """The numbers of a file of f32 that NumPy or `oar infer` wrote."""
    with open(path, "rb") as f:
        data = f.read()
    return array("f", data[10 + struct.unpack("<H", data[8:10])[0]:])
