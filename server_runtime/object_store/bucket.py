"""One prefix of a bucket: S3 and what speaks its protocol, Google Cloud Storage or Azure; every fault is one sentence.

Who may enter is said by the environment (or the file of the AWS command line), never by the config. What the object
store answers is quoted by its code alone, so that no key and no signature reaches a log.
"""

import configparser
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import from_url

from fedwright.protocol.errors import BadBlob, ConfigError, StorageError

# Larger objects go in parts, several at once; smaller ones in one request that an object of that name refuses.
PART_BYTES = 8 * 1024 * 1024
PARTS_AT_ONCE = 4
# How long faults that pass are tried again; a server of the store that restarts is back before that.
PATIENCE_S = 60
LONGEST_WAIT_S = 5
CONNECT_S = 5
ANSWER_S = 30
GO_ON = "the same command then goes on where it stopped"
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_STATUS = re.compile(r"status code: (\d{3} [A-Za-z ]{1,40})")
_SKEW = ("RequestTimeTooSkewed", "RequestExpired")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class Bucket:
    """Objects by name; url: s3://bucket/prefix; patience_s: how long faults that pass are tried again."""

    def __init__(self, url: str, *, patience_s: float = PATIENCE_S) -> None:
        self.url = url
        with self._plain_errors():
            # Which of the kinds of stores it is, its address says.
            self._store: Any = _opened(url, patience_s)

    def check(self) -> None:
        """Raise ConfigError when the bucket is not there or may not be used; to be called before a run begins."""
        try:
            with self._plain_errors():
                # A list has an answer that says why it is refused; a HEAD has none.
                next(iter(obstore.list(self._store, chunk_size=1)), None)
                probe = f"probe-{os.urandom(8).hex()}"
                obstore.put(self._store, probe, b"")
                obstore.delete(self._store, probe)
        except StorageError as err:
            raise ConfigError(f"store.blobs: {err}") from err

    def size_bytes(self, name: str) -> int | None:
        """The size of an object; None when there is none."""
        try:
            with self._plain_errors():
                return int(obstore.head(self._store, name)["size"])
        except FileNotFoundError:
            return None

    def put(self, name: str, file: Path) -> None:
        """Put a file there unless an object of that name and size is; whole or not at all."""
        size_bytes = file.stat().st_size
        with self._plain_errors():
            if size_bytes <= PART_BYTES:
                try:
                    obstore.put(self._store, name, file.read_bytes(), mode="create", use_multipart=False)
                    return
                except exceptions.AlreadyExistsError:
                    pass
        if self.size_bytes(name) == size_bytes:
            return
        with self._plain_errors():
            obstore.put(
                self._store, name, file, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )

    def fetch(self, name: str, target: Path) -> None:
        """Write an object into a file, piece by piece; BadBlob when there is none."""
        try:
            with self._plain_errors(), target.open("wb") as file:
                for piece in obstore.get(self._store, name).stream(min_chunk_size=PART_BYTES):
                    file.write(piece)
        except FileNotFoundError as err:
            raise BadBlob(f"blob {name[:12]} is not in {self.url}; put a copy of it back") from err

    def set_aside(self, name: str) -> None:
        """Give an object that is not what its name says another name, for its owner to look at."""
        with self._plain_errors():
            obstore.rename(self._store, name, f"{name}.damaged")

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects, many by one request; those that are not there are no fault."""
        with self._plain_errors():
            try:
                obstore.delete(self._store, list(names))
            except FileNotFoundError:
                return

    def names(self) -> list[str]:
        """Of all objects there."""
        with self._plain_errors():
            return [str(found["path"]) for page in obstore.list(self._store) for found in page]

    def presigned(self, name: str, seconds: float) -> str:
        """An address under which anybody can read one object for so long."""
        with self._plain_errors():
            return str(obstore.sign(self._store, "GET", name, timedelta(seconds=seconds)))

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """What the object store says, as a StorageError; that an object is missing stays FileNotFoundError."""
        try:
            yield
        except FileNotFoundError as err:
            if "NoSuchBucket" in str(err):
                raise StorageError(f"there is no bucket {self.url}; make it, or mend its name, {GO_ON}") from None
            raise FileNotFoundError(f"{self.url} has no such object") from None
        except (exceptions.BaseError, PermissionError) as err:
            raise StorageError(self._sentence(str(err))) from None

    def _sentence(self, said: str) -> str:
        """What to do about a fault; of what was said only a code is quoted."""
        found = _CODE.search(said) or _STATUS.search(said)
        code = found[1] if found else ""
        if code in _SKEW:
            return f"{self.url} refuses this machine's clock ({code}); set it by NTP, {GO_ON}"
        if code == "NoSuchBucket":
            return f"there is no bucket {self.url}; make it, or mend its name, {GO_ON}"
        if code.startswith(("401", "403")) or "Denied" in code or "Key" in code or "Signature" in code:
            rights = "give it rights to list, read, write and delete"
            return f"{self.url} does not let this server in ({code}); {rights}, {GO_ON}"
        if not code:
            return f"{self.url} does not answer; see that it runs and can be reached, {GO_ON}"
        return f"{self.url} answers with a fault ({code}); look into its log, {GO_ON}"


def _opened(url: str, patience_s: float) -> object:
    client: Any = {"connect_timeout": f"{CONNECT_S}s", "timeout": f"{ANSWER_S}s", "user_agent": "fedwright"}
    retry: Any = {
        "retry_timeout": timedelta(seconds=patience_s),
        "max_retries": 1000 if patience_s else 0,
        "backoff": {
            "base": 2.0,
            "init_backoff": timedelta(seconds=0.1),
            "max_backoff": timedelta(seconds=LONGEST_WAIT_S),
        },
    }
    config: Any = {}
    if urlsplit(url).scheme == "s3":
        config = _amazon()
        if config.get("endpoint", "").startswith("http://"):
            client["allow_http"] = True
    return from_url(url, config=config, client_options=client, retry_config=retry)


def _amazon() -> dict[str, str]:
    """What the library does not find in the environment by itself: the endpoint's names, and the credentials file."""
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    found = {} if endpoint is None else {"endpoint": endpoint}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    profile = os.environ.get("AWS_PROFILE", "default")
    folder = Path.home() / ".aws"
    if "AWS_ACCESS_KEY_ID" not in os.environ:
        keys = _section(Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", folder / "credentials")), profile)
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        found |= {name.removeprefix("aws_"): keys[name] for name in names if name in keys}
    if region is None:
        file = Path(os.environ.get("AWS_CONFIG_FILE", folder / "config"))
        region = _section(file, profile if profile == "default" else f"profile {profile}").get("region")
    # One is needed for the signature; servers other than Amazon's take any.
    return found | {"region": region or "us-east-1"}


def _section(file: Path, name: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as err:
        raise ConfigError(f"{file} cannot be read ({type(err).__name__}); mend it, or set AWS_ACCESS_KEY_ID") from None
    return dict(parser[name]) if parser.has_section(name) else {}
