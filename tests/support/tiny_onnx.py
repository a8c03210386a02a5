"""A model file small enough to write by hand, for tests that need one and no package that makes it."""


def write_onnx(path):
    """z = x + y over f32[n, 2], as protobuf bytes."""
    def field(number, data):
        return bytes([number << 3 | 2, len(data)]) + data

    def varint(number, v):
        return bytes([number << 3, v])

    def value(name):
        shape = field(1, field(2, b"n")) + field(1, varint(1, 2))
        return field(1, name) + field(2, field(1, varint(1, 1) + field(2, shape)))

    node = field(1, b"x") + field(1, b"y") + field(2, b"z") + field(4, b"Add")
    graph = field(1, node) + field(2, b"g") + field(11, value(b"x")) + field(11, value(b"y")) + field(12, value(b"z"))
    with open(path, "wb") as f:
        f.write(varint(1, 8) + field(7, graph) + field(8, varint(2, 17)))
