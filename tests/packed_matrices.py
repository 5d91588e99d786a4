"""Matrices as codes and scales, in each format as it is published, packed number by number."""

from __future__ import annotations

import ml_dtypes
import numpy as np

Array = np.ndarray
Packed = tuple[dict[str, Array], Array]  # the tensors of a matrix [to, from] by the ends of their names, and the matrix
RNG = np.random.default_rng(7)
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def words(codes: Array, bits: int, order: tuple[int, ...] = ()) -> Array:
    """Codes [rows, n] in words [rows, n * bits / 32]: the k-th lane of a word has the entry `order[k]` of its own."""
    lanes = 32 // bits
    out = np.zeros((len(codes), -(-codes.shape[1] // lanes)), np.uint32)
    for (row, at), code in np.ndenumerate(codes):
        lane = order.index(at % lanes) if order else at % lanes
        out[row, at // lanes] |= np.uint32(int(code) << (bits * lane))
    return out.view(np.int32)


def gptq(shape: tuple[int, int], bits: int = 4, acting: bool = False, symmetric: bool = False) -> Packed:
    """AutoGPTQ: codes packed along `from`, zeros along `to` and one less, groups of 8 rows, perhaps out of order."""
    to, of = shape
    codes, groups = RNG.integers(0, 1 << bits, (of, to)), of // 8
    zeros, scales = RNG.integers(1, 1 << bits, (groups, to)), RNG.random((groups, to)).astype(np.float16) / 50
    zeros = np.full_like(zeros, 1 << (bits - 1)) if symmetric else zeros
    group = RNG.permutation(np.repeat(np.arange(groups), 8)) if acting else np.repeat(np.arange(groups), 8)
    parts = {
        "qweight": words(codes.T, bits).T.copy(),
        "qzeros": words(zeros - 1, bits),
        "scales": scales,
        "g_idx": group.astype(np.int32),
    }
    return parts, (scales.astype(np.float32)[group] * (codes - zeros[group])).T


def awq(shape: tuple[int, int]) -> Packed:
    """AutoAWQ: codes and zeros packed along `to`, in the order 0 2 4 6 1 3 5 7."""
    to, of = shape
    codes, zeros = RNG.integers(0, 16, (of, to)), RNG.integers(0, 16, (of // 8, to))
    scales, order = RNG.random((of // 8, to)).astype(np.float16) / 50, (0, 2, 4, 6, 1, 3, 5, 7)
    group = np.repeat(np.arange(of // 8), 8)
    parts = {"qweight": words(codes, 4, order), "qzeros": words(zeros, 4, order), "scales": scales}
    return parts, (scales.astype(np.float32)[group] * (codes - zeros[group])).T


def groups(shape: tuple[int, int], asymmetric: bool = False) -> Packed:
    """compressed-tensors, pack-quantized: codes of 4 bits from -8, packed along `from`; zeros along `to`."""
    to, of = shape
    codes, scale = RNG.integers(-8, 8, shape), RNG.random((to, of // 8)).astype(np.float32) / 50
    zeros = RNG.integers(-8, 8, (to, of // 8)) if asymmetric else np.zeros((to, of // 8), np.int64)
    parts = {"weight_packed": words(codes + 8, 4), "weight_scale": scale, "weight_shape": np.array(shape)}
    if asymmetric:
        parts["weight_zero_point"] = words((zeros + 8).T, 4).T.copy()
    return parts, np.repeat(scale, 8, 1) * (codes - np.repeat(zeros, 8, 1))


def channels(shape: tuple[int, int]) -> Packed:
    """compressed-tensors, int-quantized: int8 with a scale for each row."""
    codes, scale = RNG.integers(-127, 128, shape).astype(np.int8), RNG.random((shape[0], 1)).astype(np.float32) / 500
    codes[:, 3] = 127
    return {"weight": codes, "weight_scale": scale}, codes * scale


def narrow_floats(shape: tuple[int, int]) -> Packed:
    """compressed-tensors, float-quantized: fp8 with a scale for each row."""
    codes = (RNG.standard_normal(shape) * 100).clip(-440, 440).astype(ml_dtypes.float8_e4m3fn)
    codes[:, 3] = 448
    scale = RNG.random((shape[0], 1)).astype(np.float32) / 2000
    return {"weight": codes, "weight_scale": scale}, codes.astype(np.float32) * scale


def blocks(shape: tuple[int, int]) -> Packed:
    """DeepSeek: fp8 with a scale for each block of 128 x 128, of small matrices for all."""
    codes = (RNG.standard_normal(shape) * 100).clip(-440, 440).astype(ml_dtypes.float8_e4m3fn)
    scale = RNG.random(tuple(-(-n // 128) for n in shape)).astype(np.float32) / 2000
    whole = np.kron(scale, np.ones((128, 128), np.float32))[: shape[0], : shape[1]]
    return {"weight": codes, "weight_scale_inv": scale}, codes.astype(np.float32) * whole


def rows(shape: tuple[int, int]) -> Packed:
    """bitsandbytes in 8 bits: each row times its largest magnitude over 127."""
    codes, largest = RNG.integers(-127, 128, shape).astype(np.int8), RNG.random(shape[0]).astype(np.float32)
    parts = {"weight": codes, "SCB": largest, "weight_format": np.zeros((), np.uint8)}
    return parts, codes * (largest / np.float32(127))[:, None]


def nvfp4(shape: tuple[int, int]) -> Packed:
    """ModelOpt: two numbers in a byte, a scale in fp8 for 16 and one for all."""
    codes = RNG.integers(0, 16, shape)
    scale = (RNG.random((shape[0], shape[1] // 16)) + 0.5).astype(ml_dtypes.float8_e4m3fn)
    second = np.array(0.02, np.float32)
    bytes_ = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    numbers = np.array(FP4, np.float32)[codes] * np.repeat(scale.astype(np.float32), 16, 1) * second
    parts = {"weight": bytes_, "weight_scale": scale, "weight_scale_2": second, "input_scale": np.ones(1, np.float32)}
    return parts, numbers
