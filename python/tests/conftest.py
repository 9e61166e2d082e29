"""What the tests share. `pytest -m gpu` runs those for a GPU, `-m "not slow"` leaves out the long
ones; --parity-calls says how many random calls are compared with PyTorch's."""

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--parity-calls",
        type=int,
        default=60,
        help="random calls of scaled_dot_product_attention to compare (2000 for all)",
    )
    parser.addoption(
        "--flux-heads",
        type=int,
        default=2,
        help="heads of the largest test of f32 (24 for a whole FLUX block)",
    )
    parser.addoption("--parity-seed", type=int, default=0, help="of the first random call")


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Every test begins with counters at zero, PyTorch's own attention and no lines of proof."""
    import fovea

    fovea.reset_stats()
    fovea.set_proof_level("off")
    yield
    fovea.set_proof_level("off")
    fovea.set_proof_sink(None)
    import sys

    if "fovea.torch" in sys.modules:
        fovea.torch.disable()
        fovea.torch.reset_stats()


@pytest.fixture
def proof_lines():
    """The lines of proof, one for each job and kernel."""
    import fovea

    lines = []
    fovea.set_proof_level("proof")
    fovea.set_proof_sink(lines.append)
    return lines


@pytest.fixture
def gpu():
    """A CUDA device with a build that serves it; skips with the reason where there is none."""
    torch = pytest.importorskip("torch")
    import fovea

    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device")
    if not any(d["type"] == "cuda" for d in fovea.info()["devices"]):
        reasons = {a["backend"]: a["reason"] for a in fovea.info()["absent_backends"]}
        pytest.skip(f"this build serves no CUDA device: {reasons.get('cuda', 'no device')}")
    return torch.device("cuda")
