"""Puts all the scripts of a page into one, because each file that a browser asks for costs it time.

Ours have one form: a line for each script imported, first; what is exported is declared there.
"""

import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import \{ (.+) \} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async function|function|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def bundles(scripts: Mapping[str, str], *, apart: str) -> dict[str, str]:
    """Each script by its name, as one with all that it imports; without those that another imports.

    `apart`: the script that pages share, which stays a file, so that browsers keep it.
    Raises ValueError if a script has another form, or imports itself.
    """
    imported = {name for text in scripts.values() for _, name in _IMPORT.findall(text)}
    roots = scripts.keys() - imported
    return {apart: scripts[apart], **{name: _bundle(name, scripts, apart) for name in roots}}


def _bundle(name: str, scripts: Mapping[str, str], apart: str) -> str:
    parts = "\n".join(_function(one, scripts[one]) for one in _in_order(name, scripts, apart, ()))
    exported = f"export const {{ {', '.join(_exported(scripts[name]))} }} = {_variable(name)};"
    return f'import * as {_variable(apart)} from "./{apart}.js";\n{parts}\n{exported}\n'


def _in_order(
    name: str, scripts: Mapping[str, str], apart: str, above: tuple[str, ...]
) -> list[str]:
    """A script behind all that it needs."""
    if name in above:
        raise ValueError(f"scripts import each other: {' '.join((*above, name))}")
    needed: dict[str, None] = {}
    for _, other in _IMPORT.findall(scripts[name]):
        if other != apart:
            needed |= dict.fromkeys(_in_order(other, scripts, apart, (*above, name)))
    return [*needed, name]


def _function(name: str, text: str) -> str:
    """A script as a function of its own, whose result is what it exports."""
    exported = ", ".join(_exported(text))
    inside = _EXPORT.sub(r"\1", _IMPORT.sub(_as_constants, text))
    if other := _OTHER.search(inside):
        raise ValueError(f"{name}.js: expected the imports and exports of a page, got {other[0]!r}")
    return f"const {_variable(name)} = (() => {{\n{inside}\nreturn {{ {exported} }};\n}})();"


def _exported(text: str) -> list[str]:
    return [variable for _, variable in _EXPORT.findall(text)]


def _as_constants(found: re.Match[str]) -> str:
    return f"const {{ {found[1]} }} = {_variable(found[2])};\n"


def _variable(name: str) -> str:
    """Not the name of anything in a script."""
    return f"{name}_js"
