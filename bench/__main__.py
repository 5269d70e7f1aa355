"""`python -m bench compare`, `soak` and `cost` measure; `python -m bench document` writes what they
found into the documentation.

They leave what they made in .bench/results: compare.json, soak.json and cost.json, and with plots
compare.html and soak.html.
"""

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.bounds import judge
from bench.cost import cost, cost_tables
from bench.measure import measure
from bench.report import markdown, page, verdicts, workload_table
from bench.soak import SHARE_MAX, drift, picture, plot, soak
from bench.system import HOME, ROOT, System
from bench.systems import SYSTEMS
from bench.workloads import WORKLOADS, Workload
from sendlater.bench.all import between, machine
from sendlater.errors import BadRequest, SendlaterError

RESULTS = HOME / "results"
PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "images" / "soak.png"
OK, FAILED = 0, 1


def main(words: Sequence[str] | None = None) -> int:
    """Carry out a command; returns the exit code: FAILED if a bound or a system failed."""
    asked = argparse.ArgumentParser(prog="bench", description=__doc__)
    commands = asked.add_subparsers(dest="command", required=True)
    comparing = commands.add_parser("compare", help="run workloads on systems")
    known = [system.name for system in SYSTEMS]
    comparing.add_argument("--system", action="append", choices=known, help="repeatable")
    loads = [workload.name for workload in WORKLOADS]
    comparing.add_argument("--workload", action="append", choices=loads, help="repeatable")
    comparing.add_argument(
        "--scale",
        type=_above_zero,
        default=1.0,
        help="so many times the messages and seconds, but no less than 5 s",
    )
    comparing.add_argument(
        "--add", action="store_true", help="to what the results have of other loads and systems"
    )
    soaking = commands.add_parser("soak", help="an hour of sendlater, with the memory it takes")
    soaking.add_argument("--minutes", type=_above_zero, default=60.0)
    soaking.add_argument("--rate", type=_above_zero, default=1_000.0, help="messages a second")
    costing = commands.add_parser("cost", help="what a message costs in each step")
    documenting = commands.add_parser(
        "document", help="write docs/performance.md and the soak's picture"
    )
    documenting.add_argument("--page", type=Path, default=PAGE)
    for command in (comparing, soaking, costing, documenting):
        command.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    arguments = asked.parse_args(words)
    try:
        return _carry_out(arguments)
    except BadRequest as error:
        asked.error(str(error))


def _carry_out(arguments: argparse.Namespace) -> int:
    """The command that was asked for. Raises BadRequest."""
    if arguments.command == "document":
        document(arguments.results, arguments.page)
        return OK
    _make(arguments.results)
    if arguments.command == "compare":
        named = arguments.system or [system.name for system in SYSTEMS]
        systems = [system for system in SYSTEMS if system.name in named]
        wanted = arguments.workload or [w.name for w in WORKLOADS if not w.long]
        chosen = [w.scaled(arguments.scale) for w in WORKLOADS if w.name in wanted]
        to = arguments.results
        return compare(systems, chosen, scale=arguments.scale, results=to, add=arguments.add)
    if arguments.command == "soak":
        return soak_and_judge(arguments.rate, arguments.minutes, results=arguments.results)
    result = {"machine": machine(), **cost(_ours(), tell=_tell)}
    (arguments.results / "cost.json").write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(cost_tables(result) + "\n")
    return OK


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest(f"expected a folder for results, {folder}: {error.strerror}") from error


def document(results: Path, to: Path) -> None:
    """Write what there is into a page of the documentation.

    Raises BadRequest if there is nothing, or small loads only for the page that is published.
    """
    tables = {"compare": ("compared", markdown), "cost": ("cost", cost_tables)}
    found = {name: file for name in tables if (file := results / f"{name}.json").exists()}
    soaked = results / "soak.html"
    if not found and not soaked.exists():
        raise BadRequest(f"expected compare.json, cost.json or soak.html in {results}, found none")
    made = {name: json.loads(file.read_text()) for name, file in found.items()}
    scale = made.get("compare", {}).get("scale", 1)
    if scale != 1 and to == PAGE:
        raise BadRequest(f"expected full loads for {to.name}, found scale {scale:g}: name a --page")
    if soaked.exists():
        picture(soaked, PICTURE)
    for name, result in made.items():
        mark, told = tables[name]
        to.write_text(between(to.read_text(), mark, told(result)))


def compare(
    systems: Sequence[System],
    workloads: Sequence[Workload],
    *,
    scale: float,
    results: Path,
    add: bool = False,
) -> int:
    """Every workload on every system, one after the other; what was made is written each time.

    `add`: to what earlier calls have left there. Raises BadRequest if that is of another machine,
    other versions or another scale.
    """
    result = _begun(results, scale=scale, add=add)
    absent: dict[str, str] = {}
    for system in systems:
        _tell(f"installing {system.name}")
        try:
            system.install()
            about = {"versions": dict(system.versions()), "settings": dict(system.settings)}
            result["systems"][system.name] = about
        except SendlaterError as error:  # the others are still worth it
            absent[system.name] = _failed(error)
    failed = bool(absent)
    for workload in workloads:
        found = result["results"].setdefault(workload.name, {})
        for system in systems:
            _tell(f"{workload.name} on {system.name}")
            try:
                reason = absent.get(system.name) or system.unfit(workload)
                figures = measure(system, workload, tell=_tell) if reason is None else None
                found[system.name] = figures or {"left_out": reason}
            except SendlaterError as error:
                failed = True
                found[system.name] = {"left_out": _failed(error)}
            write(result, results)
        sys.stdout.write(f"\n{workload.name}\n\n{workload_table(found)}\n")
    sys.stdout.write("\n" + "\n".join(verdicts(result)) + "\n")
    broken = any(verdict.failed for verdict in judge(result["results"], scale=scale))
    return FAILED if failed or broken else OK


def soak_and_judge(rate: float, minutes: float, *, results: Path) -> int:
    """An hour of sendlater; FAILED if something was lost, doubled or early, or memory moved."""
    result = {"machine": machine(), **soak(_ours(), rate=rate, minutes=minutes)}
    moved = result["memory_moved"] = drift(result["memory_mib"])
    (results / "soak.json").write_text(json.dumps(result, indent=1) + "\n")
    (results / "soak.html").write_text(plot(result).to_html(include_plotlyjs=True))
    for name, told in moved.items():
        _tell(f"{name}: {told['mib']} MiB, {told['lowest']:+.1%} to {told['highest']:+.1%}")
    wrong = {n: result[n] for n in ("lost", "duplicated", "early") if result[n]}
    _tell(f"{result['scheduled']} messages, late ms {result['late_ms']} {wrong or ''}")
    far = [max(-told["lowest"], told["highest"]) > SHARE_MAX for told in moved.values()]
    return FAILED if wrong or any(far) else OK


def _begun(results: Path, *, scale: float, add: bool) -> dict[str, Any]:
    """What results are written to: nothing yet, or what is there."""
    here = {"machine": machine(), "scale": scale}
    if add and (written := results / "compare.json").exists():
        try:
            earlier: dict[str, Any] = json.loads(written.read_text())
            there = {name: earlier[name] for name in here}
        except (ValueError, LookupError, TypeError) as error:
            raise BadRequest(
                f"expected results in {written}, it cannot be read: {error!r}"
            ) from error
        if there != here:
            raise BadRequest(f"expected results of {here} in {written}, found {there}")
        return earlier
    return {**here, "load_before": round(os.getloadavg()[0], 2), "systems": {}, "results": {}}


def _above_zero(text: str) -> float:
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"expected a number above zero, got {text!r}")


def _failed(error: SendlaterError) -> str:
    """Tell all of it; its first line for the table."""
    _tell(str(error))
    return f"failed: {str(error).splitlines()[0]}"


def _ours() -> System:
    return next(system for system in SYSTEMS if system.name == "sendlater")


def write(result: Mapping[str, Any], folder: Path) -> None:
    """The JSON, which bench/README.md describes, and the page with plots; loads and systems in our
    order, whenever they ran."""
    loads = {
        load: _in_order(found, [system.name for system in SYSTEMS])
        for load, found in result["results"].items()
    }
    results = _in_order(loads, [workload.name for workload in WORKLOADS])
    judged = judge(results, scale=result["scale"])
    bounds = [verdict.told() for verdict in judged if verdict.value is not None]
    ordered = {**result, "results": results, "bounds": bounds}
    (folder / "compare.json").write_text(json.dumps(ordered, indent=1) + "\n")
    (folder / "compare.html").write_text(page(ordered))


def _in_order(found: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """By name as in `names`; others are last."""
    places = {name: n for n, name in enumerate(names)}
    return dict(sorted(found.items(), key=lambda one: places.get(one[0], len(places))))


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    # What was started is stopped, by whatever this is ended.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    sys.exit(main())
