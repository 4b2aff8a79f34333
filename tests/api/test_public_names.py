"""What `import fedwright` offers, and what it costs."""

import subprocess
import sys

import pytest

import fedwright


def test_the_list_of_names_is_sorted_and_whole() -> None:
    assert fedwright.__all__ == sorted(fedwright._PLACES)
    assert set(fedwright.__all__) <= set(dir(fedwright))


@pytest.mark.parametrize("name", fedwright.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    assert getattr(fedwright, name).__doc__


def test_nothing_else_is_offered() -> None:
    assert [name for name in dir(fedwright) if not name.startswith("__")] == fedwright.__all__


@pytest.mark.parametrize("name", [name for name in fedwright.__all__ if isinstance(getattr(fedwright, name), type)])
def test_whatever_a_class_offers_is_documented(name: str) -> None:
    kind = getattr(fedwright, name)
    offered = [member for member in dir(kind) if not member.startswith("_")]
    own = [
        member for member in offered if callable(getattr(kind, member)) or isinstance(getattr(kind, member), property)
    ]

    assert [member for member in own if not getattr(kind, member).__doc__] == []


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="'fedwright' has no attribute 'nothing'"):
        fedwright.nothing  # noqa: B018


def test_a_name_that_will_go_still_works_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fedwright._RENAMED, "Fleet", "Device")

    with pytest.warns(DeprecationWarning, match=r"fedwright\.Fleet will go; use fedwright\.Device"):
        found = fedwright.Fleet

    assert found is fedwright.Device
    assert "Fleet" not in fedwright.__all__


def test_importing_it_imports_nothing_heavy_and_training_needs_no_torch() -> None:
    script = (
        "import sys, fedwright; assert 'numpy' not in sys.modules\n"
        "fedwright.Trainer, fedwright.TrainingGraph\n"
        "assert not {'torch', 'onnx', 'rich', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
