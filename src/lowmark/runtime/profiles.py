"""A user's profiles: the databases that this user works with, each under a name, in one TOML file.

    [profile.prod]                                        # ~/.config/lowmark/config.toml
    node = "lowmark+tls://n1.example:6570,n2.example:6570"
    ca = "prod-ca.pem"
    token_file = "prod.token"

Nothing of the file counts, and it is not read, unless a profile is named: by the caller
(`lowmark.connect(profile="prod")`), by `lowmark --profile prod`, or by `LOWMARK_PROFILE`. Then each
setting comes from where it is said first: the call or the option, the environment, the profile. So
there is no place that asks for a profile beside these: what asks the environment for a setting asks
the profile next: `authorities` here, `lowmark.node.showing.found_secret`, `lowmark.node.settings`,
`lowmark.access.connect` for a node, and `lowmark.cli.node_option` for a node or a directory.

A variable that counts before a profile which was named for this one call is said in the log: the
user may have forgotten it, and would work on another database than the one that is named.

The file is read whole each time, and refused whole: an unknown key may be the token that is missed.
A token in it makes it a secret, so other users of the machine must not be able to read the file.
They must never be able to write it: a token is shown to the node that the file names.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any, Final

from lowmark.errors import Rejected
from lowmark.formatting import near
from lowmark.runtime.network import CA_VARIABLE

logger = logging.getLogger(__name__)

PROFILE_VARIABLE: Final = "LOWMARK_PROFILE"
CONFIG_VARIABLE: Final = "LOWMARK_CONFIG"
_HOME_VARIABLE: Final = "XDG_CONFIG_HOME"
_PLACE: Final = os.path.join("lowmark", "config.toml")
_SECTION: Final = "profile"
_FILE_BYTES_MAX: Final = 1 << 20
_named: ContextVar[str] = ContextVar("the profile that a call names", default="")


class ProfilesUnusable(Rejected):
    """The file of profiles can't be read, or says what no profile can."""


class ProfileUnknown(Rejected):
    """A profile that is named, and that the file does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is needed to work with one database. Its paths are whole; what is not said is empty."""

    name: str
    node: str = ""
    """Addresses, with commas between."""
    data: str = ""
    """A directory, instead of a node."""
    ca: str = ""
    token_file: str = ""
    token: str = field(default="", repr=False)
    settings: str = ""
    """The settings file, as `LOWMARK_SETTINGS` names it."""


_KEYS: Final = tuple(one.name for one in fields(Profile) if one.name != "name")
_PATHS: Final = frozenset({"data", "ca", "token_file", "settings"})
_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "node": ("LOWMARK_NODE", "LOWMARK_DATA"),
    "data": ("LOWMARK_NODE", "LOWMARK_DATA"),
    "ca": (CA_VARIABLE,),
    "token_file": ("LOWMARK_TOKEN", "LOWMARK_TOKEN_FILE"),
    "token": ("LOWMARK_TOKEN", "LOWMARK_TOKEN_FILE"),
    "settings": ("LOWMARK_SETTINGS",),
}
"""The variables that count before each key."""


def profiles_file() -> str:
    """The file of profiles, whether or not it is there."""
    if named := _variable(CONFIG_VARIABLE):
        return os.path.abspath(os.path.expanduser(named))
    home = _variable(_HOME_VARIABLE) or ""
    if not os.path.isabs(home):  # the specification: a relative path does not count
        home = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, _PLACE)


def profile_name() -> str:
    """The name of the profile that counts here; empty: none."""
    return _named.get() or _variable(PROFILE_VARIABLE) or ""


def profile_in_use() -> Profile | None:
    """The profile that counts here; None if none is named."""
    name = profile_name()
    return named_profile(name) if name else None


@contextmanager
def using_profile(name: str | None) -> Iterator[Profile | None]:
    """In here this profile counts, whatever the environment names; None changes nothing."""
    if name is None:
        yield profile_in_use()
        return
    profile = named_profile(name)
    say_overridden(profile)
    before = _named.set(name)
    try:
        yield profile
    finally:
        _named.reset(before)


def authorities(ca: str | None) -> str | None:
    """The file of authorities that counts: the one that is given, that the environment names, or
    the profile in use; None: there is none.
    """
    if found := ca or _variable(CA_VARIABLE):
        return found
    profile = profile_in_use()
    return (profile.ca or None) if profile else None


def _variable(name: str) -> str | None:
    """What a variable of the environment names, if anything."""
    return os.environ.get(name, "").strip() or None


def say_overridden(profile: Profile) -> None:
    """Log which variables count before a profile that its user has named for one call."""
    set_here = [
        one for key in _KEYS if getattr(profile, key) for one in _VARIABLES[key] if _variable(one)
    ]
    if set_here:
        logger.warning(
            "variables of the environment count before the profile",
            extra={"profile": profile.name, "variables": ",".join(dict.fromkeys(set_here))},
        )


def named_profile(name: str) -> Profile:
    """One profile of the file; refused if it has none of this name."""
    path = profiles_file()
    if not os.path.exists(path):
        raise ProfileUnknown(
            f"there is no profile {name}: there is no file {path}",
            hint=f"Write it, with a section [{_SECTION}.{name}]; or name another file by"
            f" ${CONFIG_VARIABLE}.",
        )
    found = profiles()
    if name not in found:
        raise ProfileUnknown(
            f"there is no profile {name} in {path}",
            detail=f"It has {', '.join(found)}." if found else "It has none.",
            hint=near(name, found, of="Use one of:") if found else f"Add [{_SECTION}.{name}].",
        )
    return found[name]


def profiles() -> dict[str, Profile]:
    """All profiles of the file, by name, as they stand there; none, if there is no file."""
    import tomllib  # noqa: PLC0415 (few commands name a profile)

    path = profiles_file()
    try:
        with open(path, "rb") as file:
            found_file = os.fstat(file.fileno())
            content = file.read(_FILE_BYTES_MAX + 1)
        mode = found_file.st_mode
        if stat.S_ISREG(mode):
            _check_writers(path, found_file)
        if len(content) > _FILE_BYTES_MAX:
            raise ProfilesUnusable(f"the file of profiles {path} is larger than 1 MiB")
        read = tomllib.loads(content.decode())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ProfilesUnusable(
            f"the file of profiles {path} can't be read: {error.strerror}",
            hint=f"Look at its permissions; or name another file by ${CONFIG_VARIABLE}.",
        ) from error
    except UnicodeDecodeError as error:
        raise ProfilesUnusable(
            f"the file of profiles {path} can't be read: it is not UTF-8 text"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ProfilesUnusable(
            f"the file of profiles {path} is not TOML: {error}",
            hint=f'Write sections and keys: [{_SECTION}.prod], then node = "127.0.0.1:6570".',
        ) from error
    _check_keys(read, (_SECTION,), f"in {path}", spell="[{}.NAME]")
    sections = _table(read.get(_SECTION, {}), _SECTION, path)
    found = {name: _profile(name, section, path) for name, section in sections.items()}
    secret = [one.name for one in found.values() if one.token]
    if secret and mode & 0o077:
        raise ProfilesUnusable(
            f"other users of this machine can read {path}, and profile {secret[0]} has a token",
            detail="They could do with it whatever its owner may do.",
            hint=f"Close the file to them: chmod 600 {path}. If they may have read the token,"
            " revoke it.",
        )
    return found


def _check_writers(path: str, found: os.stat_result) -> None:
    """Refuse a file that a user other than this one, and root, can write, as ssh does its own."""
    if found.st_uid not in {os.geteuid(), 0}:
        who = f"{path} belongs to another user"
        close = f"Make it yours: chown {os.geteuid()} {path}"
    elif found.st_mode & stat.S_IWOTH:
        who = f"every user of this machine can write {path}"
        close = f"Close the file to them: chmod go-w {path}"
    elif found.st_mode & stat.S_IWGRP:
        who = f"other users of this machine can write {path}: those of its group"
        close = f"Close the file to them: chmod g-w {path}"
    else:
        return
    raise ProfilesUnusable(
        who,
        detail="A user may put a node there to which your next command shows its token.",
        hint=f"{close}. Then look at what it has.",
    )


def _profile(name: str, section: Any, path: str) -> Profile:
    where = f"[{_SECTION}.{name}] in {path}"
    values = dict(_table(section, f"{_SECTION}.{name}", path))
    _check_keys(values, _KEYS, where)
    if isinstance(nodes := values.get("node"), list) and all(isinstance(n, str) for n in nodes):
        values["node"] = ",".join(nodes)
    for key, value in values.items():
        if not isinstance(value, str) or not value.strip():
            raise ProfilesUnusable(
                f"{key} of {where} is not text",
                hint=f'Write {key} = "…"{", or a list of addresses" * (key == "node")}.',
            )
        values[key] = value = value.strip()
        if key in _PATHS:  # beside the file: it means the same from whatever folder it is used
            values[key] = os.path.join(os.path.dirname(path), os.path.expanduser(value))
    for one, other in (("node", "data"), ("token_file", "token")):
        if one in values and other in values:
            raise ProfilesUnusable(
                f"{where} has both {one} and {other}", hint="A profile has one of both."
            )
    return Profile(name=name, **values)


def _table(value: Any, name: str, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ProfilesUnusable(
            f"{name} in {path} is not a section", hint=f"Write [{_SECTION}.NAME], and keys below."
        )
    return value


def _check_keys(
    values: Mapping[str, Any], known: tuple[str, ...], where: str, *, spell: str = "{}"
) -> None:
    for key in values:
        if key not in known:
            raise ProfilesUnusable(
                f"{key} {where if where.startswith('in ') else f'of {where}'}: there is no such"
                f" {'section' if spell != '{}' else 'key'}",
                hint=near(key, [spell.format(one) for one in known], of="Known here:"),
            )
