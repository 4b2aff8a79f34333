"""A release: packages of equal bytes, one version, licences, a changelog section."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest
import tomllib
import yaml

import fedwright
from helpers.tools import REPO, require_tool, run
from release import empty
from release_steps.changelog import released
from release_steps.licences import Package, bill_of_materials, licence_list, licence_of, packages
from release_steps.packages import build_packages, same_bytes
from release_steps.signing import PURPOSE, check_key, sign, write_sums

LOG = "# Changelog\n\n## [Unreleased]\n### Added\n- A thing.\n\n## [0.0.9] - 2026-01-01\n- Old.\n"


@pytest.mark.slow
def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (build_packages(REPO, tmp_path / name) for name in ("first", "second"))

    assert [file.name for file in first] == [
        f"fedwright-{fedwright.__version__}-py3-none-any.whl",
        f"fedwright-{fedwright.__version__}.tar.gz",
    ]
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
    with zipfile.ZipFile(first[0]) as wheel, tarfile.open(first[1]) as source:
        inside = {name for name in wheel.namelist() if name.endswith(".py")}
        given = {member.name.partition("/")[2] for member in source.getmembers()}
    assert len(inside) > 400
    assert inside <= given


def test_dates_owners_and_order_do_not_count() -> None:
    archives = []
    for names, date in ((("b", "a"), 5), (("a", "b"), 7)):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.uid = 1, date, date
                archive.addfile(member, io.BytesIO(name.encode()))
        archives.append(made.getvalue())

    assert archives[0] != archives[1]
    assert same_bytes(archives[0]) == same_bytes(archives[1])


def test_the_version_has_one_place() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())

    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "fedwright.__version__"}
    assert yaml.safe_load((REPO / "CITATION.cff").read_text())["version"] == fedwright.__version__


def test_what_is_unreleased_becomes_a_section() -> None:
    text = released(LOG, "0.1.0", "2026-11-18")

    assert "## [Unreleased]\n\n## [0.1.0] - 2026-11-18\n### Added\n- A thing.\n" in text
    assert text.endswith("## [0.0.9] - 2026-01-01\n- Old.\n")


@pytest.mark.parametrize(("version", "text"), [("0.0.9", LOG), ("0.1.0", LOG.replace("- A thing.\n", ""))])
def test_a_changelog_that_cannot_be_released(version: str, text: str) -> None:
    with pytest.raises(ValueError, match="the changelog has"):
        released(text, version, "2026-11-18")


def test_a_strict_licence_comes_with_the_jetson_extra_alone() -> None:
    found = packages()
    strict = [each for each in found if "AGPL" in each.licence or each.licence.startswith("GPL")]

    assert len(found) > 40
    assert [(each.name, each.extras) for each in strict] == [("jetson-stats", ("jetson",))]
    assert [each.name for each in found if each.licence == "unknown"] == []


def test_the_bill_of_materials_and_the_list_have_every_package() -> None:
    found = [Package("numpy", "2.0", "BSD-3-Clause", ("device", "server"))]

    [part] = json.loads(bill_of_materials(found))["components"]

    assert part["purl"] == "pkg:pypi/numpy@2.0"
    assert "| numpy | 2.0 | BSD-3-Clause | device, server |" in licence_list(found)


def test_a_licence_is_an_expression_a_classifier_or_a_line() -> None:
    classifiers = ["License :: OSI Approved :: MIT License"]

    assert licence_of(classifiers, {"License-Expression": "ISC"}) == "ISC"
    assert licence_of(classifiers, {"License": "long text"}) == "MIT License"
    assert licence_of([], {"License": "Zlib\nmore"}) == "Zlib"


def test_hashes_are_signed_by_the_named_key_and_tell_a_changed_file(tmp_path: Path) -> None:
    require_tool("ssh-keygen")
    key, file = tmp_path / "key", tmp_path / "fedwright-1.0.tar.gz"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "releaser", "-f", str(key)])
    file.write_bytes(b"the release")
    check_key(str(key))
    sums = write_sums([file])

    signature = sign(sums, str(key))

    (tmp_path / "signers").write_text(f"releaser {key.with_suffix('.pub').read_text()}")
    verify = f"ssh-keygen -Y verify -f signers -I releaser -n {PURPOSE} -s {signature.name} < {sums.name}"
    assert "Good" in run(["sh", "-c", f"{verify} && sha256sum --check {sums.name}"], cwd=tmp_path)
    sums.write_text(sums.read_text().replace("1.0", "1.1"))
    assert run(["sh", "-c", f"{verify} || echo refused"], cwd=tmp_path).endswith("refused\n")


def test_a_key_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without gpg, which would start a process of its own.
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="nobody@example is neither a file with an SSH key nor a secret key of gpg"):
        check_key("nobody@example")


def test_only_an_earlier_release_is_removed(tmp_path: Path) -> None:
    for name in ("fedwright-1.0.tar.gz", "SHA256SUMS", "SHA256SUMS.sig"):
        (tmp_path / name).touch()
    empty(tmp_path)
    empty(tmp_path / "not yet there")

    assert list(tmp_path.iterdir()) == []
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ValueError, match=r"has thesis\.txt, which is of no release"):
        empty(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("file", sorted((REPO / ".github").rglob("*.yml")), ids=lambda file: file.name)
def test_files_for_github_are_readable(file: Path) -> None:
    assert isinstance(yaml.safe_load(file.read_text()), dict)
