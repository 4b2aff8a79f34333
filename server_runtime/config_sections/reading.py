"""Reads a TOML config section by section; the errors name the file, the section and the key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import from_dict, unknown
from fedwright.protocol.support.toml import BadToml, read_toml


def sections_of(config: type[Any]) -> dict[str, type[Any]]:
    """The sections of a config by name, in order: the fields of its dataclass."""
    return get_type_hints(config)


def read_text(path: Path) -> str:
    """The text of a config file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as err:
        raise ConfigError(f"there is no file {path}; write one with `fedwright init METHOD > {path.name}`") from err
    except IsADirectoryError as err:
        raise ConfigError(
            f"{path} is a folder; give a TOML file, or go on with a run by `fedwright server resume {path}`"
        ) from err
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path} cannot be read as text ({err}); give the path of a TOML file") from err


def parse_toml(text: str, *, where: str) -> dict[str, Any]:
    """The tables of a config; `where` opens the error message."""
    try:
        return read_toml(text)
    except BadToml as err:
        raise ConfigError(f"{where} is not TOML: {err}") from err


def read_sections(
    sections: Mapping[str, type[Any]], data: Mapping[str, Any], *, where: str, beside: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Those sections that a config has, checked; those named in `beside` may be there and are read elsewhere."""
    names = [*sections, *beside]
    for key in data:
        if key not in names:
            raise unknown(key, names, where=where)
    return {
        name: from_dict(cls, data[name], where=f"{where} [{name}]") for name, cls in sections.items() if name in data
    }
