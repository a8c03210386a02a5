"""A model file small enough to write by hand, for tests that need one and no package that makes it."""


def size(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + size(n >> 7)


def field(number, data):
    return size(number << 3 | 2) + size(len(data)) + data


def varint(number, v):
    return size(number << 3) + size(v)


def value(name, dims, dtype=1):
    """An input or output; `dims` are names or numbers, `dtype` ONNX's number (1: f32, 7: i64)."""
    shape = b"".join(field(1, field(2, d.encode()) if isinstance(d, str) else varint(1, d)) for d in dims)
    return field(1, name) + field(2, field(1, varint(1, dtype) + field(2, shape)))


def write_model(path, graph):
    with open(path, "wb") as f:
        f.write(varint(1, 8) + field(7, graph) + field(8, varint(2, 17)))


def write_onnx(path):
    """z = x + y over f32[n, 2], as protobuf bytes."""
    node = field(1, b"x") + field(1, b"y") + field(2, b"z") + field(4, b"Add")
    graph = field(1, node) + field(2, b"g") + field(11, value(b"x", ["n", 2])) + field(11, value(b"y", ["n", 2])) + \
        field(12, value(b"z", ["n", 2]))
    write_model(path, graph)


def write_lookup(folder):
    """An encoder whose token t has the vector (t, t * t / 100, 1): model.onnx and vocab.txt in `folder`. Gives the table."""
    import numpy as np

    t = np.arange(96, dtype=np.float64)
    table = np.stack([t, t * t / 100, np.ones(96)], 1).astype("<f4")

    weights = varint(1, 96) + varint(1, 3) + varint(2, 1) + field(8, b"table") + field(9, table.tobytes())
    node = field(1, b"table") + field(1, b"input_ids") + field(2, b"last_hidden_state") + field(4, b"Gather")
    graph = field(1, node) + field(2, b"g") + field(5, weights) + field(11, value(b"input_ids", ["n", "s"], 7)) + \
        field(12, value(b"last_hidden_state", ["n", "s", 3], 1))
    write_model(folder + "/model.onnx", graph)
    with open(folder + "/vocab.txt", "w", encoding="utf-8") as f:
        f.write("".join(w + "\n" for w in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{k}" for k in range(5, 96)]))
    return table.astype(np.float64)


def write_product(path, add=False):
    """y = x . w over f32[n, 16], w(k, m) = (k - m) / 16 of 16 x 8; with `add` y = x . w + z. Gives w's rows."""
    import struct

    rows = [[(k - m) / 16 for m in range(8)] for k in range(16)]
    data = b"".join(struct.pack("<8f", *row) for row in rows)
    weights = varint(1, 16) + varint(1, 8) + varint(2, 1) + field(8, b"w") + field(9, data)
    nodes = field(1, field(1, b"x") + field(1, b"w") + field(2, b"p" if add else b"y") + field(4, b"MatMul"))
    inputs = field(11, value(b"x", ["n", 16]))
    if add:
        nodes += field(1, field(1, b"p") + field(1, b"z") + field(2, b"y") + field(4, b"Add"))
        inputs += field(11, value(b"z", ["n", 8]))
    graph = nodes + field(2, b"g") + field(5, weights) + inputs + field(12, value(b"y", ["n", 8]))
    write_model(path, graph)
    return rows


def write_layer(path, width):
    """y = x . w over f32[n, width], w all zeros: large where `width` is."""
    weights = varint(1, width) + varint(1, width) + varint(2, 1) + field(8, b"w") + field(9, bytes(4 * width * width))
    node = field(1, b"x") + field(1, b"w") + field(2, b"y") + field(4, b"MatMul")
    graph = field(1, node) + field(2, b"g") + field(5, weights) + field(11, value(b"x", ["n", width])) + \
        field(12, value(b"y", ["n", width]))
    write_model(path, graph)


def write_npy(path, rows, dtype="<f4"):
    """A matrix as NumPy writes it: '<f4' or '<f8'."""
    import struct

    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({len(rows)}, {len(rows[0])}), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    values = [v for row in rows for v in row]
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        f.write(struct.pack("<%d%s" % (len(values), "f" if dtype == "<f4" else "d"), *values))
