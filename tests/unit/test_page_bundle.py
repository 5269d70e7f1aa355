"""All the scripts of a page in one file: each once, behind what it needs."""

import pytest

from sendlater.server.page.bundle import bundles

SCRIPTS = {
    "shared": "export const two = 2;\n",
    "chart": (
        'import { two } from "./shared.js";\n'
        'import { axis } from "./axis.js";\n'
        "export const chart = axis * two;\nexport async function draw() {}\n"
    ),
    "axis": "export function axis() {}\n",
    "page": (
        'import { axis } from "./axis.js";\nimport { chart, draw } from "./chart.js";\n'
        "export const page = draw(axis);\n"
    ),
}


def test_a_page_has_each_script_once_behind_what_it_needs():
    made = bundles(SCRIPTS, apart="shared")
    assert made.keys() == {"shared", "page"}
    assert made["shared"] == SCRIPTS["shared"]
    assert made["page"] == (
        'import * as shared_js from "./shared.js";\n'
        "const axis_js = (() => {\nfunction axis() {}\n\nreturn { axis };\n})();\n"
        "const chart_js = (() => {\nconst { two } = shared_js;\nconst { axis } = axis_js;\n"
        "const chart = axis * two;\nasync function draw() {}\n\nreturn { chart, draw };\n})();\n"
        "const page_js = (() => {\nconst { axis } = axis_js;\nconst { chart, draw } = chart_js;\n"
        "const page = draw(axis);\n\nreturn { page };\n})();\nexport const { page } = page_js;\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "export default 1;\n",
        "export let now = 1;\n",
        'import chart from "./chart.js";\n',
        "const a = 1;\nexport { a };\n",
    ],
)
def test_another_form_is_refused_where_it_would_be_read_wrongly(text):
    with pytest.raises(ValueError, match=r"page\.js: expected the imports and exports of a page"):
        bundles({**SCRIPTS, "page": text}, apart="shared")


def test_scripts_that_import_each_other_are_refused():
    axis = 'import { chart } from "./chart.js";\n'
    with pytest.raises(ValueError, match="import each other: page axis chart axis"):
        bundles({**SCRIPTS, "axis": axis}, apart="shared")
