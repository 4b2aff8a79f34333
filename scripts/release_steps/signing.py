"""Hashes of a release's files, and a signature under them by the key that the releaser names."""

import hashlib
import shutil
import subprocess
from pathlib import Path

SUMS = "SHA256SUMS"
# What an SSH signature is for; `ssh-keygen -Y verify -n` asks for the same word.
PURPOSE = "fedwright-release"


def write_sums(files: list[Path]) -> Path:
    """The list of hashes, as `sha256sum --check` reads it, beside the files."""
    sums = files[0].parent / SUMS
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in files]
    sums.write_text("\n".join(lines) + "\n")
    return sums


def check_key(key: str) -> None:
    """ValueError unless the key is a file (for ssh-keygen) or a secret key that gpg knows."""
    if Path(key).is_file():
        return
    gpg = shutil.which("gpg")
    call = [gpg or "gpg", "--batch", "--list-secret-keys", key]
    if gpg is None or subprocess.run(call, capture_output=True, check=False).returncode:
        raise ValueError(f"{key} is neither a file with an SSH key nor a secret key of gpg; name one of them")


def sign(sums: Path, key: str) -> Path:
    """A signature beside the list, checked at once: .sig of an SSH key's file, .asc of a GnuPG key."""
    if Path(key).is_file():
        signature = sums.with_name(SUMS + ".sig")
        signature.unlink(missing_ok=True)
        _run("ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", PURPOSE, str(sums))
        _run("ssh-keygen", "-Y", "check-novalidate", "-n", PURPOSE, "-s", str(signature), given=sums.read_bytes())
        return signature
    signature = sums.with_name(SUMS + ".asc")
    _run("gpg", "--batch", "--yes", "--armor", "--local-user", key, "--detach-sign", str(sums))
    _run("gpg", "--batch", "--verify", str(signature), str(sums))
    return signature


def _run(*call: str, given: bytes = b"") -> None:
    done = subprocess.run(call, input=given, capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"{call[0]} could not sign: {done.stderr.decode(errors='replace').strip()}")
