"""Fovea's C ABI through ctypes: as much of it as dense attention needs.

The structures mirror include/fovea/fovea_c.h (ABI version 1) field by field. Nothing here depends
on an array library: a tensor is an address, a dtype, a shape and strides. Whoever makes a `Plan`
keeps the memory alive that its arguments point to.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import (POINTER, Structure, byref, c_char_p, c_double, c_int32, c_int64, c_size_t,
                    c_uint32, c_uint64, c_void_p)
from pathlib import Path

ABI_VERSION = 1
MAX_RANK, MAX_SEGMENTS = 5, 4
UNBOUNDED = 2**63 - 1
NONE, F32, F16, BF16, F64, BOOL = range(6)  # fovea_dtype
TOP_LEFT, BOTTOM_RIGHT = 1, 2  # fovea_anchor
OK, INVALID, UNSUPPORTED = range(3)  # fovea_status
CPU, CUDA = range(2)  # fovea_device_type


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class Tensor(Structure):
    """fovea_tensor; all zero is an absent one."""
    _fields_ = [("data", c_void_p), *_fields(c_int32, "dtype device_type device_index rank"),
                *_fields(c_int64 * MAX_RANK, "shape strides")]


class Segment(Structure):
    """fovea_segment"""
    _fields_ = _fields(Tensor, "tensor norm_weight")


class Operand(Structure):
    """fovea_operand"""
    _fields_ = [*_fields(c_int32, "count reserved"), ("segments", Segment * MAX_SEGMENTS)]


class _Sized(Structure):
    """A structure that begins with its own size, which is filled in."""

    def __init__(self, **fields: object) -> None:
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class Params(_Sized):
    """fovea_params"""
    _fields_ = [
        ("struct_size", c_size_t), *_fields(Operand, "q k v"),
        *_fields(c_int32, "has_scale band_anchor"), ("scale", c_double),
        *_fields(c_int64, "band_left band_right"), *_fields(Tensor, "mask alibi_slopes"),
        *_fields(c_int32, "alibi_anchor qk_norm"), *_fields(c_double, "qk_norm_eps softcap"),
        ("sinks", Tensor), ("dropout_probability", c_double),
        *_fields(c_uint64, "dropout_seed dropout_offset"),
        *_fields(Tensor, "dropout_seed_tensor dropout_offset_tensor dropout_streams"),
        *_fields(c_int64, "dropout_row_origin dropout_column_origin"),
        *_fields(Tensor, "cu_seqlens_q cu_seqlens_k"), *_fields(c_int64, "max_q_len max_kv_len"),
        *_fields(Tensor, "seqused_k block_table"), ("paged_max_kv_len", c_int64),
        *_fields(Tensor, "rope_cos rope_sin"), *_fields(c_int32, "rope_style rope_table"),
        *_fields(c_int64, "rotary_dim rope_q_offset rope_k_offset"),
        *_fields(Tensor, "rope_q_offsets rope_k_offsets"),
        *_fields(c_int32, "rope_skip_q rope_skip_k cast_dtype tf32 quantized_dtype"),
        ("quantized_block", c_int32)]


class ForwardArgs(_Sized):
    """fovea_forward_args"""
    _fields_ = [("struct_size", c_size_t), ("params", POINTER(Params)), ("out", Operand),
                ("lse", Tensor)]


class BackwardArgs(_Sized):
    """fovea_backward_args"""
    _fields_ = [("struct_size", c_size_t), ("params", POINTER(Params)),
                *_fields(Operand, "out dout"), *_fields(Tensor, "lse dlse"),
                *_fields(Operand, "dq dk dv"), *_fields(Tensor, "dmask dsinks")]


class Options(_Sized):
    """fovea_options"""
    _fields_ = [("struct_size", c_size_t), *_fields(c_char_p, "kernel backend"),
                *_fields(c_int32, "strict deterministic skip_self_check autotune num_threads"),
                *_fields(c_void_p, "pool stream workspace"), ("workspace_bytes", c_size_t),
                ("job", c_void_p)]


def tensor(address: int, dtype: int, shape: Sequence[int], strides: Sequence[int],
           device: int = CPU) -> Tensor:
    """A view in memory of device 0 of a type; strides are in elements."""
    sizes = c_int64 * MAX_RANK
    return Tensor(data=address, dtype=dtype, device_type=device, rank=len(shape),
                  shape=sizes(*shape), strides=sizes(*strides))


def operand(view: Tensor) -> Operand:
    """An operand of one segment."""
    return Operand(count=1, segments=(Segment * MAX_SEGMENTS)(Segment(tensor=view)))


class FoveaError(RuntimeError):
    """A call that failed, with the library's message."""


class Unsupported(FoveaError):
    """No kernel serves the call; the message has the reasons."""


class Library:
    """A loaded libfovea."""

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        for direction, args in (("forward", ForwardArgs), ("backward", BackwardArgs)):
            call = (POINTER(args), POINTER(Options))
            self._declare(f"fovea_plan_{direction}", c_int32, *call, POINTER(c_void_p))
            self._declare(f"fovea_plan_run_{direction}", c_int32, c_void_p, *call)
        self._declare("fovea_abi_version", c_uint32)
        self._declare("fovea_version", c_char_p)
        self._declare("fovea_last_error", c_char_p)
        self._declare("fovea_plan_workspace_bytes", c_size_t, c_void_p)
        self._declare("fovea_plan_kernel", c_char_p, c_void_p)
        self._declare("fovea_plan_destroy", None, c_void_p)
        if (found := self.c.fovea_abi_version()) != ABI_VERSION:
            raise FoveaError(f"{path} has ABI version {found}; this is written for {ABI_VERSION}")
        self.version: str = self.c.fovea_version().decode()

    def _declare(self, name: str, result: type | None, *arguments: type) -> None:
        function = getattr(self.c, name)
        function.restype, function.argtypes = result, arguments

    def expect_ok(self, status: int) -> None:
        if status != OK:
            error = Unsupported if status == UNSUPPORTED else FoveaError
            raise error(self.c.fovea_last_error().decode())


class Plan:
    """A call that is planned once, with its workspace, and run on the same arguments often.

    `backend` and `kernel` are as in fovea_options: only those may serve. `allocate(bytes)` gives
    the address of memory on the tensors' device, which its maker keeps alive, and `stream` is where
    runs are queued there; without them the tensors are the CPU's.
    """

    def __init__(self, library: Library, args: ForwardArgs | BackwardArgs, threads: int = 0,
                 backend: str = "", kernel: str = "", deterministic: bool = False,
                 autotune: bool = False, allocate: Callable[[int], int] | None = None,
                 stream: int = 0) -> None:
        direction = "forward" if isinstance(args, ForwardArgs) else "backward"
        self._library, self._handle = library, c_void_p()
        options = Options(num_threads=threads, backend=backend.encode(), kernel=kernel.encode(),
                          deterministic=deterministic, autotune=autotune, stream=stream)
        self._call = (byref(args), byref(options))
        self._run = getattr(library.c, f"fovea_plan_run_{direction}")
        make = getattr(library.c, f"fovea_plan_{direction}")
        library.expect_ok(make(*self._call, byref(self._handle)))
        self.kernel: str = library.c.fovea_plan_kernel(self._handle).decode()
        self.workspace_bytes = options.workspace_bytes = (
            library.c.fovea_plan_workspace_bytes(self._handle))
        if allocate is not None:
            start = allocate(options.workspace_bytes + 256)
        else:
            self._workspace = ctypes.create_string_buffer(options.workspace_bytes + 256)
            start = ctypes.addressof(self._workspace)
        options.workspace = start + -start % 256

    def run(self) -> None:
        self._library.expect_ok(self._run(self._handle, *self._call))

    def __del__(self) -> None:
        self._library.c.fovea_plan_destroy(self._handle)
