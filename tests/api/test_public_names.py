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
