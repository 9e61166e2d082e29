"""The lines of Python in README.md work as they stand there."""

import re
from pathlib import Path

import pytest

import fovea

README = Path(__file__).parents[2] / "README.md"


def test_the_lines_of_the_readme():
    pytest.importorskip("torch")
    lines = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(compile(lines.group(1), str(README), "exec"), names)
    assert names["out"].shape == (1, 8, 256, 64)
    assert fovea.stats()["forward_calls"] == 1
