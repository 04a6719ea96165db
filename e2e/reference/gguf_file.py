"""Reads a GGUF container (versions 2 and 3, little endian) into metadata and tensor views.

Written from the format's description and sharing nothing with the engine, so that a misreading there cannot be
repeated here.
"""

import mmap
import struct
from dataclasses import dataclass

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major (the file stores the fastest dimension first)."""

    name: str
    shape: tuple
    type_id: int
    offset: int


class GgufFile:
    """`metadata` maps key to value; `tensors` maps name to TensorInfo; `bytes_from` is the raw data."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        magic, version = self._take("4sI")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{path} is not a little-endian GGUF file of version 2 or 3")
        tensor_count, metadata_count = self._take("QQ")
        self.metadata = {}
        for _ in range(metadata_count):
            key = self._string().decode("utf-8")
            self.metadata[key] = self._value(self._take("I")[0])
        infos = [self._tensor_info() for _ in range(tensor_count)]
        self.tensors = {info.name: info for info in infos}
        alignment = self.metadata.get("general.alignment", 32)
        self._data_start = -(-self._at // alignment) * alignment

    def bytes_from(self, info, byte_count):
        """The `byte_count` bytes of a tensor, without a copy."""
        start = self._data_start + info.offset
        if start + byte_count > len(self._map):
            raise ValueError(f"tensor {info.name} ends past the end of the file")
        return memoryview(self._map)[start : start + byte_count]

    def _take(self, layout):
        layout = "<" + layout
        values = struct.unpack_from(layout, self._map, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _string(self):
        (length,) = self._take("Q")
        text = self._map[self._at : self._at + length]
        self._at += length
        return text

    def _value(self, type_id):
        if type_id == STRING:
            return self._string().decode("utf-8", errors="surrogateescape")
        if type_id == ARRAY:
            element_type, count = self._take("IQ")
            return [self._value(element_type) for _ in range(count)]
        return self._take(SCALARS[type_id])[0]

    def _tensor_info(self):
        name = self._string().decode("utf-8")
        (dimensions,) = self._take("I")
        shape = self._take("Q" * dimensions)
        type_id, offset = self._take("IQ")
        return TensorInfo(name, tuple(reversed(shape)), type_id, offset)
