"""fovea._native, where the package over it does not show something on a CPU."""

import pytest

torch = pytest.importorskip("torch")

from reference import operands  # noqa: E402

from fovea import _native  # noqa: E402
from fovea._config import Settings, native  # noqa: E402


def backward(allocate):
    """A backward pass, which needs a workspace; returns dq."""
    q, k, v = operands()
    out, dq, dk, dv = (torch.empty_like(q) for _ in range(4))
    lse = torch.empty(2, 4, 33)
    config = native(Settings())
    _native.forward(config, q, k, v, out, lse, None, 0, None, None, False)
    report = _native.backward(
        config, q, k, v, out, lse, torch.ones_like(out), dq, dk, dv, None, 0, None, allocate, True
    )
    return dq, report


def test_a_workspace_from_the_caller_is_asked_for_once_and_used():
    asked = []

    def allocate(size):
        asked.append(size)
        return torch.empty(size, dtype=torch.int8)

    dq, report = backward(allocate)
    assert asked == [report.workspace_bytes] and asked[0] > 0
    assert torch.equal(dq, backward(None)[0])


def test_what_the_callers_allocator_raises_is_raised():
    def allocate(size):
        raise torch.OutOfMemoryError(f"no {size} bytes")

    with pytest.raises(torch.OutOfMemoryError, match="no .* bytes"):
        backward(allocate)
    with pytest.raises(TypeError, match="allocate: expected a writable array or tensor, got int"):
        backward(lambda size: 17)
    with pytest.raises(ValueError, match="workspace must be 64-byte aligned"):
        backward(lambda size: torch.empty(size + 8, dtype=torch.int8)[8:])


def test_names_of_extras_that_do_not_exist_are_refused():
    q, k, v = operands()
    with pytest.raises(ValueError, match="extras: no tensor is called masks"):
        _native.forward(
            native(Settings()),
            q,
            k,
            v,
            torch.empty_like(q),
            None,
            {"masks": q},
            0,
            None,
            None,
            False,
        )
