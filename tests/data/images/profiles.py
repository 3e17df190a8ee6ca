"""An ICC profile of a wide gamut."""

import struct

import numpy as np

ADOBE_TO_D50 = np.array([[0.60974, 0.20528, 0.14919], [0.31111, 0.62567, 0.06322], [0.01947, 0.06087, 0.74457]])


def adobe_rgb() -> bytes:
    """An ICC profile of Adobe RGB (1998): its matrix, adapted to D50, and a gamma of 563 / 256."""

    def fixed(values: list[float]) -> bytes:
        return b"XYZ \0\0\0\0" + b"".join(struct.pack(">i", round(65536 * value)) for value in values)

    curve = b"curv\0\0\0\0" + struct.pack(">IHxx", 1, 563)
    text = b"desc\0\0\0\0" + struct.pack(">I", 2) + b"x\0" + bytes(78)
    matrix = ADOBE_TO_D50.T.tolist()
    tags = {b"desc": text, b"cprt": b"text\0\0\0\0x\0\0\0", b"wtpt": fixed([0.9642, 1.0, 0.8249]),
            b"rXYZ": fixed(matrix[0]), b"gXYZ": fixed(matrix[1]), b"bXYZ": fixed(matrix[2]),
            b"rTRC": curve, b"gTRC": curve, b"bTRC": curve}  # fmt: skip
    table, data = struct.pack(">I", len(tags)), b""
    for name, content in tags.items():
        content += bytes(-len(content) % 4)
        table += name + struct.pack(">II", 132 + 12 * len(tags) + len(data), len(content))
        data += content
    body = table + data
    head = struct.pack(">I4sI4s4s4s", 128 + len(body), bytes(4), 0x02100000, b"mntr", b"RGB ", b"XYZ ")
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">iii", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + body
