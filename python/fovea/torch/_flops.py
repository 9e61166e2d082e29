"""What torch.utils.flop_counter.FlopCounterMode counts for our operators: as for PyTorch's own
attention, all products of matrices, whatever a band or a mask hides, and QK^T again in backward."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ._call import Call

Segments = Sequence[Tensor]


def forward_flops(call: Call, q: Segments, k: Segments, v: Segments, extras: Segments) -> int:
    """QK^T, PV."""
    return 2 * _scores(call, q, k, extras) * (q[0].shape[-1] + v[0].shape[-1])


def backward_flops(call: Call, q: Segments, k: Segments, v: Segments, extras: Segments) -> int:
    """QK^T, dQ and dK are as deep as q; dP and dV as v."""
    return 2 * _scores(call, q, k, extras) * (3 * q[0].shape[-1] + 2 * v[0].shape[-1])


def _scores(call: Call, q: Segments, k: Segments, extras: Segments) -> int:
    """Scores of all heads of all sequences."""
    named = dict(zip(call.names, extras, strict=True))
    heads = q[0].shape[1]
    if call.packed:
        q_lengths = _lengths(named["cu_seqlens_q"], call.settings.max_q_len)
    else:
        q_lengths = [sum(s.shape[2] for s in q)] * q[0].shape[0]
    if "block_table" in named:
        kv_lengths = [call.settings.max_kv_len] * len(q_lengths)
    elif call.packed:
        kv_lengths = _lengths(named["cu_seqlens_k"], call.settings.max_kv_len)
    else:
        kv_lengths = [sum(s.shape[2] for s in k)] * k[0].shape[0]
    return heads * sum(a * b for a, b in zip(q_lengths, kv_lengths, strict=True))


def _lengths(offsets: Tensor, longest: int) -> list[int]:
    """Lengths of packed sequences; the longest for each where there is no memory to read."""
    if type(offsets) is Tensor and not offsets.is_meta:
        return offsets.diff().tolist()
    return [longest] * (offsets.shape[0] - 1)
