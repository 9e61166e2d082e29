"""python -m fovea: info, check, doctor."""

import json

import pytest

import fovea
from fovea.__main__ import main


def test_info_says_what_there_is(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"fovea {fovea.version()} from {fovea.library_path()}" in text
    assert "cpu.portable.forward" in text and "metal: " in text
    assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == fovea.version()


def test_check_runs_the_self_checks(capsys):
    assert main(["check"]) == 0
    assert "cpu.portable.forward" in capsys.readouterr().out


def test_doctor_says_who_would_serve_and_why_not_the_others(capsys):
    pytest.importorskip("torch")
    assert main(["doctor", "--shape", "1x2x64x64", "--dtype", "bf16", "--causal"]) == 0
    text = capsys.readouterr().out
    assert "A call of shape 1x2x64x64 in bf16 on cpu, causal:" in text
    assert text.count(" serves.\n") == 1
    assert "cpu.reference.forward does not: serves only when chosen by name." in text
    assert f"120 Fovea {fovea.version()}" in text and "would serve" in text
    assert "FlashAttention 2: not available: ModuleNotFoundError" in text


def test_doctor_on_a_device_that_is_not_there(capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert main(["doctor", "--device", "cuda"]) == 0
    assert "There is no such tensor here: " in capsys.readouterr().out


def test_doctor_without_pytorch(capsys, monkeypatch):
    pytest.importorskip("numpy")
    monkeypatch.setattr("fovea._doctor.importlib.util.find_spec", lambda name: None)
    assert main(["doctor", "--shape", "1x1x8x8"]) == 0
    text = capsys.readouterr().out
    assert "PyTorch is not installed" in text and text.count(" serves.\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["doctor", "--shape", "1x2"],
        ["doctor", "--dtype", "f8"],
        ["cure"],
        ["doctor", "--shape", "0x1x1x1"],
    ],
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2 and "usage" in capsys.readouterr().err
