"""Faults are made where they are meant to be, and it is seen which of them tests notice."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation import KINDS, apply, draw, mutants_of

SOURCE = '''
class Ground:
    def step(self, a, items):
        """Ümläute count as one."""
        if a is None:
            raise ValueError("ö")
        with self._lock:
            if not items and a != 3:
                return 1
        try:
            self.file.close()
        except OSError:
            raise
        return items[a + 1 : len(items)] if a < 4 else []
'''

EXPECTED = {
    *[("check", 'raise ValueError("ö")', "pass"), ("comparison", "is", "is not"), ("comparison", "!=", "==")],
    *[("lock", "self._lock", '__import__("contextlib").nullcontext()'), ("condition", "not ", "")],
    *[("condition", "and", "or"), ("guard", "return 1", "pass"), ("close", "self.file.close()", "pass")],
    *[("raise", "raise", "pass"), ("bound", "1", "2"), ("bound", "<", "<=")],
}

TOY = """
def first(items):
    if not items:
        raise ValueError("empty")
    return items[0]

def large(number):
    return number > 3

def unused(one, other):
    return one == other
"""

TESTS = """
import pytest, toy

def test_first():
    assert toy.first([7, 8]) == 7

def test_nothing():
    with pytest.raises(ValueError, match="empty"):
        toy.first([])

def test_large():
    assert toy.large(30)
"""


def test_every_kind_of_fault() -> None:
    source = SOURCE.encode()
    found = [*mutants_of("file.py", source)]
    assert {(each.kind, source[each.start : each.stop].decode(), each.new.decode()) for each in found} == EXPECTED
    assert {each.kind for each in found} == set(KINDS)
    for each in found:
        compile(apply(each, source), "file.py", "exec")


def toy_at(root: Path) -> None:
    (root / "toy").mkdir()
    (root / "tests").mkdir()
    (root / "toy" / "__init__.py").write_text(TOY)
    (root / "tests" / "test_toy.py").write_text(TESTS)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=root, check=True)


def test_a_seed_draws_the_same(tmp_path: Path) -> None:
    toy_at(tmp_path)
    every = draw(tmp_path, "toy", 1, 100)
    assert {each.kind for each in every} == {"check", "condition", "bound", "comparison"}
    assert draw(tmp_path, "toy", 1, 100) == every
    assert draw(tmp_path, "toy", 1, 2) == every[:2]
    assert any(draw(tmp_path, "toy", seed, 100) != every for seed in range(2, 20))


def test_what_is_noticed(tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    toy_at(tmp_path)
    script = Path(__file__).with_name("mutation.py")
    command = [sys.executable, str(script), "--root", str(tmp_path), "--package", "toy", "--jobs", "1"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    *lines, summary = [line for line in ran.stdout.splitlines() if "toy/__init__.py:" in line or "seed" in line]
    assert sorted(line.partition(";")[0] for line in lines) == [
        "killed: toy/__init__.py:3 condition: 'not ' -> ''",
        "killed: toy/__init__.py:4 check: 'raise ValueError(\"empty\")' -> 'pass'",
        "not run: toy/__init__.py:11 comparison: '==' -> '!='",
        "survived: toy/__init__.py:8 bound: '>' -> '>='",
    ]
    assert "'killed': 2" in summary
    assert "50% killed" in summary
    assert (tmp_path / "toy" / "__init__.py").read_text() == TOY
