"""R36: the C ABI, through ctypes as another language would call it (bench/fovea_ctypes.py)."""

import ctypes
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A library with a sanitizer ends a process that has not begun with its run time.
BUILT = sorted(
    path
    for where in ("src", "src/shared")
    for path in ROOT.glob(f"build/*/{where}/libfovea.so")
    if "san" not in path.relative_to(ROOT / "build").parts[0]
)


@pytest.fixture(scope="module")
def abi():
    if not BUILT:
        pytest.skip("no shared library is built below build/")
    sys.path.insert(0, str(ROOT / "bench"))
    import fovea_ctypes

    return fovea_ctypes


@pytest.fixture(scope="module")
def library(abi):
    return abi.Library(BUILT[0])


def arguments(abi, **changes):
    """A forward call on memory that lives as long as the result."""
    memory = (ctypes.c_float * 64)()
    view = abi.tensor(ctypes.addressof(memory), abi.F32, (1, 1, 4, 16), (64, 64, 16, 1))
    params = abi.Params(**{n: abi.operand(view) for n in "qkv"})
    out = (ctypes.c_float * 64)()
    where = abi.tensor(ctypes.addressof(out), abi.F32, (1, 1, 4, 16), (64, 64, 16, 1))
    args = abi.ForwardArgs(params=ctypes.pointer(params), out=abi.operand(where))
    for name, value in changes.items():
        setattr(params, name, value)
    args.keep = memory, out, params
    return args


def status_of(library, args):
    function = library.c.fovea_forward
    function.restype = ctypes.c_int32
    return function(ctypes.byref(args) if args is not None else None, None)


def test_R36_codes_are_stable_and_a_right_call_is_ok(abi, library):
    assert (abi.OK, abi.INVALID, abi.UNSUPPORTED) == (0, 1, 2)
    assert library.c.fovea_abi_version() == 1
    assert status_of(library, arguments(abi)) == abi.OK


def test_R36_bad_arguments_return_errors_never_crash_and_never_print(abi, library, capfd):
    bad = [None]
    for name, value in (
        ("struct_size", 3),
        ("softcap", -1.0),
        ("softcap", float("nan")),
        ("dropout_probability", 2.0),
        ("band_anchor", 77),
        ("cast_dtype", 99),
        ("quantized_dtype", 3),
    ):
        bad.append(arguments(abi, **{name: value}))
    for field, value in (
        ("dtype", 99),
        ("dtype", -1),
        ("rank", 77),
        ("rank", -5),
        ("device_type", 9),
        ("data", None),
    ):
        args = arguments(abi)
        setattr(args.keep[2].q.segments[0].tensor, field, value)
        bad.append(args)
    for count in (0, 5, -1, 2**30):
        args = arguments(abi)
        args.keep[2].k.count = count
        bad.append(args)
    args = arguments(abi)
    args.keep[2].v.segments[0].tensor.shape[2] = 2**62
    bad.append(args)
    args = arguments(abi)
    args.params = ctypes.POINTER(abi.Params)()
    bad.append(args)
    accepted = [n for n, args in enumerate(bad) if status_of(library, args) not in (1, 2, 3, 4, 5)]
    assert not accepted
    assert library.c.fovea_last_error()
    assert capfd.readouterr() == ("", "")
