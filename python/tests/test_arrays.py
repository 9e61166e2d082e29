"""fovea.attention on arrays of NumPy, JAX and CuPy."""

import sys

import pytest

import fovea

np = pytest.importorskip("numpy")


def arrays(q_heads=4, kv_heads=2, q_len=9, kv_len=13, dtype="float32"):
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal(shape).astype(dtype)
        for shape in ((2, q_heads, q_len, 8), (2, kv_heads, kv_len, 8), (2, kv_heads, kv_len, 8))
    ]


def formula(q, k, v, mask=None, offset=None):
    k, v = (np.repeat(t, q.shape[1] // k.shape[1], 1) for t in (k, v))
    s = np.einsum("bhid,bhjd->bhij", q.astype("f8"), k.astype("f8")) / np.sqrt(q.shape[-1])
    if offset is not None:
        i, j = np.indices(s.shape[-2:])
        s = np.where(j <= i + offset, s, -np.inf)
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    with np.errstate(invalid="ignore"):
        e = np.exp(s - np.maximum(s.max(-1, keepdims=True), -1e300))
    total = e.sum(-1, keepdims=True)
    p = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    return np.einsum("bhij,bhjd->bhid", p, v.astype("f8"))


def test_numpy_result_and_lse_equal_the_formula():
    q, k, v = arrays()
    out, lse = fovea.attention(q, k, v, return_lse=True)
    assert type(out) is np.ndarray and out.dtype == np.float32 and lse.shape == (2, 4, 9)
    np.testing.assert_allclose(out, formula(q, k, v), atol=1e-6)


def test_numpy_masks_of_both_kinds_and_bands():
    q, k, v = arrays()
    allowed = np.random.default_rng(1).random((9, 13)) < 0.6
    np.testing.assert_allclose(
        fovea.attention(q, k, v, mask=allowed), formula(q, k, v, allowed), atol=1e-6
    )
    bias = np.random.default_rng(2).standard_normal((1, 4, 1, 13)).astype("f4")
    np.testing.assert_allclose(
        fovea.attention(q, k, v, mask=bias), formula(q, k, v, bias), atol=1e-6
    )
    np.testing.assert_allclose(
        fovea.attention(q, k, v, is_causal=True), formula(q, k, v, offset=0), atol=1e-6
    )
    band = fovea.Band.causal("bottom_right")
    np.testing.assert_allclose(
        fovea.attention(q, k, v, band=band), formula(q, k, v, offset=4), atol=1e-6
    )


def test_strided_read_only_and_negative_strides_are_read_in_place():
    q, k, v = arrays()
    expected = formula(q, k, v)
    strided = [
        np.ascontiguousarray(t.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for t in (q, k, v)
    ]
    for t in strided:
        t.flags.writeable = False
    np.testing.assert_allclose(fovea.attention(*strided), expected, atol=1e-6)
    backwards = np.ascontiguousarray(q[:, :, ::-1])[:, :, ::-1]
    np.testing.assert_allclose(fovea.attention(backwards, k, v), expected, atol=1e-6)


def test_out_is_written_and_read_only_out_refused():
    q, k, v = arrays()
    out = np.empty_like(q)
    assert fovea.attention(q, k, v, out=out) is out
    np.testing.assert_allclose(out, formula(q, k, v), atol=1e-6)
    out.flags.writeable = False
    with pytest.raises((TypeError, ValueError, BufferError), match="out"):
        fovea.attention(q, k, v, out=out)


def test_half_precision_and_f32_by_cast():
    q, k, v = arrays(dtype="float16")
    assert fovea.attention(q, k, v).dtype == np.float16
    mixed = fovea.attention(q, k.astype("float32"), v, cast="f32")
    assert mixed.dtype == np.float32
    np.testing.assert_allclose(mixed, formula(q, k, v), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda q, k, v: (q[0], k, v), ValueError, r"q: 4 dimensions .* got shape \(4, 9, 8\)"),
        (lambda q, k, v: (q, k.astype("c8"), v), TypeError, "k: dtype must be one of .* complex64"),
        (lambda q, k, v: (q, k, v.astype("i4")), TypeError, "v: dtype must be one of .* int32"),
        (lambda q, k, v: (q, [1, 2], v), TypeError, "k: expected an array, got list"),
        (
            lambda q, k, v: (q, k[:, :1], v),
            ValueError,
            "k and v must have the same heads; got k=1, v=2",
        ),
        (lambda q, k, v: (q, k.astype("f2"), v), ValueError, "q=f32, k=f16, v=f32"),
    ],
)
def test_bad_operands_are_named_with_their_value(change, error, message):
    with pytest.raises(error, match=message):
        fovea.attention(*change(*arrays()))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"nonsense": 1}, TypeError, "options: unknown one among nonsense; known: scale"),
        ({"kernel": "cpu.nobody"}, ValueError, 'unknown kernel "cpu.nobody"'),
        ({"scale": float("nan")}, ValueError, "scale"),
        (
            {"is_causal": True, "band": fovea.Band.causal("top_left")},
            ValueError,
            "is_causal: not together",
        ),
        ({"is_causal": "yes"}, TypeError, "is_causal: a bool; got 'yes'"),
        (
            {"band": fovea.Band("middle")},
            ValueError,
            'band: top_left or bottom_right; got "middle"',
        ),
        ({"cast": "f8"}, ValueError, 'cast: unknown dtype "f8"'),
        ({"softcap": -1.0}, ValueError, "softcap"),
    ],
)
def test_bad_options_are_named_with_their_value(options, error, message):
    with pytest.raises(error, match=message):
        fovea.attention(*arrays(), **options)


def test_unsupported_is_not_implemented_error_with_each_reason():
    q, k, v = (t.astype("float64") for t in arrays())
    with pytest.raises(NotImplementedError, match="no kernel serves this call.*f64"):
        fovea.attention(q, k, v)
    reference = fovea.attention(q, k, v, kernel="cpu.reference")
    np.testing.assert_allclose(reference, formula(q, k, v), atol=1e-14)


def test_plan_runs_again_and_refuses_other_shapes():
    q, k, v = arrays()
    out = np.empty_like(q)
    plan = fovea.plan(q, k, v, out, is_causal=True)
    assert plan.kernel.startswith("cpu.") and plan.workspace_bytes >= 0
    assert all(reason for _, reason in plan.report.passed_over)
    for scale in (1, 2):
        plan.run(q * scale, k, v, out)
        np.testing.assert_allclose(out, formula(q * scale, k, v, offset=0), atol=1e-6)
    with pytest.raises(ValueError, match="q"):
        plan.run(q[:, :, :5], k, v, out)


def test_merged_partials_equal_the_whole():
    q, k, v = arrays()
    whole, whole_lse = fovea.attention(q, k, v, return_lse=True)
    parts = [
        fovea.attention(q, k[:, :, s], v[:, :, s], return_lse=True)
        for s in (slice(0, 5), slice(5, 13))
    ]
    out, lse = fovea.merge_partials(*zip(*parts))
    np.testing.assert_allclose(out, whole, atol=1e-6)
    np.testing.assert_allclose(lse, whole_lse, atol=1e-6)
    with pytest.raises(ValueError, match="outs: at least one"):
        fovea.merge_partials([], [])


def test_jobs_stats_and_info():
    q, k, v = arrays()
    job = fovea.job("a request")
    fovea.attention(q, k, v, job=job)
    assert len(job.kernels_ran) == 1 and job.kernels_ran[0].endswith(".forward")
    assert fovea.stats()["forward_calls"] == 1
    assert fovea.stats()["kernels"][job.kernels_ran[0]]["completed"] == 1
    fovea.reset_stats()
    assert fovea.stats()["forward_calls"] == 0
    info = fovea.info()
    assert info["version"] == fovea.version() == fovea.__version__
    assert info["library"] == fovea.library_path()
    assert any(d["type"] == "cpu" for d in info["devices"])


def test_a_sink_that_raises_fails_no_call(monkeypatch):
    def broken(line):
        raise RuntimeError("the sink is full")

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: seen.append(str(what.exc_value)))
    fovea.set_proof_level("all")
    fovea.set_proof_sink(broken)
    fovea.attention(*arrays())
    assert seen == ["the sink is full"]
    with pytest.raises(ValueError, match='level: off, proof or all; got "loud"'):
        fovea.set_proof_level("loud")


def test_jax_arrays_come_back_as_jax_arrays():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    q, k, v = arrays()
    out, lse = fovea.attention(*(jax.numpy.asarray(t) for t in (q, k, v)), return_lse=True)
    assert isinstance(out, jax.Array) and isinstance(lse, jax.Array)
    np.testing.assert_allclose(np.asarray(out), formula(q, k, v), atol=1e-6)
    bf16 = fovea.attention(*(jax.numpy.asarray(t, dtype="bfloat16") for t in (q, k, v)))
    assert bf16.dtype == jax.numpy.bfloat16


@pytest.mark.gpu
def test_cupy_arrays_on_their_current_stream(gpu):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    q, k, v = arrays()
    with cupy.cuda.Stream(non_blocking=True):
        out = fovea.attention(*(cupy.asarray(t) for t in (q, k, v)))
        assert isinstance(out, cupy.ndarray)
        found = cupy.asnumpy(out)
    np.testing.assert_allclose(found, formula(q, k, v), atol=1e-5)


def test_calls_without_a_gradient_refuse_tensors_that_want_one():
    torch = pytest.importorskip("torch")
    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    out, lse = fovea.attention(q, q, q, return_lse=True)
    with pytest.raises(NotImplementedError, match="no gradient"):
        fovea.merge_partials([out, out], [lse, lse])
    made = fovea.plan(q.detach(), q.detach(), q.detach(), torch.empty(1, 2, 8, 16))
    with pytest.raises(NotImplementedError, match="no gradient"):
        made.run(q, q, q, torch.empty(1, 2, 8, 16))
    with torch.no_grad():
        made.run(q, q, q, torch.empty(1, 2, 8, 16))
