"""Element types and their widths."""

from __future__ import annotations

from enum import StrEnum


class Dtype(StrEnum):
    """An element type, by the name that the language uses."""

    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"
    FP8 = "fp8"
    FP4 = "fp4"
    E8M0 = "e8m0"  # powers of two, as the scales of mxfp4 are
    INT8 = "int8"
    INT4 = "int4"
    I32 = "i32"

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return _BITS[self]


_BITS = {
    Dtype.F32: 32,
    Dtype.BF16: 16,
    Dtype.F16: 16,
    Dtype.FP8: 8,
    Dtype.FP4: 4,
    Dtype.E8M0: 8,
    Dtype.INT8: 8,
    Dtype.INT4: 4,
    Dtype.I32: 32,
}

INTEGERS = (Dtype.I32, Dtype.INT8, Dtype.INT4)
