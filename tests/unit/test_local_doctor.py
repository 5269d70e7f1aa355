"""The doctor on machines where nothing is there: every trouble is a finding, none an exception."""

from sendlater import doctor
from sendlater.config import Settings
from sendlater.doctor import checks
from sendlater.errors import MissingTool, StoreUnavailable
from sendlater.local.process import free_ports
from sendlater.local.redis_facts import RedisFacts


def settings(tmp_path, **more):
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache", **more)


def by_name(found):
    return {finding.name: finding for finding in found}


def facts(**other):
    good = {"product": "Redis", "version": (6, 2, 14), "appends": True, "eviction": "noeviction"}
    clock = {"ahead_ms": 0.1, "ahead_error_ms": 0.1}
    return RedisFacts(**(good | {"used_bytes": 2**20, "max_bytes": 0} | clock | other))


def test_servers_that_do_not_answer_are_findings_that_say_how_to_mend_them(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "BROKER_TIMEOUT_S", 0.3)
    redis_port, kafka_port = free_ports(2)
    found = by_name(
        checks(
            settings(
                tmp_path,
                redis=f"redis://:secret@127.0.0.1:{redis_port}/0",
                bootstrap_servers=f"127.0.0.1:{kafka_port}",
                kafka={"socket.timeout.ms": "1000"},
            )
        )
    )

    assert found["redis"].ok is False
    assert found["redis"].mend
    assert found["broker"].ok is False
    assert found["broker"].mend
    assert found["connector"].ok is None
    assert "secret" not in str(found)


def test_strange_settings_are_findings(tmp_path):
    strange = settings(
        tmp_path,
        redis="redis://:secret@host:port",
        bootstrap_servers="127.0.0.1:1",
        kafka={"no.such": "thing"},
    )

    found = by_name(checks(strange))

    assert found["redis"].ok is False
    assert "secret" not in str(found)
    assert "no.such" in found["broker"].found


def test_without_java_there_is_a_finding(tmp_path, monkeypatch):
    def none(_):
        raise MissingTool("no Java: install one")

    monkeypatch.setattr(doctor, "find_java", none)

    assert by_name(checks(settings(tmp_path)))["java"] == doctor.Finding(
        "java", False, "no Java: install one"
    )


def test_a_redis_that_may_lose_schedules_is_told_apart_from_a_good_one(tmp_path, monkeypatch):
    bad = facts(
        version=(6, 0, 16),
        appends=False,
        eviction="allkeys-lru",
        used_bytes=90,
        max_bytes=100,
        ahead_ms=-200.0,
    )
    ours = settings(tmp_path, redis="redis://somewhere")
    names = ("redis", "redis persistence", "redis eviction", "redis memory", "clock of Redis")
    monkeypatch.setattr(doctor, "redis_facts", lambda _: facts())
    good_ones = by_name(checks(ours))
    monkeypatch.setattr(doctor, "redis_facts", lambda _: bad)
    bad_ones = by_name(checks(ours))

    assert [good_ones[name].ok for name in names] == [True] * 5
    assert [bad_ones[name].ok for name in names] == [False, False, False, None, False]
    assert all(bad_ones[name].mend for name in names)


def test_each_of_several_servers_is_looked_at(tmp_path, monkeypatch):
    def asked(url):
        if "down" in url:
            raise StoreUnavailable("no answer")
        return facts(appends="good" in url)

    monkeypatch.setattr(doctor, "redis_facts", asked)
    ours = "redis://:pw@down:1,redis://:pw@bad:2,redis://good:3"
    found = by_name(checks(settings(tmp_path, redis=ours)))

    assert found["redis down:1"] == doctor.Finding(
        "redis down:1", False, "no answer", "start it, or correct the setting redis"
    )
    assert found["redis bad:2 persistence"].ok is False
    assert found["redis good:3 persistence"].ok
    spoilt = by_name(checks(settings(tmp_path, redis="redis://u:hunter2,redis://good:3")))
    assert "hunter2" not in str(spoilt)
    (trouble,) = doctor.store_troubles("redis://bad:2,redis://good:3")
    assert trouble.name == "redis bad:2 persistence"


def test_a_service_tells_at_its_start_what_only_the_doctor_would(monkeypatch):
    monkeypatch.setattr(doctor, "redis_facts", lambda _: facts())
    assert doctor.store_troubles("redis://somewhere") == []

    monkeypatch.setattr(doctor, "redis_facts", lambda _: facts(appends=False, eviction="volatile"))
    told = {finding.name: finding.mend for finding in doctor.store_troubles("redis://somewhere")}
    assert "appendonly yes" in told["redis persistence"]
    assert "noeviction" in told["redis eviction"]


def test_the_doctor_changes_nothing_unasked(tmp_path, monkeypatch):
    """Kafka's clock is read from a record, so it takes a topic of its own."""
    asked = []
    monkeypatch.setattr(doctor, "_broker", lambda _: iter(()))
    monkeypatch.setattr(doctor, "read_clock", lambda *at: asked.append(at) or (3.0, 0.5))
    ours = settings(tmp_path, redis="redis://127.0.0.1:1", bootstrap_servers="k:1")

    assert "clock of the broker" not in by_name(checks(ours))
    assert asked == []
    assert by_name(checks(ours, broker_clock=True))["clock of the broker"].ok
    assert asked == [("k:1", {})]


def test_a_clock_is_not_blamed_for_a_slow_network(tmp_path, monkeypatch):
    slow = facts(ahead_ms=150.0, ahead_error_ms=80.0)
    monkeypatch.setattr(doctor, "redis_facts", lambda _: slow)

    assert by_name(checks(settings(tmp_path, redis="redis://somewhere")))["clock of Redis"].ok
