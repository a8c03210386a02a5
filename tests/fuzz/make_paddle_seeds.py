#!/usr/bin/env python3
"""Seeds of fuzz_paddle: make_paddle_seeds.py FOLDER. Two bytes (length of the program, little-endian), the program, its
parameters. Written field by field here, so that they are small and hold each construct once."""
import json
import os
import struct
import sys


def varint(v):
    v &= (1 << 64) - 1
    out = bytearray()
    while True:
        out.append((v & 0x7F) | (0x80 if v > 0x7F else 0))
        v >>= 7
        if not v:
            return bytes(out)


def num(field, v):
    return varint(field << 3) + varint(v)


def msg(field, body):
    body = body.encode() if isinstance(body, str) else body
    return varint(field << 3 | 2) + varint(len(body)) + body


def desc(dims):
    return num(1, 5) + b"".join(num(2, d) for d in dims)


def var(name, dims, persistable=False):
    return msg(3, msg(1, name) + msg(2, num(1, 7) + msg(3, msg(1, desc(dims)))) + (num(3, 1) if persistable else b""))


def slot(field, name, values):
    return msg(field, msg(1, name) + b"".join(msg(2, v) for v in values))


def op(kind, body):
    return msg(4, body + msg(3, kind))


def attr(name, kind, value):
    return msg(4, msg(1, name) + num(2, kind) + value)


def block(idx, parent, body):
    return msg(1, num(1, idx) + num(2, parent) + body)


def record(dims, values):
    d = desc(dims)
    return struct.pack("<IQIi", 0, 0, 0, len(d)) + d + struct.pack(f"<{len(values)}f", *values)


def write(folder, name, program, parameters):
    with open(os.path.join(folder, name), "wb") as f:
        f.write(struct.pack("<H", len(program)) + program + parameters)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    attrs = (attr("i", 0, num(3, -1)) + attr("ints", 3, msg(6, varint(1) + varint(-1))) + attr("s", 2, msg(5, "NCHW"))
             + attr("f", 1, varint(4 << 3 | 5) + struct.pack("<f", 0.5)) + attr("b", 6, num(10, 1))
             + attr("sub_block", 8, num(12, 1)) + attr("shape", 13, msg(17, "x")) + attr("sc", 16, msg(20, num(1, 2) + num(3, 4))))
    legacy = (block(0, -1, var("x", [-1, 2]) + var("w", [2, 3], True) + var("b", [3], True)
                    + op("feed", slot(1, "X", ["x"]) + slot(2, "Out", ["x"]) + attr("col", 0, num(3, 0)))
                    + op("while", slot(1, "X", ["x", "w"]) + slot(2, "Out", ["x"]) + attrs))
              + block(1, 0, op("relu", slot(1, "X", ["x"]) + slot(2, "Out", ["x"]))) + msg(4, num(1, 2002002)))
    write(folder, "legacy", legacy, record([3], [1, 2, 3]) + record([2, 3], range(6)))

    def tensor(dims):
        return {"#": "0.t_dtensor", "D": [{"#": "0.t_f32"}, dims, "NCHW", [], 0]}

    def a(name, kind, **value):
        return {"N": name, "AT": {"#": kind, **value}}

    ops = [
        {"#": "p", "A": [0, 1, 1, "w"], "DA": [], "O": {"%": 1, "TT": tensor([2])}, "QA": []},
        {"#": "1.data", "I": [], "O": [{"%": 2, "TT": tensor([-1, 2])}], "A": [a("name", "0.a_str", D="x")]},
        {"#": "1.full", "I": [], "O": [{"%": 3, "TT": tensor([1])}],
         "A": [a("shape", "1.a_intarray", D=[1]), a("value", "0.a_f64", VD="-INF"), a("dtype", "1.a_dtype", D="float32"),
               a("sc", "1.a_scalar", D=["int64", 3]), a("l", "0.a_array", D=[{"#": "0.a_i32", "D": 1}])]},
        {"#": "1.while", "I": [{"%": 3}, {"%": 2}], "O": [{"%": 4, "TT": tensor([-1, 2])}], "A": [],
         "regions": [{"#": "region_1", "blocks": [{"#": "block_1", "args": [{"#": -1, "TT": tensor([-1, 2])}],
                      "ops": [{"#": "2.yield", "I": [{"%": 3}, {"%": -1}], "O": [], "A": []}]}]}]},
        {"#": "1.fetch", "I": [{"%": 4}], "O": [{"%": 5, "TT": tensor([-1, 2])}],
         "A": [a("name", "0.a_str", D="y"), a("col", "0.a_i32", D=0)]},
    ]
    pir = {"base_code": {"magic": "pir", "version": 1, "trainable": False},
           "program": {"regions": [{"#": "region_0", "blocks": [{"#": "block_0", "args": [], "ops": ops}]}]}}
    write(folder, "pir", json.dumps(pir, separators=(",", ":")).encode(), record([2], [1, 2]))


if __name__ == "__main__":
    main()
