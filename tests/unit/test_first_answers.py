"""What the page asks for first, in its HTML: as data, and only what its reader would be told."""

import asyncio
import json

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from sendlater.server.auth import EVERYBODY
from sendlater.server.page import first_answers
from sendlater.server.page.first_answers import as_data
from sendlater.server.problems import Problem, install

app = FastAPI()
install(app, missing=lambda _: None)


@app.get("/told")
def told(request: Request, of: str) -> JSONResponse:
    return JSONResponse({"of": of, "who": request.scope["who"].name})


@app.get("/refused")
def refused() -> None:
    raise Problem(503, "no answer")


@app.get("/broken")
def broken() -> None:
    raise ValueError("broken")


@app.get("/late")
async def late() -> None:
    await asyncio.Event().wait()


def answers(*paths):
    scope = {"type": "http", "http_version": "1.1", "scheme": "http", "server": ("here", 80)}
    request = Request({**scope, "app": app, "who": EVERYBODY, "path": "/", "headers": []})
    return asyncio.run(first_answers.first_answers(request, paths))


def test_an_answer_is_that_of_its_path_to_the_same_sender():
    found = json.loads(answers("/told?of=a%20b", "/told?of=c"))
    assert found == {
        "/told?of=a%20b": {"of": "a b", "who": EVERYBODY.name},
        "/told?of=c": {"of": "c", "who": EVERYBODY.name},
    }


def test_what_is_refused_or_late_is_left_out(monkeypatch):
    """The page asks for it, and tells what it gets."""
    monkeypatch.setattr(first_answers, "FIRST_ANSWERS_S_MAX", 1.0)
    found = json.loads(answers("/refused", "/broken", "/late", "/none", "/told?of=a"))
    assert found.keys() == {"/told?of=a"}


def test_no_text_ends_the_data():
    hostile = {"id": "</script><!--<script>", "é": "\u2028"}
    made = as_data(hostile)
    assert "<" not in made
    assert json.loads(made) == hostile
