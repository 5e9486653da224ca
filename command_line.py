"""What the scripts share: flags, settings from TOML, and errors in one line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import io
import json
import os
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


class UsageError(ValueError):
    """A wrong flag or setting; the message says what is wrong and what to do."""


def say(text: str) -> None:
    """A remark beside the results, which go to stdout."""
    print(text, file=sys.stderr, flush=True)


def nearest(name: str, known: Sequence[str]) -> str:
    """ "; did you mean …?" with the known name most like `name`, or nothing."""
    found = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {found[0]}?" if found else ""


class Parser(argparse.ArgumentParser):
    """argparse with whole flag names only and UsageError, which names the nearest flag."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.ArgumentDefaultsHelpFormatter)
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message + f"; see `python {self.prog} --help`")

    def parse_args(self, args=None, namespace=None):
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flag = next((a for a in unknown if a.startswith("--")), unknown[0]).partition("=")[0]
            known = [o for action in self._actions for o in action.option_strings]
            self.error(f"unknown argument {flag}{nearest(flag, known)}")
        return found


def run(main: Callable[[list[str]], int | None], *expected: type[Exception]) -> NoReturn:
    """Run a script's main on the command line and leave with its exit code.

    Wrong use and bad input (UsageError, OSError and the `expected` classes) end in one line on
    stderr and exit code 2, Ctrl-C in 130; anything else is a fault of ours and shows its traceback.
    """
    name = Path(sys.argv[0]).name
    for closed in ("stdout", "stderr"):
        if getattr(sys, closed) is None:  # as `>&-` and pythonw leave them
            setattr(sys, closed, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # Files and pipes get UTF-8. A console gets its own code page and, for a character that it
        # lacks, "?" instead of a traceback.
        if isinstance(stream, io.TextIOWrapper):
            free = not stream.isatty() and "PYTHONIOENCODING" not in os.environ
            stream.reconfigure(encoding="utf-8" if free else None, errors="replace")
    try:
        code = main([_text(argument) for argument in sys.argv[1:]]) or 0
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted", file=sys.stderr)
        code = 130
    except (UsageError, OSError, UnicodeEncodeError, *expected) as error:
        print(f"{name}: error: {one_line(error)}", file=sys.stderr)
        code = 2
    sys.exit(code)


def _text(argument: str) -> str:
    """An argument as text: where the locale is not UTF-8 (LC_ALL=C) Python hands over bytes that it
    could not decode as lone surrogates."""
    try:
        argument.encode()
        return argument
    except UnicodeEncodeError:
        pass
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        raise UsageError(
            f"the argument {ascii(argument)} is not UTF-8: write it in UTF-8"
        ) from None


def one_line(error: Exception) -> str:
    """The message of an error, on one line."""
    if isinstance(error, UnicodeEncodeError):
        return (
            f"this system's locale cannot name a file {error.object!r}: set PYTHONUTF8=1 or take "
            "another name"
        )
    if isinstance(error, OSError) and error.strerror:
        name = error.filename or "a file"
        return (
            f"cannot use {name}: {error.strerror}; check the path, its rights and the disk's space"
        )
    return " ".join(str(error).split())


def setting(default: Any, help: str) -> Any:
    """A field of a settings dataclass with the text that `--help` shows."""
    return dataclasses.field(default=default, metadata={"help": help})


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, not {text}")
    return text.lower() == "true"


def add_settings(parser: argparse.ArgumentParser, cls: type) -> None:
    """One flag for each field of a settings dataclass."""
    types = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = types[field.name]
        many = {"nargs": "*"} if _is_list(kind) else {}
        kind = get_args(kind)[0] if many else kind
        parser.add_argument(
            f"--{field.name}",
            type=_boolean if kind is bool else kind,
            default=argparse.SUPPRESS,  # only what was said on the command line overrides the file
            help=f"{field.metadata['help']} (default: {field.default})",
            metavar=kind.__name__.upper(),
            **many,
        )


def read_settings(path: str | Path, cls: type[T]) -> dict[str, Any]:
    """The settings in a TOML file, checked against the fields of `cls`.

    Raises UsageError for an unknown key, naming the nearest, a wrong type, or a file that is not
    TOML in UTF-8.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        found = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read the config {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the config {path} is not valid TOML in UTF-8: {error}") from None
    types = get_type_hints(cls)
    for key, value in found.items():
        if key not in types:
            raise UsageError(f"unknown key {key} in {path}{nearest(key, list(types))}")
        found[key] = _checked(value, types[key], f"{key} in {path}")
    return found


def _checked(value: Any, kind: Any, name: str) -> Any:
    if _is_list(kind) and isinstance(value, list):
        return tuple(_checked(v, get_args(kind)[0], f"each of {name}") for v in value)
    if kind is float and type(value) is int and abs(value) < 1 << 63:
        return float(value)
    if kind is str and "\0" in str(value):
        raise UsageError(f"{name} has a NUL character in it: leave it out")
    if type(value) is not kind:
        expected = "list" if _is_list(kind) else kind.__name__
        raise UsageError(f"{name} must be of type {expected}, not {value!r}")
    return value


def to_toml(settings: Any) -> str:
    """A settings dataclass as TOML that `read_settings` reads back."""
    lines = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        # JSON's strings, numbers, booleans and lists of strings are TOML's too.
        text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        lines.append(f"{field.name} = {text}\n")
    return "".join(lines)
