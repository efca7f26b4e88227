"""The command line: `dray status` (programs), `dray plan` (scripts) and `dray doctor` (a host)."""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from dray import status
from dray.errors import DrayError, signal_name
from dray.version import VERSION

# Seconds that a script has to clean up after Ctrl-C; a second Ctrl-C ends it at once.
_GRACE_S = 5.0

_COMMANDS = {
    "status": "show running trainings, tasks and actors, and what they wait for",
    "plan": (
        "run a script up to its first fit(), and show that training's plan without starting it"
    ),
    "doctor": "show this machine's accelerators, and problems with them",
}


_OF_PLAN = (
    "The script runs as usual up to fit(): its tasks and actors run, and it writes its files. "
    "Only the training does not start"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; after Ctrl-C that is 130, as in a shell."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for characters outside its encoding
    try:
        try:
            return _run(arguments)
        finally:  # also when argparse exits after --help
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        _write_nowhere()
        return 0


def _run(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["help"]:
        given = [*given[1:2], "--help"]
    parser = _parser()
    if not given:
        parser.print_help()
        return 0
    if not given[0].startswith("-") and given[0] not in _COMMANDS:
        print(_unknown(given[0]), file=sys.stderr)
        return 2
    options = parser.parse_args(given)
    if options.command == "doctor":
        return _doctor(options.json)
    if options.command == "plan":
        return _plan(options.script, options.arguments, options.json)
    return _status(options.address, options.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dray",
        description="Run one training function on many workers; inspect running programs.",
    )
    parser.add_argument("--version", action="version", version=f"dray {VERSION}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands"
    )
    descriptions = {**_COMMANDS, "plan": f"{_COMMANDS['plan']}. {_OF_PLAN}"}
    parsers = {
        name: commands.add_parser(name, help=text, description=_sentence(descriptions[name]))
        for name, text in _COMMANDS.items()
    }
    commands.add_parser("help", help="show this text, or the options of a command")
    for command in parsers.values():
        command.add_argument("--json", action="store_true", help="print JSON, for programs")
    parsers["status"].add_argument(
        "--address", help="a Ray cluster ('auto' or host:port) instead of this machine's programs"
    )
    parsers["plan"].add_argument("script", help="a Python script that trains")
    parsers["plan"].add_argument(
        "arguments", nargs=argparse.REMAINDER, help="the script's own arguments"
    )
    return parser


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _unknown(command: str) -> str:
    near = difflib.get_close_matches(command, [*_COMMANDS, "help"], 1)
    advice = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"dray: there is no command {command!r}.{advice} "
        f"The commands are {', '.join(_COMMANDS)} and help."
    )


def _show(text: str) -> int:
    """Print text and return the exit status, which is 1 if the output cannot be written."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"dray: the output cannot be written: {error.strerror}", file=sys.stderr)
        _write_nowhere()  # Python flushes the rest of the buffer at exit
        return 1
    return 0


def _write_nowhere() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _status(address: str | None, as_json: bool) -> int:
    try:
        found = _cluster(address) if address else _programs()
    except DrayError as error:
        print(error, file=sys.stderr)
        return 1
    if as_json:
        return _show(json.dumps([asdict(program) for program in found], indent=1))
    return _show(status.text(found))


def _doctor(as_json: bool) -> int:
    from dray.cli.doctor import examine, report

    found = examine()
    shown = _show(json.dumps(found, indent=1) if as_json else report(found))
    return 1 if found["problems"] else shown


def _plan(script: str, arguments: Sequence[str], as_json: bool) -> int:
    """Run a script up to its first `fit()`, and print the plan of that."""
    if not os.path.isfile(script):
        print(f"dray plan: there is no script {script}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="dray-plan-") as directory:
        path = Path(directory, "plan.json")
        status = _status_of(
            [sys.executable, script, *arguments], {**os.environ, "DRAY_PLAN": str(path)}
        )
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if found is not None:
        shown = _show(json.dumps(found["plan"], indent=1) if as_json else found["text"])
        return shown if found["plan"]["fits"] else 1
    if status:
        print(f"dray plan: {script} {_ending(status)} before fit() had a plan", file=sys.stderr)
        return 1
    print(f"dray plan: {script} ended without calling fit() of a trainer", file=sys.stderr)
    return 2


def _status_of(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program to its end, and return its exit status."""
    with subprocess.Popen(
        command,
        env=environment,
        stdout=sys.stderr,  # stdout is for the plan only
    ) as program:
        before = signal.signal(signal.SIGTERM, lambda *_: program.terminate())
        try:
            return program.wait()
        except KeyboardInterrupt:  # a terminal interrupts the program as well
            try:
                program.wait(_GRACE_S)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                program.kill()
                program.wait()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)


def _ending(status: int) -> str:
    """Return in words how a program has ended: with a status, or by a signal if it is negative."""
    if status >= 0:
        return f"ended with status {status}"
    return f"was ended by {signal_name(-status) or f'signal {-status}'}"


def _programs() -> list[status.ProgramStatus]:
    """Return the status of this user's programs on this machine."""
    from dray.engines import status_socket

    return [status.read(status.ProgramStatus, found) for found in status_socket.sessions()]


def _cluster(address: str) -> list[status.ProgramStatus]:
    """Return the status of a cluster, and of this user's programs here that use it."""
    from dray import session

    session.init(engine="ray", address=address)
    try:
        found = session.current_runtime().status()
    finally:
        session.shutdown()
    return [found, *(here for here in _programs() if here.address == found.address)]
