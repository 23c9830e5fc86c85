"""A COMMIT that does not arrive, or whose answer doesn't."""

from __future__ import annotations

from typing import Final

from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene
from tests.support.proxy import CommitProxy, Lost
from tests.support.waiting import PATIENCE

ROW: Final = "COMMIT lost before / after it happened"
MUST: Final = "not applied and retried / found applied"
LOST: Final = {"before": Lost.COMMIT, "after": Lost.ANSWER, "half-open": Lost.CONNECTION}


@fault(row=ROW, must=MUST, variants=tuple(LOST), seeds=6)
def commit_lost(scene: Scene) -> None:
    """A proxy swallows COMMIT (and closes both connections), its answer, or COMMIT without telling the server, three
    times; the job alone finds out whether it happened."""
    how = LOST[scene.variant]
    stored: list[dict[int, int]] = []
    scene.produce(500)
    with CommitProxy(scene.url) as proxy, scene.supervise(url=proxy.url, timeouts={"commit": 4.0}) as supervisor:
        job = supervisor.job
        for _ in range(3):
            job.wait_for("done", job.batches_done + scene.random.randint(1, 3))
            scene.produce(200)
            before = scene.stored()
            with proxy.losing(how, then=lambda: stored.append(scene.stored())) as fired:
                assert fired.wait(30 * PATIENCE), "no COMMIT came"
            scene.fired(f"{how.value}: stored {before} before, {stored[-1]} when it was lost")
        scene.caught_up()
        assert supervisor.jobs == [job], "the job was to live on"


@fault(
    row=ROW,
    must="the old job ends with StaleClaim or CommitUnknown, nothing is lost or there twice",
    variants=tuple(LOST),
    seeds=6,
)
def commit_lost_and_claimed(scene: Scene) -> None:
    """As before, and another job takes the group over before the first one notices, which ends when it can tell what
    became of its transaction, or that nobody can."""
    how = LOST[scene.variant]
    # Where the new owner has moved every row on by then, nothing can be told.
    scene.expect("StaleClaim", "CommitUnknown")
    scene.produce(500)
    taken: list[Job] = []
    with CommitProxy(scene.url) as proxy:
        old = scene.start(url=proxy.url, timeouts={"commit": 6.0})
        old.wait_for("done", scene.random.randint(1, 5))
        batches = scene.random.randint(0, 2)

        def take_over() -> None:
            new = scene.start(takeover_timeout=1.0)
            new.wait_for("claimed")
            if batches:
                new.wait_for("done", batches)
            taken.append(new)

        with proxy.losing(how, then=take_over) as fired:
            scene.produce(100)
            assert fired.wait(60 * PATIENCE), "no COMMIT came"
        old.wait_for("failed")
        assert old.error is not None
        scene.fired(
            f"{how.value}; epoch {taken[0].epoch} claimed in between, {batches} batches: {old.error.text[:150]}"
        )
        scene.produce(100)
        scene.caught_up()
