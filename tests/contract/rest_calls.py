"""What the tests of REST have in common: settings, a schedule, what a refusal looks like."""

from sendlater.config import Settings

FAR_MS, HOUR_MS = 1_900_000_000_000, 3_600_000


def settings_for(redis_url, space, **more):
    return Settings(redis=redis_url, space=space, http_addr="127.0.0.1:0", **more)


def send(api, **given):
    answer = api.post("/v1/schedules", json={"topic": "orders", "value": "v", **given})
    assert answer.status_code == 201, answer.text
    return answer.json()


def ids(page):
    return [one["id"] for one in page.json()["items"]]


def refused(answer, status, words):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert words in problem["detail"], problem["detail"]
    return problem
