#!/usr/bin/env python3
"""Compares cast_driver with torch's Tensor.to() on the CPU, bit for bit.

Usage: cast_against_torch.py PATH_OF_CAST_DRIVER

Sources: every bit pattern of the 8- and 16-bit types; for float32 all 2^16 upper halves with lower halves on both sides
of every tie; the same values as float64 with bits below float32's last; integers round powers of two. NaNs are compared
as NaNs: their sign and payload are not a promise of torch, its vectorised and plain code differ. A float outside the
range of an integer type is compared too, with two exceptions. For uint32 torch's vectorised and plain code give different
answers outside [-2^31, 2^32). NaN of the fnuz types and of float8_e8m0fnu becomes 0 in torch, other NaNs do not.
"""

import concurrent.futures
import subprocess
import sys
import warnings

import numpy as np
import torch

warnings.filterwarnings("ignore")

REAL = """bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64
    float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu""".split()
COMPLEX = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dtype(name):
    return getattr(torch, name)


def of_bits(array, name):
    return torch.from_numpy(np.ascontiguousarray(array)).view(torch.uint8).view(dtype(name))


def float32_sample():
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    # Around bfloat16's tie and float16's; the ties of the 8-bit types are in the upper half.
    lower = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1000, 0x0FFF, 0x1001, 0x3000]
    return np.concatenate([upper | np.uint32(low) for low in lower])


def integer_sample(bits):
    near = [sign * (1 << k) + d for k in range(bits) for sign in (1, -1) for d in range(-3, 4)]
    cuts = (4, 8, 11, 24, 25, 53)
    ties = [(1 << k) + (1 << (k - cut)) + d for cut in cuts for k in range(cut, bits) for d in (-1, 0, 1)]
    return np.array([(n & ((1 << bits) - 1)) for n in near + ties], dtype=f"uint{bits}")


def source(name):
    if name == "bool":
        return of_bits(np.array([0, 1] * 64, dtype=np.uint8), name)
    if name in COMPLEX:
        part = source(COMPLEX[name])
        values = torch.stack([part, part.flip(0)], dim=1)
        # Zeros in either part, for bool.
        zeros = torch.tensor([[0, 0], [0, 1], [1, 0], [-0.0, 0]], dtype=torch.float64).to(part.dtype)
        return torch.cat([values, zeros]).contiguous().view(torch.uint8).reshape(-1).view(dtype(name))
    size = dtype(name).itemsize
    if size <= 2:
        return of_bits(np.arange(1 << (8 * size), dtype=f"uint{8 * size}"), name)
    if name == "float32":
        return of_bits(float32_sample(), name)
    if name == "float64":
        bits = float32_sample()[:: 7].view(np.float32).astype(np.float64).view(np.uint64)
        random = np.random.default_rng(1).integers(0, 1 << 64, 100000, dtype=np.uint64)
        large = np.array([4294967301.0, 1e10 + 5, 2.0**31 + 7, -(2.0**31) - 7, 2.0**53 - 3, 1e300, -1e300])
        one = np.uint64(1)
        return of_bits(np.concatenate([bits, bits + one, bits - one, random, large.view(np.uint64)]), name)
    return of_bits(integer_sample(8 * size), name)


def wanted(values, name):
    result = values.to(dtype(name))
    if name in COMPLEX:
        return torch.view_as_real(result).reshape(-1)
    return result


def undefined(values, to):
    """Cases in which C++ leaves the result open and torch gives no single answer: see above."""
    if to in COMPLEX or dtype(to).is_floating_point or not (values.is_floating_point() or values.is_complex()):
        return torch.zeros(values.shape, dtype=torch.bool)
    real = values.to(torch.complex128).real
    if to == "uint32":
        return ~((real > -(2.0**31)) & (real < 2.0**32))
    folded = values.dtype in (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)
    return real.isnan() & folded


def overflows(values, result):
    """The finite values that became infinite or NaN, or the floats outside the range of an integer type."""
    wide = values.to(torch.float64)
    if result.dtype.is_floating_point:
        return int((wide.isfinite() & ~result.to(torch.float64).isfinite()).sum())
    if result.dtype == torch.bool or not values.is_floating_point():
        return 0
    limits, whole = torch.iinfo(result.dtype), wide.trunc()
    return int((~((whole >= float(limits.min)) & (whole < float(limits.max + 1)))).sum())


def compare(driver, name, to, values):
    """The differences, or None."""
    raw = values.view(torch.uint8).numpy().tobytes()
    done = subprocess.run([driver, name, to], input=raw, capture_output=True, check=True)
    expected = wanted(values, to)
    found = torch.frombuffer(bytearray(done.stdout), dtype=torch.uint8).view(expected.dtype)
    bits = BITS[expected.dtype.itemsize]
    same = found.view(bits) == expected.view(bits)
    if expected.is_floating_point():
        same |= expected.to(torch.float64).isnan() & found.to(torch.float64).isnan()
    if to not in COMPLEX:
        same |= undefined(values, to)
    if not same.all():
        i = int((~same).nonzero()[0])
        value = values[i // 2 if to in COMPLEX else i]
        codes = f"{found.view(bits)[i]:#x}, torch {expected.view(bits)[i]:#x}"
        return f"{name} -> {to}: {int((~same).sum())} differ, first {value}: {codes}"
    if to not in COMPLEX and name not in COMPLEX:
        if int(done.stderr) != overflows(values, expected):
            return f"{name} -> {to}: {int(done.stderr)} overflows counted, torch has {overflows(values, expected)}"
    return None


def main():
    driver = sys.argv[1]
    names = REAL + list(COMPLEX)
    jobs = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name in names:
            values = source(name)
            jobs += [pool.submit(compare, driver, name, to, values) for to in names if to != name]
        failures = [text for text in (job.result() for job in jobs) if text]
    print("\n".join(failures) if failures else f"{len(jobs)} conversions equal torch {torch.__version__}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
